"""Checkpoints and resume as a user meets them: launch.sh, signals, exit codes, the run directory."""

import json
import os
import random
import shutil
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from workplace import ROOT, Workplace, of_type, read_metrics

BUILD = ROOT / "build"
STOP_S = 60  # the contract: a job that is asked to stop has ended by then
TIMES = {"step_ms", "tokens_per_s", "tflops", "epoch", "drain_ms", "finalize_ms", "init_ms",
         "alloc_ms", "write_ms", "mem_peak_bytes", "mem_peak_by_purpose", "path"}


def comparable(lines):
    """What a resumed run must write as an uninterrupted one does, bit for bit."""
    return [{key: value for key, value in line.items() if key not in TIMES}
            for line in lines if line["type"] not in ("run", "checkpoint", "warning")
            and line.get("kind") != "resume"]


def checkpoints(run_dir):
    folder = run_dir / "checkpoints"
    if not folder.exists():
        return []
    return sorted(entry.name for entry in folder.iterdir() if (entry / "COMMITTED").exists()
                  and entry.name.removeprefix("step-").isdigit())


def tensors(folder):
    """Names and bytes of all files with tensors."""
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


class ResumeCase(unittest.TestCase):
    def setUp(self):
        self.place = Workplace(BUILD)
        self.addCleanup(self.place.close)
        self.straight_dir = self.place.folder / "straight"

    def config(self, **changes):
        settings = {"parallel__ep": 2, "moe__router__bias_update_rate": 0.01,
                    "moe__router__score": "sigmoid", "capacity__policy": "peak",
                    "capacity__peak": {"window_steps": 2, "margin": 0.0, "shrink_patience": 1},
                    "capacity__warmup_steps": 1, "capacity__on_overflow": "grow",
                    "optim__schedule": "constant", "log__every": 0, **changes}
        return self.place.config(**settings)

    def finish(self, job, code=0):
        result, out, err = self.place.finish(job)
        self.assertEqual(result, code, err)
        return out, err

    def run_job(self, config, *options, ranks=2, code=0):
        return self.finish(self.place.start(ranks, config, *options), code)

    def straight(self, config, ranks=2):
        """Lines of an uninterrupted run of the same config."""
        self.run_job(config, "--run-dir", str(self.straight_dir), ranks=ranks)
        return read_metrics(self.straight_dir)

    def wait_for(self, condition, what):
        end = time.monotonic() + STOP_S
        while not condition():
            self.assertLess(time.monotonic(), end, f"waited {STOP_S} s for {what}")
            time.sleep(0.01)

    def steps_so_far(self):
        path = self.place.run_dir / "metrics.jsonl"
        return path.read_text().count('"type":"step"') if path.exists() else 0

    def assert_same_run(self, straight):
        self.assertEqual(comparable(read_metrics(self.place.run_dir)), comparable(straight))


