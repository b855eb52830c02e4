#!/usr/bin/env bash
# Lays out a text to train on: NAME.train.txt and, the last 2 % held out, NAME.valid.txt.
set -euo pipefail

readonly kDictionary=/usr/share/dictd/gcide.dict.dz  # of the package dict-gcide
readonly kTrainPercent=98

usage() {
  cat <<'TEXT'
usage: scripts/fetch_text.sh OUT_DIR [FILE]
  OUT_DIR  where the two files go; made when missing
  FILE     a text of your own (NAME = its name without the last extension); without it the
           GNU Collaborative International Dictionary of English, unpacked (NAME = gcide)
The cut falls at the start of a line. Files that are right already are left alone.
exit code: 0 both files are there; 1 they could not be made; 2 bad command line
TEXT
}

fail() {
  echo "fetch_text.sh: $*" >&2
  exit 1
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit 0
fi
if (($# < 1 || $# > 2)) || [[ -z $1 || $1 == -* ]]; then
  usage >&2
  exit 2
fi
out_dir=$1
source=${2:-$kDictionary}
if (($# == 1)) && [[ ! -e $source ]]; then
  fail "\"$source\" is missing; scripts/setup.sh installs it (package dict-gcide)"
fi
[[ -f $source && -r $source ]] || fail "\"$source\" is no file that can be read"

mkdir -p "$out_dir"
# In the same folder, so that the final mv only renames: no reader ever sees half a file.
work=$(mktemp -d "$out_dir/.fetch_text.XXXXXX")
trap 'rm -rf "$work"' EXIT

if (($# == 1)); then
  name=gcide
  # dictzip is gzip with an index that gzip skips.
  gzip -dc <"$source" >"$work/text"
  text=$work/text
else
  name=$(basename "$source")
  name=${name%.*}
  [[ -n $name ]] || name=text  # a file like ".txt"
  text=$source
fi

size=$(stat -L -c %s "$text")
((size > 0)) || fail "\"$source\" holds no text"
# The rest of the line that holds byte 98 % goes to the training part.
cut=$((size * kTrainPercent / 100))
if ((cut > 0)); then
  # tail is killed by the closed pipe once head has its line: not an error here.
  rest=$({ tail -c "+$cut" "$text" 2>/dev/null || true; } | head -n 1 | wc -c)
  cut=$((cut - 1 + rest))
fi
((cut > 0 && cut < size)) ||
  fail "\"$source\" ($size bytes) has no line that starts in its last $((100 - kTrainPercent)) %"
head -c "$cut" "$text" >"$work/train"
tail -c "+$((cut + 1))" "$text" >"$work/valid"

for part in train valid; do
  target=$out_dir/$name.$part.txt
  if ! cmp -s "$work/$part" "$target"; then
    chmod 644 "$work/$part"
    mv -f "$work/$part" "$target"
  fi
  echo "$target: $(stat -c %s "$target") bytes"
done
