#!/usr/bin/env bash
# Starts a training job of N ranks on this machine under mpirun and hands its exit code on.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/launch.sh [--build DIR] [--program PATH] N CONFIG [train options]
  N             ranks; more than there are cores is allowed
  CONFIG        JSON config, handed to the program as --config CONFIG
  --build DIR   build tree that holds bin/train (default: build, in the repository)
  --program P   run P instead of DIR/bin/train (the tests use this)
signals to this script: SIGTERM, SIGINT, SIGHUP = write a checkpoint after the step that runs, end,
  return 143, 130 or 129 (one more SIGINT 2 s later ends the job at once, without); SIGUSR2 = the
  same, return 0; SIGUSR1 = write a checkpoint and go on. Go on later with --resume auto
exit code: that of mpirun, so that of the first rank that failed; see the README for their meaning
TEXT
}

fail() {
  echo "launch.sh: $*" >&2
  exit 2
}

# Cores that this process may use: its affinity, cut down to a container's CPU quota.
count_cores() {
  local cores quota period
  # nproc would answer with OMP_NUM_THREADS when that is set.
  cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
    local allowed=$(((quota + period - 1) / period))
    if ((allowed < cores)); then cores=$allowed; fi
  fi
  echo "$cores"
}

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$repository/build
program=
while (($# > 0)); do
  case $1 in
    --build | --program)
      (($# >= 2)) || fail "$1 needs a value"
      if [[ $1 == --build ]]; then build=$2; else program=$2; fi
      shift 2
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    -*) fail "unknown option \"$1\" before N; train options come after CONFIG (see --help)" ;;
    *) break ;;
  esac
done
if (($# < 2)); then
  usage >&2
  exit 2
fi
ranks=$1
config=$2
shift 2
[[ $ranks =~ ^[1-9][0-9]{0,5}$ ]] || fail "N is \"$ranks\"; allowed: an integer of at least 1"
program=${program:-$build/bin/train}
[[ -x $program && ! -d $program ]] ||
  fail "no program \"$program\"; build it first: cmake --preset cpu && cmake --build build"
command -v mpirun >/dev/null || fail "mpirun is missing; install it with scripts/setup.sh"

threads=$(($(count_cores) / ranks))
if ((threads < 1)); then threads=1; fi

mpirun_command=(
  mpirun -q -n "$ranks"
  --oversubscribe --bind-to none   # more ranks than cores; no pinning of all jobs to core 0
  --mca mpi_yield_when_idle 1      # a waiting rank leaves its core to one that computes
  -x "OMP_NUM_THREADS=$threads"
  -x OMP_WAIT_POLICY=passive       # idle OpenMP threads sleep, for the same reason
)
if (($(id -u) == 0)); then
  mpirun_command+=(--allow-run-as-root)  # root in a container is the usual case there
fi

# Ranks ignore both signals until they have set their own handlers (the default action would end
# the job when one comes during start-up), hence the shell that becomes the program.
# shellcheck disable=SC2016  # the inner shell expands
rank_command=(sh -c 'trap "" USR1 USR2; exec "$@"' rank "$program" --config "$config" "$@")

job=
stopping=0     # 1 once a stop was asked for
stop_code=0    # what to return then: 143, 130, 129, or 0 for SIGUSR2
stopped_at=0   # SECONDS when it was
given_up=0     # 1: ended without waiting for a checkpoint
forward() { [[ -z $job ]] || kill -s "$1" "$job" 2>/dev/null || true; }
# shellcheck disable=SC2317  # called by the traps
on_stop() {
  if ((stopping == 0)); then
    stopping=1
    stop_code=$1
    stopped_at=$SECONDS
    forward USR2
  elif (($1 == 130 && SECONDS - stopped_at >= 2)); then
    given_up=1  # somebody at the keyboard has lost patience
    forward TERM
  fi
}
trap 'on_stop 143' TERM
trap 'on_stop 130' INT
trap 'on_stop 129' HUP

# Ignored while the job starts: mpirun inherits that until it has its own handlers.
trap '' USR1 USR2
# A session of its own: ^C at the terminal must reach this script only, or nothing is saved.
setsid "${mpirun_command[@]}" "${rank_command[@]}" &
job=$!
trap 'forward USR1' USR1
trap 'on_stop 0' USR2

# Processes that mpirun started and that still run.
living=()
find_living() {
  local child children
  living=()
  children=$(cat /proc/"$job"/task/*/children 2>/dev/null) || true
  for child in $children; do
    if grep -q '^State:[[:space:]]*[^Z]' "/proc/$child/status" 2>/dev/null; then
      living+=("$child")
    fi
  done
}
# mpirun itself may hang after a rank was killed, with the other ranks or when all have gone (seen
# with Open MPI 4.1.4 and PMIx 4.2.2, once in some 200 kills). Ranks end together: when some have
# gone for 8 s and the job is still there, it is ended.
watch_for_hang() {
  local most=0 fewer=0
  while sleep 1 && kill -0 "$job"; do
    find_living
    if ((${#living[@]} > most && most < ranks)); then most=${#living[@]}; fi
    if ((most > ranks)); then most=$ranks; fi
    if ((${#living[@]} >= most)); then
      fewer=0
    elif ((++fewer >= 8)); then
      kill -s KILL "${living[@]}" "$job"
    fi
  done
}
watch_for_hang >/dev/null 2>&1 &
watcher=$!

# A trapped signal ends `wait` early; the job is over only when its process is gone.
while kill -0 "$job" 2>/dev/null; do
  if ((stopping == 0)); then
    wait "$job" || true
  else
    # Asked again and again, in case the first came before the ranks listened.
    forward USR2
    sleep 0.5
  fi
done
code=0
wait "$job" || code=$?
kill "$watcher" 2>/dev/null || true
# A stop that went well, one that nobody waited for, one that met a rank in its first moment
# (128 + SIGUSR2) with nothing to save yet. Any other code is the job's own failure.
if ((code == 0 || given_up == 1 || (stopping == 1 && code == 140))); then code=$stop_code; fi
exit "$code"
