"""The trainer as a user runs it, through scripts/launch.sh: exit codes, metrics, messages, signals.

usage: train_program_test.py BUILD_DIR [unittest options]
"""

import os
import re
import signal
import sys
import time
import unittest
from pathlib import Path

from ep_identities import check_ep_line
from workplace import (EXPERTS, FIELDS, LAYERS, MICRO, ROOT, SEQ, STEPS, WAIT_S, Workplace, of_type,
                       read_metrics)

BUILD = ROOT / "build"  # replaced by the first argument
MAX_LINE = 300  # of an error of the config or the command line
WORLD, EP, DP, ACCUM = 4, 2, 2, 2  # of the good run

SAVE_NAMES = ["routing", "dispatch", "router", "expert_up", "expert_act", "attention"]
PURPOSES = {"weights", "gradients", "optimizer", "activations", "receive", "workspace", "data"}
TIME_FIELDS = {"step_ms", "tokens_per_s", "tflops"}


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.place = Workplace(BUILD)
        self.addCleanup(self.place.close)

    def wait_for(self, condition, what):
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.02)
        self.fail(f"no {what} after {WAIT_S} s")

    def wait_for_steps(self, steps):
        path = self.place.run_dir / "metrics.jsonl"
        self.wait_for(lambda: path.exists() and path.read_text().count('"type":"step"') >= steps,
                      f"{steps} steps")