class ResumeTest(ResumeCase):
    def test_two_halves_are_the_whole(self):
        whole = self.config(train__steps=9, checkpoint__every=3, train__eval_every=4,
                            data__valid=[str(self.place.folder / "text.txt")],
                            train__eval_steps=2)
        straight = self.straight(whole)
        self.run_job(self.config(**{"train__steps": 5, "checkpoint__every": 3,
                                    "train__eval_every": 4, "train__eval_steps": 2,
                                    "data__valid": [str(self.place.folder / "text.txt")]}))
        # Also written after the last step; keep is 2.
        self.assertEqual(checkpoints(self.place.run_dir), ["step-00000003", "step-00000005"])
        # The evaluation after step 5 belongs to a run of 5 steps.
        lines = [json.dumps(line, separators=(",", ":")) for line in
                 read_metrics(self.place.run_dir)
                 if not (line["type"] == "eval" and line["step"] == 5)]
        (self.place.run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        self.run_job(whole, "--resume", "auto")
        runs = of_type(read_metrics(self.place.run_dir), "run")
        self.assertEqual([line["resumed_from"] for line in runs], [None, 5])
        # The resumed session is a new epoch of the same run.
        epochs = {step: {line["epoch"] for line in of_type(read_metrics(self.place.run_dir), "ep")
                         if line["step"] == step} for step in (5, 6)}
        self.assertGreater(min(epochs[6]), max(epochs[5]))
        self.assert_same_run(straight)
        last = "checkpoints/step-00000009"
        self.assertEqual(tensors(self.place.run_dir / last), tensors(self.straight_dir / last))

    def test_lines_beyond_the_checkpoint_are_made_again(self):
        config = self.config(train__steps=8, checkpoint__every=4)
        self.run_job(config)
        before = read_metrics(self.place.run_dir)
        # As if the job had died in step 8, in the middle of a line.
        shutil.rmtree(self.place.run_dir / "checkpoints" / "step-00000008")
        path = self.place.run_dir / "metrics.jsonl"
        path.write_text(path.read_text()[:-40])
        self.run_job(config, "--resume", "auto")
        after = read_metrics(self.place.run_dir)
        self.assertEqual(comparable(after), comparable(before))
        self.assertEqual(of_type(after, "run")[1]["resumed_from"], 4)

    def test_from_an_earlier_checkpoint(self):
        config = self.config(train__steps=8, checkpoint__every=2, checkpoint__keep=4)
        self.run_job(config)
        before = read_metrics(self.place.run_dir)
        chosen = self.place.run_dir / "checkpoints" / "step-00000004"
        self.run_job(config, "--resume", str(chosen))
        self.assertEqual(comparable(read_metrics(self.place.run_dir)), comparable(before))
        names = {entry.name for entry in (self.place.run_dir / "checkpoints").iterdir()}
        # What the second life would have overwritten is still there.
        self.assertLessEqual({"step-00000006.superseded", "step-00000008.superseded"}, names)
        self.assertEqual(tensors(self.place.run_dir / "checkpoints" / "step-00000008"),
                         tensors(self.place.run_dir / "checkpoints" / "step-00000008.superseded"))

    def test_into_another_run_directory(self):
        config = self.config(train__steps=6, checkpoint__every=3)
        straight = self.straight(config)
        self.run_job(config, "--resume", str(self.straight_dir / "checkpoints" / "step-00000003"))
        lines = read_metrics(self.place.run_dir)
        self.assertEqual([line["step"] for line in of_type(lines, "step")], [4, 5, 6])
        self.assertEqual(comparable(lines),
                         comparable([line for line in straight if line.get("step", 0) > 3]))

    def test_a_run_directory_names_its_newest(self):
        config = self.config(train__steps=6, checkpoint__every=3)
        self.run_job(config, "--run-dir", str(self.straight_dir))
        more = self.config(train__steps=7)
        self.run_job(more, "--resume", str(self.straight_dir))
        self.assertEqual(of_type(read_metrics(self.place.run_dir), "run")[0]["resumed_from"], 6)

    def test_auto_without_a_checkpoint_starts(self):
        config = self.config(train__steps=3)
        self.run_job(config, "--resume", "auto")
        first = read_metrics(self.place.run_dir)
        self.assertEqual(of_type(first, "run")[0]["resumed_from"], None)
        self.run_job(config, "--resume", "auto")
        self.assertEqual(comparable(read_metrics(self.place.run_dir)), comparable(first))

    def test_a_finished_run_stays_finished(self):
        config = self.config(train__steps=4, checkpoint__every=2)
        self.run_job(config)
        before = comparable(read_metrics(self.place.run_dir))
        out, _ = self.run_job(config, "--resume", "auto")
        self.assertIn("Nothing was left to train", out)
        self.assertEqual(comparable(read_metrics(self.place.run_dir)), before)

    def test_other_policy_starts_afresh_with_a_warning(self):
        self.run_job(self.config(train__steps=4, checkpoint__every=4))
        self.run_job(self.config(train__steps=6, capacity__policy="worst_case"),
                     "--resume", "auto")
        lines = read_metrics(self.place.run_dir)
        self.assertTrue(any("worst_case" in line["message"] for line in of_type(lines, "warning")))
        resumed = [line for line in of_type(lines, "reconfigure") if line["kind"] == "resume"]
        for line in resumed:
            self.assertEqual(line["step"], 4)
        steps = [line for line in of_type(lines, "ep_step") if line["step"] > 4]
        self.assertTrue(steps)
        held = {line["layer"]: line["new_capacity"] for line in resumed}
        for line in steps:
            if line["layer"] in held:
                self.assertEqual(line["capacity"], held[line["layer"]])

    def test_other_world_goes_on(self):
        self.run_job(self.config(train__steps=4, checkpoint__every=4), ranks=2)
        config = self.config(train__steps=6, train__micro_batch=2, parallel__ep=1)
        self.run_job(config, "--resume", "auto", ranks=1)
        lines = read_metrics(self.place.run_dir)
        self.assertEqual([line["step"] for line in of_type(lines, "step")], [1, 2, 3, 4, 5, 6])
        warnings = " ".join(line["message"] for line in of_type(lines, "warning"))
        self.assertIn("to rounding", warnings)
        self.assertIn("train.micro_batch was 1", warnings)
        self.assertIn("other tokens together", warnings)  # of the switch loss

    def test_failure_leaves_the_checkpoint(self):
        good = self.config(train__steps=3, checkpoint__every=3)
        straight = self.straight(self.config(train__steps=5))
        self.run_job(good)
        saved = tensors(self.place.run_dir / "checkpoints" / "step-00000003")
        bad = self.config(train__steps=5, capacity__policy="fixed",
                          capacity__fixed={"slots": 8}, capacity__on_overflow="fail")
        self.run_job(bad, "--resume", "auto", code=3)
        self.assertEqual(tensors(self.place.run_dir / "checkpoints" / "step-00000003"), saved)
        self.run_job(self.config(train__steps=5), "--resume", "auto")
        self.assert_same_run(straight)


class RefusalTest(ResumeCase):
    def setUp(self):
        super().setUp()
        self.settings = {"train__steps": 4, "checkpoint__every": 2}
        self.run_job(self.config(**self.settings))
        self.newest = self.place.run_dir / "checkpoints" / "step-00000004"
        self.metrics = (self.place.run_dir / "metrics.jsonl").read_bytes()

    def refuse(self, code, words, *options, config=None, ranks=2):
        result, _, err = self.place.run(ranks, config or self.config(**self.settings), *options)
        self.assertEqual(result, code, err)
        errors = [line for line in err.splitlines() if not line.startswith("[")
                  or line.startswith("[rank")]
        self.assertEqual(len(errors), 1, err)
        self.assertLess(len(errors[0]), 400, err)
        for word in words:
            self.assertIn(word, errors[0])

    def test_without_resume(self):
        self.refuse(2, ["run.dir", "--resume"])
        self.assertEqual((self.place.run_dir / "metrics.jsonl").read_bytes(), self.metrics)

    def test_another_config(self):
        for key, value, shown in (("model__hidden", 32, "model.hidden 16 -> 32"),
                                  ("optim__lr", 0.5, "optim.lr 0.002 -> 0.5"),
                                  ("run__seed", 9, "run.seed 1 -> 9"),
                                  ("moe__experts", 4, "moe.experts 8 -> 4")):
            with self.subTest(key):
                self.refuse(2, [shown, "train.steps"], "--resume", "auto",
                            config=self.config(**self.settings, **{key: value}))
        self.assertEqual((self.place.run_dir / "metrics.jsonl").read_bytes(), self.metrics)

    def test_fewer_steps_than_done(self):
        self.refuse(2, ["train.steps", "4"], "--resume", "auto",
                    config=self.config(train__steps=3))

    def test_another_global_batch(self):
        self.refuse(2, ["train.micro_batch"], "--resume", "auto", ranks=4)

    def test_a_damaged_earlier_one_leaves_the_later(self):
        earlier = self.newest.with_name("step-00000002")
        path = next(earlier.glob("optimizer-00001*"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        self.refuse(4, [path.name], "--resume", str(earlier))
        self.assertEqual(checkpoints(self.place.run_dir), [earlier.name, self.newest.name])
        self.assertEqual((self.place.run_dir / "metrics.jsonl").read_bytes(), self.metrics)

    def test_nowhere(self):
        self.refuse(4, ["nowhere"], "--resume", str(self.place.folder / "nowhere"))
        (self.place.folder / "empty").mkdir()
        self.refuse(4, ["empty"], "--resume", str(self.place.folder / "empty"))

    def test_every_file_is_guarded(self):
        """Truncated, one bit turned, missing: each file of the checkpoint, never a silent load."""
        rng = random.Random(5)
        whole = self.place.folder / "whole"
        shutil.copytree(self.newest, whole)
        files = sorted(path.name for path in whole.iterdir())
        self.assertGreaterEqual(len(files), 5)
        for name in files:
            for damage in ("truncated", "flipped", "missing"):
                with self.subTest(file=name, damage=damage):
                    shutil.rmtree(self.newest)
                    shutil.copytree(whole, self.newest)
                    path = self.newest / name
                    data = bytearray(path.read_bytes())
                    if damage == "truncated":
                        path.write_bytes(data[:len(data) // 2])
                    elif damage == "flipped":
                        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                        path.write_bytes(data)
                    else:
                        path.unlink()
                    self.refuse(4, [], "--resume", str(self.newest))
        shutil.rmtree(self.newest)
        shutil.copytree(whole, self.newest)
        self.run_job(self.config(**self.settings), "--resume", str(self.newest))


class SignalTest(ResumeCase):
    def stop_and_go_on(self, sent, code, settings, wait):
        """Stops a job by a signal at launch.sh, then goes on and compares with an unstopped run."""
        config = self.config(**settings)
        if not self.straight_dir.exists():
            self.straight(config)
        straight = read_metrics(self.straight_dir)
        job = self.place.start(2, config)
        wait()
        start = time.monotonic()
        job.send_signal(sent)
        self.finish(job, code)
        self.assertLess(time.monotonic() - start, STOP_S)
        stopped_after = self.steps_so_far()
        self.assertIn(f"step-{stopped_after:08d}", checkpoints(self.place.run_dir))
        self.run_job(config, "--resume", "auto")
        self.assert_same_run(straight)
        return stopped_after

    STOPS = ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR2, 0))

    def each_stop(self, settings, wait):
        for sent, code in self.STOPS:
            with self.subTest(signal=sent.name):
                shutil.rmtree(self.place.run_dir, ignore_errors=True)
                self.stop_and_go_on(sent, code, settings, wait)

    def test_stop_in_training(self):
        self.each_stop({"train__steps": 120},
                       lambda: self.wait_for(lambda: self.steps_so_far() >= 3, "3 steps"))

    def test_stop_in_evaluation(self):
        # The only evaluation is the one after the last step, and it takes most of the time.
        settings = {"train__steps": 2, "train__eval_steps": 300,
                    "data__valid": [str(self.place.folder / "text.txt")]}
        self.each_stop(settings,
                       lambda: self.wait_for(lambda: self.steps_so_far() == 2, "2 steps"))

    def test_stop_while_a_checkpoint_is_written(self):
        # One after every step: that is where nearly all the time goes.
        self.each_stop({"train__steps": 30, "checkpoint__every": 1},
                       lambda: self.wait_for(self.in_a_write, "a checkpoint in the making"))

    def in_a_write(self):
        return any(not (folder / "COMMITTED").exists()
                   for folder in self.place.run_dir.glob("checkpoints/step-*"))

    def test_sigusr1_while_a_checkpoint_is_written(self):
        config = self.config(train__steps=20, checkpoint__every=2)
        straight = self.straight(config)
        job = self.place.start(2, config)
        self.wait_for(self.in_a_write, "a checkpoint in the making")
        job.send_signal(signal.SIGUSR1)
        self.finish(job)
        self.assert_same_run(straight)
        # One more than the periodic ones, unless it fell on one of them.
        written = of_type(read_metrics(self.place.run_dir), "checkpoint")
        self.assertIn(len(written), (10, 11))

    def test_sigusr1_in_evaluation(self):
        config = self.config(train__steps=1, train__eval_steps=300,
                             data__valid=[str(self.place.folder / "text.txt")])
        job = self.place.start(2, config)
        self.wait_for(lambda: self.steps_so_far() == 1, "a step")
        job.send_signal(signal.SIGUSR1)
        self.finish(job)
        self.assertEqual(checkpoints(self.place.run_dir), ["step-00000001"])
        self.assertEqual(len(of_type(read_metrics(self.place.run_dir), "eval")), 1)

    def test_sigusr1_writes_and_goes_on(self):
        config = self.config(train__steps=100000)
        job = self.place.start(2, config)
        self.wait_for(lambda: self.steps_so_far() >= 2, "2 steps")
        job.send_signal(signal.SIGUSR1)
        self.wait_for(lambda: checkpoints(self.place.run_dir), "a checkpoint")
        seen = self.steps_so_far()
        self.wait_for(lambda: self.steps_so_far() >= seen + 5, "5 more steps")
        job.send_signal(signal.SIGTERM)
        self.finish(job, 143)
        lines = of_type(read_metrics(self.place.run_dir), "checkpoint")
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertTrue((Path(line["path"]) / "COMMITTED").exists())
            self.assertGreater(line["bytes"], 0)

    def test_directory_in_use(self):
        job = self.place.start(2, self.config(train__steps=100000))
        self.wait_for(lambda: self.steps_so_far() >= 1, "a step")
        other = self.place.start(1, self.config(parallel__ep=1), "--resume", "auto")
        _, err = other.communicate(timeout=STOP_S)
        self.assertEqual(other.returncode, 2)
        self.assertIn("in use", err)
        job.send_signal(signal.SIGTERM)
        self.finish(job, 143)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
