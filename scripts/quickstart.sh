#!/usr/bin/env bash
# From a fresh checkout to a trained language model: installs what is missing, builds, fetches a
# text, trains the demo on CPU ranks, evaluates it on held-out text and says what happened.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/quickstart.sh [--ranks N] [--text FILE] [--] [train options]
  --ranks N    CPU ranks (default 4; the demo's experts are split over all of them)
  --text FILE  train on a text of your own instead of the dictionary
  train options are handed to the program, for example: --set train.steps=50
results: runs/demo/metrics.jsonl; an older runs/demo is moved to runs/demo.1, .2, ...
TEXT
}

ranks=4
text=
while (($# > 0)); do
  case $1 in
    --ranks | --text)
      (($# >= 2)) || { echo "quickstart.sh: $1 needs a value" >&2; exit 2; }
      if [[ $1 == --ranks ]]; then ranks=$2; else text=$2; fi
      shift 2
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    --)
      shift
      break
      ;;
    --set | --run-dir) break ;;
    *)
      echo "quickstart.sh: unknown option \"$1\"" >&2
      usage >&2
      exit 2
      ;;
  esac
done

# A path of the caller's is meant from where the caller stands.
if [[ -n $text ]]; then text=$(realpath -- "$text"); fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

echo "== 1/4 packages"
scripts/setup.sh
echo "== 2/4 build"
cmake --preset cpu -DSPILLWAY_TESTS=OFF >/dev/null
cmake --build --preset cpu
echo "== 3/4 text"
scripts/fetch_text.sh data ${text:+"$text"}
name=gcide
if [[ -n $text ]]; then
  name=$(basename -- "$text")
  name=${name%.*}
fi

if [[ -e runs/demo ]]; then
  older=1
  while [[ -e runs/demo.$older ]]; do older=$((older + 1)); done
  mv runs/demo "runs/demo.$older"
  echo "moved the older runs/demo to runs/demo.$older"
fi

echo "== 4/4 training on $ranks CPU ranks"
scripts/launch.sh "$ranks" configs/demo.json --set "parallel.ep=$ranks" \
  --set "data.train=[\"data/$name.train.txt\"]" --set "data.valid=[\"data/$name.valid.txt\"]" "$@"
if [[ -d runs/demo/checkpoints ]]; then
  echo
  echo "== a sample of what it has learned (--temperature 0.5, prompt \"Water \")"
  build/bin/train --config configs/demo.json --resume auto "$@" \
    --sample 300 --temperature 0.5 --prompt "Water "
fi
echo
echo "Every step's demand, drops and capacity of every layer: runs/demo/metrics.jsonl"