class GoodRunTest(unittest.TestCase):
    """Two jobs of one config on 4 ranks, ep 2 x dp 2, with drops and evaluation."""

    @classmethod
    def setUpClass(cls):
        cls.place = Workplace(BUILD)
        cls.addClassCleanup(cls.place.close)
        cls.config = cls.place.config(
            parallel__ep=EP, train__grad_accum=ACCUM, train__eval_every=2, train__eval_steps=2,
            data__valid=[str(cls.place.folder / "text.txt")], capacity__policy="factor",
            capacity__factor={"factor": 1.0}, capacity__on_overflow="drop")
        cls.results, cls.lines = [], []
        for i in range(2):
            folder = cls.place.folder / f"run{i}"
            cls.results.append(cls.place.run(WORLD, cls.config, "--run-dir", str(folder)))
            cls.lines.append(read_metrics(folder) if cls.results[-1][0] == 0 else [])

    def test_exit_code_and_summary(self):
        for code, out, err in self.results:
            self.assertEqual(code, 0, err)
            self.assertIn(f"Trained {STEPS} steps", out)
            self.assertIn("Held-out loss", out)
            self.assertIn(f"step {STEPS}/{STEPS}", err)
            self.assertNotIn("rror", err)

    def test_every_line_of_every_step_in_order(self):
        step_lines = (["step"] + ["ep"] * (ACCUM * LAYERS) + ["ep_step"] * LAYERS + ["counters"])
        expected = ["run"]
        for step in range(1, STEPS + 1):
            expected += step_lines + (["eval"] if step % 2 == 0 else [])
        self.assertEqual([line["type"] for line in self.lines[0]], expected)
        steps = [line["step"] for line in self.lines[0][1:]]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(set(steps), set(range(1, STEPS + 1)))

    def test_documented_fields(self):
        for line in self.lines[0]:
            missing = FIELDS[line["type"]] - line.keys()
            self.assertFalse(missing, f"{line['type']} lacks {missing}")

    def test_run_line(self):
        run = self.lines[0][0]
        self.assertEqual((run["world"], run["ep"], run["dp"]), (WORLD, EP, DP))
        self.assertEqual(run["device"], "cpu")
        self.assertIsNone(run["resumed_from"])
        self.assertGreaterEqual(run["threads"], 1)
        self.assertGreater(run["parameters"]["total"], run["parameters"]["active"])
        # The resolved config: what was given, and what was not.
        self.assertEqual(run["config"]["moe"]["experts"], EXPERTS)
        self.assertEqual(run["config"]["run"]["dir"], str(self.place.folder / "run0"))
        self.assertEqual(run["config"]["capacity"]["eval"], "lossless")

    def test_step_lines(self):
        for line in of_type(self.lines[0], "step"):
            self.assertEqual(line["tokens"], WORLD * MICRO * ACCUM * SEQ)
            self.assertTrue(3.0 < line["loss"] < 7.0, line)
            self.assertGreaterEqual(line["aux_loss"], 1.0)
            self.assertGreater(line["z_loss"], 0.0)
            self.assertGreater(line["grad_norm"], 0.0)
            by_purpose = line["mem_peak_by_purpose"]
            self.assertEqual(set(by_purpose), PURPOSES)
            self.assertTrue(all(size > 0 for size in by_purpose.values()), by_purpose)
            # Each is a peak of its own, so that together they are no less than that of the sum.
            self.assertTrue(max(by_purpose.values()) < line["mem_peak_bytes"]
                            <= sum(by_purpose.values()), line)
            self.assertEqual(line["saved_bytes"], dict.fromkeys(SAVE_NAMES, 0), "there is no region")
            self.assertIsNone(line["mfu"])
            self.assertIs(line["skipped"], False)
        steps = of_type(self.lines[0], "step")
        self.assertLess(steps[-1]["loss"], steps[0]["loss"])
        self.assertEqual(steps[0]["lr"], 0.002)
        self.assertEqual(steps[-1]["lr"], 0.0002)

    def test_identities_of_every_ep_line(self):
        lines = of_type(self.lines[0], "ep")
        self.assertEqual({(line["step"], line["micro_batch"], line["layer"]) for line in lines},
                         {(s, m, layer) for s in range(1, STEPS + 1) for m in range(ACCUM)
                          for layer in range(LAYERS)})
        for line in lines:
            with self.subTest(step=line["step"], m=line["micro_batch"], layer=line["layer"]):
                check_ep_line(self, line, EP, DP)
        self.assertGreater(sum(sum(line["dropped_assignments"]) for line in lines), 0,
                           "no drop in the whole run")

    def test_ep_step_lines_sum_up_the_ep_lines(self):
        for line in of_type(self.lines[0], "ep_step"):
            parts = [ep for ep in of_type(self.lines[0], "ep")
                     if (ep["step"], ep["layer"]) == (line["step"], line["layer"])]
            self.assertEqual(line["max_total_recv_tokens"],
                             max(max(ep["total_recv_tokens"]) for ep in parts))
            self.assertEqual(line["dropped_assignments"],
                             sum(sum(ep["dropped_assignments"]) for ep in parts))
            self.assertEqual(line["capacity"], parts[0]["capacity"])
            self.assertEqual(line["grow_events"], 0)

    def test_counters_follow_the_contract(self):
        calls = LAYERS * ACCUM
        for line in of_type(self.lines[0], "counters"):
            self.assertEqual(line["prepares"], calls)
            self.assertEqual(line["fused_prepares"], 0)
            self.assertEqual(line["forward_dispatches"], calls)
            self.assertEqual(line["combines"], calls)
            self.assertEqual(line["backward_transports"], 2 * calls)
            self.assertEqual(line["host_syncs"], calls)
            self.assertGreater(line["all_to_all_bytes"], 0)
            self.assertEqual(line["backward"]["backward_transports"], 2 * calls)
            self.assertEqual(line["backward"]["prepares"], 0)
            self.assertEqual(line["avoided"], dict.fromkeys(line["backward"], 0))
            self.assertEqual(2 * line["backward"]["all_to_all_bytes"], line["all_to_all_bytes"])

    def test_eval_lines(self):
        lines = of_type(self.lines[0], "eval")
        self.assertEqual([line["step"] for line in lines], [2, 4])
        for line in lines:
            self.assertEqual(line["tokens"], 2 * WORLD * MICRO * ACCUM * SEQ)
            self.assertEqual(line["dropped_assignments"], 0)
        self.assertLess(lines[1]["loss"], lines[0]["loss"])

    def test_the_same_seed_gives_the_same_numbers(self):
        runs = []
        for lines in self.lines:
            kept = [{key: value for key, value in line.items() if key not in TIME_FIELDS}
                    for line in lines[1:]]
            runs.append(kept)
        self.assertEqual(runs[0], runs[1])


