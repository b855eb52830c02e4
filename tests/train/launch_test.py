"""scripts/launch.sh: exit codes, signals and the environment of the ranks.

A small stand-in takes the place of the trainer, so this needs mpirun but no build.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "scripts" / "launch.sh"
NUM_RANKS = 2
WAIT_S = 30  # far beyond what a step takes here: only a hang reaches it

# argv: --config FOLDER MODE [options]; writes FOLDER/rank.N.json and appends signals to
# FOLDER/signals.N, as a trainer would write checkpoints.
STAND_IN = """#!/usr/bin/env python3
import json, os, signal, sys, time
folder, mode = sys.argv[2], sys.argv[3]
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
if mode == "late":  # a slow start: handlers come long after the process
    open(f"{folder}/started.{rank}", "w").close()
    time.sleep(1.5)
stop = []
def on_signal(number, frame):
    with open(f"{folder}/signals.{rank}", "a") as out:
        out.write(signal.Signals(number).name + "\\n")
    if number == signal.SIGUSR2 and mode != "stubborn":
        stop.append(number)
signal.signal(signal.SIGUSR1, on_signal)
signal.signal(signal.SIGUSR2, on_signal)
with open(f"{folder}/rank.{rank}.tmp", "w") as out:
    json.dump({"pid": os.getpid(), "session": os.getsid(0), "argv": sys.argv[1:],
               "omp": os.environ.get("OMP_NUM_THREADS"),
               "wait": os.environ.get("OMP_WAIT_POLICY"), "cwd": os.getcwd()}, out)
os.rename(f"{folder}/rank.{rank}.tmp", f"{folder}/rank.{rank}.json")
if mode.startswith("exit"):
    sys.exit(int(mode[4:]) if rank == 1 else 0)
end = time.monotonic() + 60
while time.monotonic() < end and not stop:
    time.sleep(0.02)
