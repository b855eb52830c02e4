#!/usr/bin/env bash
# One training step on the CPU in f32 and bf16, the plain product of the same machine, and, where
# torch and transformers are installed, the same step by transformers beside them.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/bench_cpu.sh [--build DIR] [--config FILE] [--threads N] [--steps N] [--python PATH]
  --build DIR    build tree that holds bin/bench (default: build, in the repository)
  --config FILE  what to train (default: configs/bench-cpu.json)
  --threads N    of both programs (default: 2)
  --steps N      timed steps of ours; a third as many of the other (default: 18)
  --python PATH  a Python that has torch and transformers (default: python3)
The table goes to stdout, JSON lines to stderr. bf16 of transformers has bf16 weights and optimizer
state; ours are f32 there.
TEXT
}

fail() {
  echo "bench_cpu.sh: $*" >&2
  exit 2
}

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$repository/build
config=$repository/configs/bench-cpu.json
threads=2
steps=18
python=python3
while (($# > 0)); do
  case $1 in
    --build | --config | --threads | --steps | --python)
      (($# >= 2)) || fail "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) fail "unknown option \"$1\" (see --help)" ;;
  esac
done
for number in "$threads" "$steps"; do
  [[ $number =~ ^[1-9][0-9]{0,3}$ ]] || fail "\"$number\"; allowed: an integer of at least 1"
done
bench=$build/bin/bench
[[ -x $bench ]] || fail "no program \"$bench\"; build it first: cmake --preset cpu && cmake --build build"
export OMP_NUM_THREADS=$threads

lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
record() { "$@" | tee -a "$lines" >&2; }
for dtype in f32 bf16; do
  record "$bench" step --config "$config" --set "run.dtype=\"$dtype\"" --steps "$steps"
  record "$bench" matmul --dtype "$dtype"
done
# Fewer threads of the other program's own pools than it would take.
record "$python" "$repository/tests/benchmarks/transformers_step.py" "$config" \
  --threads "$threads" --steps $(((steps + 2) / 3)) ||
  echo "bench_cpu.sh: no times of transformers: $python lacks torch or transformers" >&2

python3 "$repository/tests/benchmarks/step_table.py" "$lines"