class AdaptiveRunTest(ProgramTest):
    def test_peak_grows_shrinks_and_says_so(self):
        config = self.place.config(
            parallel__ep=2, train__steps=8, capacity__policy="peak",
            capacity__peak={"window_steps": 2, "margin": 0.0, "shrink_patience": 1},
            capacity__on_overflow="grow", capacity__initial={"factor": 0.5},
            capacity__warmup_steps=2, capacity__grow_margin=0.0)
        code, out, err = self.place.run(2, config)
        self.assertEqual(code, 0, err)
        lines = read_metrics(self.place.run_dir)
        records = of_type(lines, "reconfigure")
        self.assertEqual({record["kind"] for record in records}, {"grow", "policy"})
        for record in records:
            self.assertFalse(FIELDS["reconfigure"] - record.keys())
            self.assertNotEqual(record["old_capacity"], record["new_capacity"])
            self.assertEqual(record["micro_batch"] is None, record["kind"] == "policy")
            self.assertTrue(record["reason"])
        grown = [record for record in records if record["kind"] == "grow"]
        self.assertEqual(sum(line["grow_events"] for line in of_type(lines, "ep_step")),
                         len(grown))
        self.assertEqual(sum(sum(line["dropped_assignments"]) for line in of_type(lines, "ep")), 0)
        # The capacity of a step is where the records of the steps before have led it.
        held = {layer: next(line["capacity"] for line in of_type(lines, "ep_step")
                            if line["layer"] == layer) for layer in range(LAYERS)}
        for line in lines:
            if line["type"] == "ep_step":
                self.assertEqual(line["capacity"], held[line["layer"]])
            elif line["type"] == "reconfigure":
                held[line["layer"]] = line["new_capacity"]
        self.assertIn("Buffers grew", out)


class BadConfigTest(ProgramTest):
    def check_refusal(self, result, path):
        code, out, err = result
        self.assertEqual(code, 2, err)
        self.assertEqual(out, "")
        lines = err.splitlines()
        self.assertEqual(len(lines), 1, err)
        self.assertLess(len(lines[0]), MAX_LINE)
        self.assertIn(path, lines[0])
        self.assertFalse(self.place.run_dir.exists(), "something was made")

    def test_missing_config_file(self):
        job = self.place.start_file(2, self.place.folder / "nowhere.json")
        self.check_refusal(self.place.finish(job), "nowhere.json")

    def test_experts_must_divide(self):
        self.check_refusal(self.place.run(3, self.place.config(parallel__ep=3)), "parallel.ep")

    def test_run_directory_with_metrics(self):
        self.place.run_dir.mkdir()
        (self.place.run_dir / "metrics.jsonl").write_text("{}\n")
        code, _, err = self.place.run(2, self.place.config())
        self.assertEqual(code, 2)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn("run.dir", err)
        self.assertEqual((self.place.run_dir / "metrics.jsonl").read_text(), "{}\n")

    def test_help_is_no_error(self):
        code, out, err = self.place.run(2, self.place.config(), "--help")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("--validate", out)
        self.assertEqual(out.count("Usage:"), 1, "told once")


