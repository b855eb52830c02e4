#!/usr/bin/env bash
# Installs what Spillway needs and this machine lacks; builds nothing. Debian 12 and Ubuntu 24.04.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/setup.sh [--ci] [--os-release FILE]
  --ci               also what only continuous integration needs (clang-format 14)
  --os-release FILE  read the system's name from FILE (default /etc/os-release; for the tests)
exit code: 0 all there; 1 something is missing that this call could not install; 2 bad option
TEXT
}

# package, what it is for
packages=(
  "g++|C++20 compiler"
  "cmake|configures the build (3.25 or newer)"
  "ninja-build|runs the build"
  "libopenmpi-dev|MPI headers: messages between ranks"
  "openmpi-bin|mpirun: starts the ranks"
  "libdnnl-dev|oneDNN: matrix products on the CPU"
  "nlohmann-json3-dev|JSON: configs and metrics"
  "libspdlog-dev|log output"
  "libcli11-dev|command lines"
  "libgtest-dev|unit tests"
  "python3|checks of the tests and scripts"
  "dict-gcide|a dictionary in plain text: what the demo trains on"
)

os_release=/etc/os-release
while (($# > 0)); do
  case $1 in
    --ci)
      packages+=("clang-format-14|the format that continuous integration checks")
      shift
      ;;
    --os-release)
      (($# >= 2)) || { echo "setup.sh: --os-release needs a value" >&2; exit 2; }
      os_release=$2
      shift 2
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "setup.sh: unknown option \"$1\"" >&2
      usage >&2
      exit 2
      ;;
  esac
done
names=("${packages[@]%%|*}")

system=$(sed -n 's/^ID=//p' "$os_release" 2>/dev/null | tr -d '"' || true)
version=$(sed -n 's/^VERSION_ID=//p' "$os_release" 2>/dev/null | tr -d '"' || true)
case "$system $version" in
  "debian 12" | "ubuntu 24.04") ;;
  *)
    {
      echo "setup.sh: this is \"${system:-unknown} ${version:-unknown}\"; it knows Debian 12 and" \
        "Ubuntu 24.04 only. Install the like of these packages yourself, then build:"
      echo "  ${names[*]}"
    } >&2
    exit 1
    ;;
esac

# One query for all: unknown packages are an error of dpkg-query that just means "missing".
# shellcheck disable=SC2016  # the format is dpkg-query's
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${names[@]}" 2>/dev/null || true)
missing=()
for entry in "${packages[@]}"; do
  name=${entry%%|*}
  if ! grep -qxF "installed $name" <<<"$installed"; then
    missing+=("$name")
    echo "setup.sh: to install: $name (${entry#*|})"
  fi
done
if ((${#missing[@]} == 0)); then
  echo "setup.sh: nothing to install, all ${#names[@]} packages are there"
  exit 0
fi

if (($(id -u) != 0)); then
  {
    echo "setup.sh: installing needs root; run this, then try again:"
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  } >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive  # no questions: there may be nobody to answer
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
echo "setup.sh: installed ${#missing[@]} packages"
