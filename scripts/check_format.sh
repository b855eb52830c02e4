#!/usr/bin/env bash
# Checks (never changes) the format of all C++ and CUDA sources against .clang-format.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Another version formats some lines in another way, so the one of the project goes first.
formatter=
for name in clang-format-14 clang-format; do
  if command -v "$name" >/dev/null; then
    formatter=$name
    break
  fi
done
if [[ -z $formatter ]]; then
  echo "check_format.sh: SKIPPED, clang-format is not installed (scripts/setup.sh --ci installs it)"
  exit 0
fi

mapfile -d '' -t files < <(find src include tests -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
if ((${#files[@]} == 0)); then
  echo "check_format.sh: no sources found in $PWD" >&2
  exit 1
fi
"$formatter" --dry-run -Werror "${files[@]}"
echo "check_format.sh: ${#files[@]} files are in form ($("$formatter" --version))"