class FailureTest(ProgramTest):
    def errors(self, err):
        """What is said on stderr besides the log."""
        return [line for line in err.splitlines() if not re.match(r"\[\d\d:\d\d:\d\d\]", line)]

    def test_missing_data_is_4(self):
        config = self.place.config(data__train=[str(self.place.folder / "nowhere.txt")])
        code, _, err = self.place.run(2, config)
        self.assertEqual(code, 4)
        errors = self.errors(err)
        self.assertEqual(len(errors), 1, err)
        self.assertRegex(errors[0], r"^\[rank [01]\] .*nowhere\.txt")

    def test_too_little_data_is_4(self):
        (self.place.folder / "short.txt").write_text("short")
        config = self.place.config(data__train=[str(self.place.folder / "short.txt")])
        code, _, err = self.place.run(1, config)
        self.assertEqual(code, 4)
        self.assertEqual(len(self.errors(err)), 1, err)

    def test_overflow_with_fail_is_3(self):
        config = self.place.config(parallel__ep=2, capacity__policy="fixed",
                                   capacity__fixed={"slots": 16}, capacity__on_overflow="fail")
        code, _, err = self.place.run(4, config)
        self.assertEqual(code, 3)
        errors = self.errors(err)
        self.assertEqual(len(errors), 1, err)
        match = re.fullmatch(
            r"\[rank (\d)\] OverflowError: layer 0 rank (\d) demand (\d+) slots capacity 16 slots, "
            r"smallest that fits (\d+): set capacity\.fixed\.slots", errors[0])
        self.assertIsNotNone(match, errors[0])
        speaker, rank, demand, smallest = map(int, match.groups())
        self.assertEqual(speaker // 2, rank // 2, "a rank of the group that overflowed")
        self.assertGreater(demand, 16)
        self.assertEqual(smallest, demand)
        self.assertTrue((self.place.run_dir / "fatal").exists())
        # What it names does fit this step's buffer, and an overflow elsewhere asks for more.
        self.assertEqual(of_type(read_metrics(self.place.run_dir), "step"), [])

    def test_divergence_is_6(self):
        config = self.place.config(optim__lr=1e30, optim__min_lr=1e30, optim__warmup_steps=0,
                                   optim__schedule="constant", train__steps=20)
        code, _, err = self.place.run(2, config)
        self.assertEqual(code, 6, err)
        errors = self.errors(err)
        self.assertEqual(len(errors), 1, err)
        self.assertIn("train.on_nonfinite", errors[0])
        # The steps before are on file.
        self.assertGreaterEqual(len(of_type(read_metrics(self.place.run_dir), "step")), 1)

    def test_killed_rank_leaves_nothing(self):
        job = self.place.start(4, self.place.config(parallel__ep=2, train__steps=100000,
                                                    log__every=0))
        self.wait_for_steps(2)
        self.assertEqual(len(self.place.ranks()), 4)
        os.kill(self.place.ranks()[2], signal.SIGKILL)
        code, _, _ = self.place.finish(job)
        self.assertEqual(code, 128 + signal.SIGKILL)


class SignalTest(ProgramTest):
    def check_stop(self, sent, code, **changes):
        settings = {"parallel__ep": 2, "train__steps": 100000, "log__every": 0, **changes}
        job = self.place.start(2, self.place.config(**settings))
        self.wait_for_steps(2)
        job.send_signal(sent)
        result, out, err = self.place.finish(job)
        self.assertEqual(result, code, err)
        lines = read_metrics(self.place.run_dir)
        steps = of_type(lines, "step")
        last = steps[-1]["step"]
        self.assertEqual([line["step"] for line in steps], list(range(1, last + 1)))
        self.assertLess(last, 100000)
        # The last step is complete.
        self.assertEqual([line["step"] for line in of_type(lines, "counters")],
                         list(range(1, last + 1)))
        self.assertEqual(len(of_type(lines, "ep")), last * LAYERS)
        self.assertIn(f"Trained {last} steps", out)
        # An evaluation that was cut short has no line: all are of the same text.
        self.assertLessEqual(len({line["tokens"] for line in of_type(lines, "eval")}), 1)
        self.assertNotIn("For comparison", out, "the whole text was read after the signal")

    def test_sigterm_is_143(self):
        self.check_stop(signal.SIGTERM, 143)

    def test_sigint_is_130(self):
        self.check_stop(signal.SIGINT, 130)

    def test_sigusr2_is_0(self):
        self.check_stop(signal.SIGUSR2, 0)

    def test_stop_in_evaluation(self):
        # Nearly all the time goes into evaluation here.
        self.check_stop(signal.SIGTERM, 143, train__eval_every=1, train__eval_steps=300,
                        data__valid=[str(self.place.folder / "text.txt")])

    def test_sigusr1_goes_on(self):
        job = self.place.start(2, self.place.config(train__steps=100000, log__every=0))
        self.wait_for_steps(1)
        job.send_signal(signal.SIGUSR1)
        seen = read_metrics(self.place.run_dir)[-1]["step"]
        self.wait_for_steps(seen + 20)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(self.place.finish(job)[0], 143)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
