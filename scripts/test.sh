#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that this machine can run. The last line
# counts test cases: "N passed, N failed, N skipped".
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--asan] [--ci]
  --asan  also build with the address sanitizer and run the unit and 2-rank tests under it
  --ci    what continuous integration runs: warnings are errors, the format check decides, --asan
exit code: 0 when nothing failed
TEXT
}

ci=0
asan=0
for option in "$@"; do
  case $option in
    --ci) ci=1 asan=1 ;;
    --asan) asan=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "test.sh: unknown option \"$option\"" >&2
      usage >&2
      exit 2
      ;;
  esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
logs=build/test-logs

step() { echo "== $* (at ${SECONDS} s)"; }

step "packages"
if ((ci)); then scripts/setup.sh --ci; else scripts/setup.sh; fi
mkdir -p "$logs"

step "layers and format"
python3 scripts/check_layers.py
if ((ci)); then scripts/check_format.sh; fi

werror=OFF
if ((ci)); then werror=ON; fi
step "build"
cmake --preset cpu -DSPILLWAY_TESTS=ON -DSPILLWAY_WERROR=$werror >/dev/null
cmake --build --preset cpu
scripts/size_report.sh build
scripts/fetch_text.sh data

failed=0
step "tests"
ctest --test-dir build -V --no-tests=error >"$logs/cpu.log" 2>&1 || failed=1
grep -E 'tests passed|Total Test time|\*\*\*' "$logs/cpu.log" || true
trees=("$logs/cpu.log")

if ((asan)); then
  step "address sanitizer build"
  cmake --preset asan -DSPILLWAY_TESTS=ON >/dev/null
  cmake --build --preset asan
  step "address sanitizer tests"
  # Open MPI and its transports keep memory until the process ends: leaks are looked for in
  # single-process programs only.
  ctest --test-dir build-asan -V --no-tests=error >"$logs/asan.log" 2>&1 || failed=1
  grep -E 'tests passed|Total Test time|\*\*\*' "$logs/asan.log" || true
  trees+=("$logs/asan.log")
fi

step "done"
if ((failed)); then
  sed 's/\x1b\[[0-9;]*[mK]//g' "${trees[@]}" | grep -E '^[0-9]+: (\[  FAILED|\[rank [0-9]+ of|FAIL:|ERROR:)|Failure$|\*\*\*' | head -n 60 || true
  echo "full logs: ${trees[*]}"
fi
python3 scripts/count_tests.py "${trees[@]}"