sys.exit(4 if mode == "fail_on_stop" else 0 if stop else 9)
"""


def wait_for(condition, what):
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"no {what} after {WAIT_S} s")


class LaunchTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="spillway_launch_")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.program = self.folder / "train"
        self.program.write_text(STAND_IN)
        self.program.chmod(0o755)
        self.job = None
        self.addCleanup(self.end_job)

    def end_job(self):
        """Leaves nothing behind when a test has failed half-way."""
        if self.job is not None and self.job.poll() is None:
            self.job.kill()
            self.job.wait()
        for rank in self.ranks():
            try:
                os.kill(rank["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass

    def start(self, mode, *options, ranks=NUM_RANKS, env=None):
        command = [LAUNCH, "--program", self.program, str(ranks), self.folder, mode, *options]
        self.job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True, env=env, start_new_session=True)
        return self.job

    def finish(self):
        """The exit code, once no rank is left."""
        _, self.errors = self.job.communicate(timeout=WAIT_S)
        for rank in self.ranks():
            wait_for(lambda: not Path(f"/proc/{rank['pid']}").exists(), "end of a rank")
        return self.job.returncode

    def ranks(self):
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("rank.*.json"))]

    def ready(self):
        wait_for(lambda: len(self.ranks()) == NUM_RANKS, "rank")

    def signals(self, rank):
        path = self.folder / f"signals.{rank}"
        return path.read_text().split() if path.exists() else []

    def test_exit_codes_of_a_rank_come_through(self):
        for code in (0, 1, 3, 6):
            with self.subTest(code=code):
                self.start(f"exit{code}")
                self.assertEqual(self.finish(), code)

    def test_arguments_reach_the_program_unchanged(self):
        self.start("exit0", "--set", 'a.b={"c": [1, 2]}', "--prompt", "two words $HOME *")
        self.assertEqual(self.finish(), 0)
        for rank in self.ranks():
            self.assertEqual(rank["argv"], ["--config", str(self.folder), "exit0", "--set",
                                            'a.b={"c": [1, 2]}', "--prompt", "two words $HOME *"])
            self.assertEqual(rank["cwd"], os.getcwd())

    def test_threads_are_cores_over_ranks(self):
        cores = len(os.sched_getaffinity(0))
        # A value from outside must not mislead the count of cores.
        self.start("exit0", env={**os.environ, "OMP_NUM_THREADS": "1"}, ranks=1)
        self.assertEqual(self.finish(), 0)
        (rank,) = self.ranks()
        self.assertTrue(1 <= int(rank["omp"]) <= cores, rank)
        if not Path("/sys/fs/cgroup/cpu.max").exists():
            self.assertEqual(int(rank["omp"]), cores)
        self.assertEqual(rank["wait"], "passive")

    def test_more_ranks_than_cores_get_one_thread(self):
        ranks = len(os.sched_getaffinity(0)) + 1
        if ranks > 16:
            self.skipTest("too many cores to outnumber")
        self.start("exit0", ranks=ranks)
        self.assertEqual(self.finish(), 0)
        self.assertEqual([rank["omp"] for rank in self.ranks()], ["1"] * ranks)

    def test_job_has_a_session_of_its_own(self):
        self.start("exit0")
        self.assertEqual(self.finish(), 0)
        for rank in self.ranks():
            self.assertNotEqual(rank["session"], self.job.pid)

    def check_stop(self, sent, code):
        self.start("run")
        self.ready()
        self.job.send_signal(sent)
        self.assertEqual(self.finish(), code)
        for rank in range(NUM_RANKS):
            self.assertIn("SIGUSR2", self.signals(rank))
            self.assertEqual(set(self.signals(rank)), {"SIGUSR2"})

    def test_sigterm_stops_with_143(self):
        self.check_stop(signal.SIGTERM, 143)

    def test_sigint_stops_with_130(self):
        self.check_stop(signal.SIGINT, 130)

    def test_sighup_stops_with_129(self):
        self.check_stop(signal.SIGHUP, 129)

    def test_sigusr2_stops_with_0(self):
        self.check_stop(signal.SIGUSR2, 0)

    def test_interrupt_key_reaches_the_script_only(self):
        self.start("run")
        self.ready()
        os.killpg(self.job.pid, signal.SIGINT)  # what a terminal does on ^C
        self.assertEqual(self.finish(), 130)
        for rank in range(NUM_RANKS):
            self.assertIn("SIGUSR2", self.signals(rank))

    def test_sigusr1_is_passed_on_and_the_job_goes_on(self):
        self.start("run")
        self.ready()
        for times in (1, 2):
            self.job.send_signal(signal.SIGUSR1)
            for rank in range(NUM_RANKS):
                wait_for(lambda r=rank, n=times: self.signals(r) == ["SIGUSR1"] * n, "SIGUSR1")
            self.assertIsNone(self.job.poll())
        self.job.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(), 143)

    def test_stop_during_a_slow_start_is_not_lost(self):
        self.start("late")
        wait_for(lambda: len(list(self.folder.glob("started.*"))) == NUM_RANKS, "start")
        self.job.send_signal(signal.SIGUSR1)
        self.job.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(), 143)
        for rank in range(NUM_RANKS):
            self.assertIn("SIGUSR2", self.signals(rank))

    def test_sigusr2_during_a_slow_start_is_not_lost(self):
        self.start("late")
        wait_for(lambda: len(list(self.folder.glob("started.*"))) == NUM_RANKS, "start")
        self.job.send_signal(signal.SIGUSR2)
        self.assertEqual(self.finish(), 0)

    @unittest.skipUnless(Path(f"/proc/self/task/{os.getpid()}/children").exists(),
                         "the kernel does not list children")
    def test_an_mpirun_that_hangs_after_its_ranks_is_ended(self):
        """As the real one does now and then when a rank was killed."""
        stand_in = self.folder / "mpirun"
        stand_in.write_text('#!/usr/bin/env bash\nsleep 2\ntouch "${0%/*}/alone"\n'
                            "mkfifo ${0%/*}/nobody\nread -r x <${0%/*}/nobody\n")
        stand_in.chmod(0o755)
        self.start("run", env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"})
        wait_for((self.folder / "alone").exists, "mpirun without ranks")
        start = time.monotonic()
        self.assertEqual(self.finish(), 128 + signal.SIGKILL)
        self.assertLess(time.monotonic() - start, 10)

    @unittest.skipUnless(Path(f"/proc/self/task/{os.getpid()}/children").exists(),
                         "the kernel does not list children")
    def test_an_mpirun_that_hangs_with_one_rank_left_is_ended(self):
        stand_in = self.folder / "mpirun"
        stand_in.write_text('#!/usr/bin/env bash\nsleep 60 &\necho $! >"${0%/*}/left"\nsleep 2\n'
                            'touch "${0%/*}/alone"\nmkfifo ${0%/*}/nobody\n'
                            "read -r x <${0%/*}/nobody\n")
        stand_in.chmod(0o755)
        self.start("run", env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"})
        wait_for((self.folder / "alone").exists, "mpirun with one rank")
        left = int((self.folder / "left").read_text())
        start = time.monotonic()
        self.assertEqual(self.finish(), 128 + signal.SIGKILL)
        self.assertLess(time.monotonic() - start, 10)
        try:
            state = Path(f"/proc/{left}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            state = "gone"
        self.assertIn(state, ("gone", "Z"), "the last rank still runs")

    def test_stop_at_once_leaves_nothing(self):
        self.start("run")
        time.sleep(0.05)
        self.job.send_signal(signal.SIGTERM)
        self.assertIn(self.finish(), (143, -signal.SIGTERM))  # the latter: bash had no trap yet

    def test_second_sigterm_does_not_cut_the_checkpoint_short(self):
        self.start("stubborn")
        self.ready()
        self.job.send_signal(signal.SIGTERM)
        time.sleep(2.5)
        self.job.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        self.assertIsNone(self.job.poll())
        self.job.send_signal(signal.SIGINT)  # this does
        self.assertEqual(self.finish(), 143)

    def test_failure_while_stopping_is_told(self):
        self.start("fail_on_stop")
        self.ready()
        self.job.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(), 4)

    def check_usage(self, arguments, text):
        result = subprocess.run([LAUNCH, *arguments], capture_output=True, text=True,
                                timeout=WAIT_S, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn(text, result.stderr)
        self.assertEqual(result.stdout, "")

    def test_bad_command_lines(self):
        program = ["--program", str(self.program)]
        self.check_usage([], "usage:")
        self.check_usage([*program, "2"], "usage:")
        for ranks in ("0", "two", "1.5", ""):
            with self.subTest(ranks=ranks):
                self.check_usage([*program, ranks, "c"], f'N is "{ranks}"')
        self.check_usage([*program, "-1", "c"], 'option "-1"')
        self.check_usage(["--frobnicate", "2", "c"], "--frobnicate")
        self.check_usage(["--build"], "--build needs a value")

    def test_missing_program_is_named(self):
        self.check_usage(["--build", str(self.folder), "2", "c"], f"{self.folder}/bin/train")

    def test_build_tree_is_found(self):
        (self.folder / "bin").mkdir()
        self.program.rename(self.folder / "bin" / "train")
        result = subprocess.run([LAUNCH, "--build", self.folder, "2", self.folder, "exit0"],
                                timeout=WAIT_S, check=False)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(len(self.ranks()), 2)

    def test_help(self):
        result = subprocess.run([LAUNCH, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("usage:", result.stdout)


if __name__ == "__main__":
    sys.exit(unittest.main())
