#!/usr/bin/env bash
# Prints how large the project is: lines and files a module, and what a build tree weighs.
set -euo pipefail

if (($# > 1)) || [[ ${1:-} == -* ]]; then
  echo "usage: scripts/size_report.sh [BUILD_DIR]" >&2
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:-}
if [[ -n $build && ! -d $build ]]; then
  echo "size_report.sh: \"$build\" is no folder" >&2
  exit 2
fi

# "FILES LINES" of the sources under the given folders; folders that do not exist count nothing.
count() {
  local folders=() folder
  for folder in "$@"; do
    if [[ -d $folder ]]; then folders+=("$folder"); fi
  done
  if ((${#folders[@]} == 0)); then
    echo "0 0"
    return
  fi
  find "${folders[@]}" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.py' -o -name '*.sh' \) -print0 |
    xargs -0 awk 'FNR == 1 { files++ } END { print files + 0, NR + 0 }' /dev/null
}

row() { printf '%-24s %6d %8d %8d %8d\n' "$@"; }

printf '%-24s %6s %8s %8s %8s\n' module files lines "t.files" "t.lines"
totals=(0 0 0 0)
for folder in "$root"/src/*/; do
  module=$(basename "$folder")
  read -r files lines < <(count "$root/src/$module" "$root/include/spillway/$module")
  if ((files == 0)); then continue; fi
  # Where the tests of a module live: by its name in one of the test folders.
  read -r test_files test_lines < <(count "$root/tests/unit/$module" "$root/tests/$module" \
    "$root/tests/distributed/$module")
  row "$module" "$files" "$lines" "$test_files" "$test_lines"
  totals=($((totals[0] + files)) $((totals[1] + lines))
    $((totals[2] + test_files)) $((totals[3] + test_lines)))
done
row "modules together" "${totals[@]}"
read -r files lines < <(count "$root/tests")
row "tests, all" 0 0 "$files" "$lines"
read -r files lines < <(count "$root/scripts")
row "scripts" "$files" "$lines" 0 0

if [[ -n $build ]]; then
  printf '\n%-40s %12s\n' "library or program" bytes
  # Programs are executable files right under bin; libraries lie where the build puts them.
  { find "$build" -type f -name 'libspillway_*.a' -printf '%f %s\n'
    if [[ -d $build/bin ]]; then
      find "$build/bin" -maxdepth 1 -type f -executable -printf 'bin/%f %s\n'
    fi
  } | sort | while read -r name bytes; do printf '%-40s %12d\n' "$name" "$bytes"; done
fi
