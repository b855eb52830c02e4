"""SIGKILL to a random rank at a random moment, checkpoint writes included: the last committed
checkpoint always loads, and the run ends as one that nobody killed. `kill_test.py BUILD [KILLS]`."""

import os
import random
import shutil
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import resume_program_test as shared
from workplace import ROOT, of_type, read_metrics

KILLS = 8  # in the test suite; by hand: 200
STEPS = 24
AROUND_A_WRITE_S = 0.06  # a write takes a few ms, a step with one about 30


class KillTest(shared.ResumeCase):
    def folders(self):
        """Names in the folder of checkpoints: a new one is a checkpoint that is being written."""
        return {path.name for path in self.place.run_dir.glob("checkpoints/step-*")}

    @staticmethod
    def sleep(job, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and job.poll() is None:
            time.sleep(0.0005)

    def life(self, config, ranks, span):
        """One start of the job, killed within `span` seconds or finished. Returns its state."""
        job = self.place.start(ranks, config, "--resume", "auto")
        # Half of the moments lie anywhere in the life, the others around a checkpoint of its own:
        # starting takes longer than the training here.
        if self.rng.random() < 0.5:
            self.sleep(job, self.rng.uniform(0, span))
        else:
            before = self.folders()
            end = time.monotonic() + shared.STOP_S
            while self.folders() <= before and job.poll() is None and time.monotonic() < end:
                time.sleep(0.0005)
            self.sleep(job, self.rng.uniform(0, AROUND_A_WRITE_S))
        # A process that has not become a rank yet, or is gone already, is not there to be killed.
        alive = self.place.ranks()
        writing = any(not (folder / "COMMITTED").exists()
                      for folder in self.place.run_dir.glob("checkpoints/step-*"))
        if job.poll() is None and len(alive) == ranks:
            os.kill(self.rng.choice(alive), signal.SIGKILL)
            code, _, err = self.place.finish(job)
            self.assertIn(code, (128 + signal.SIGKILL, 0), err)
            return ("killed" if code else "finished"), writing
        code, _, err = self.place.finish(job)
        self.assertEqual(code, 0, err)
        return "finished", False

    def one_run(self, ranks, kills_left, settings):
        config = self.config(train__steps=STEPS, checkpoint__every=2, checkpoint__keep=2,
                             **settings)
        straight_dir = self.place.folder / f"straight{ranks}{settings}"
        if not straight_dir.exists():
            start = time.monotonic()
            self.run_job(config, "--run-dir", str(straight_dir), ranks=ranks)
            self.spans[str(straight_dir)] = time.monotonic() - start
        span = self.spans[str(straight_dir)]
        straight = read_metrics(straight_dir)
        shutil.rmtree(self.place.run_dir, ignore_errors=True)
        kills = in_write = 0
        while True:
            if kills >= kills_left:
                self.run_job(config, "--resume", "auto", ranks=ranks)
                break
            ending, writing = self.life(config, ranks, span)
            # Whatever happened, what is committed is sound: the next start goes on from it.
            if ending == "finished":
                break
            kills += 1
            in_write += writing
        self.assertEqual(shared.comparable(read_metrics(self.place.run_dir)),
                         shared.comparable(straight))
        last = f"checkpoints/step-{STEPS:08d}"
        self.assertEqual(shared.tensors(self.place.run_dir / last),
                         shared.tensors(straight_dir / last))
        resumed = [line["resumed_from"] for line in of_type(read_metrics(self.place.run_dir), "run")]
        return kills, in_write, [step for step in resumed if step]

    def test_killed_at_random_moments(self):
        self.rng = random.Random(int(os.environ.get("SPILLWAY_TEST_SEED", "3")))
        self.spans = {}
        kills = in_write = 0
        resumed = []
        variants = [(2, {}), (2, {"parallel__zero": 1, "parallel__ep": 1}),
                    (1, {"parallel__ep": 1}), (4, {"parallel__zero": 1})]
        runs = 0
        while kills < KILLS:
            ranks, settings = variants[runs % len(variants)]
            more, writes, steps = self.one_run(ranks, KILLS - kills, settings)
            kills, in_write, runs = kills + more, in_write + writes, runs + 1
            resumed += steps
        print(f"{kills} kills in {runs} runs, {in_write} of them during a checkpoint write; "
              f"{len(resumed)} lives resumed from a checkpoint", flush=True)
        self.assertTrue(resumed, "no life went on from a checkpoint")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        shared.BUILD = Path(sys.argv.pop(1)).resolve()
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        KILLS = int(sys.argv.pop(1))
    unittest.main()
