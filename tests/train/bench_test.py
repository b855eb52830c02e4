"""bin/bench as a user runs it: JSON lines with positive numbers, exit codes, nothing left behind.

usage: bench_test.py BUILD_DIR [unittest options]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from workplace import LAUNCH, ROOT, WAIT_S

BUILD = ROOT / "build"  # replaced by the first argument
CONFIG = ROOT / "configs" / "bench-cpu.json"
# Of the benchmark's own shape only the names are tested here; this one runs in no time.
SMALL = ["--set", "model.hidden=32", "--set", "model.layers=2", "--set", "moe.ffn=32",
         "--set", "data.seq=16", "--set", "train.micro_batch=2"]
TOKENS = 16 * 2
COUNTS = 2 * (32 * 64 * 4 * 2 + 2 * 32 * 2 * 64 + 2 * 3 * 32 * 32 + 32 * 16) + 320 * 32
LAYERS_HEADS_DIM = 2 * 4 * 64
RATIO_LIMIT = 4  # of a small exchange on a busy machine
NORMS = 2 * (2 * 32 + 2 * 64) + 32


class BenchTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="spillway_bench_")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def run_bench(self, *arguments, launcher=()):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder / "tmp")}
        (self.folder / "tmp").mkdir(exist_ok=True)
        result = subprocess.run([*launcher, *arguments], capture_output=True, text=True, env=env,
                                cwd=self.folder, timeout=WAIT_S, check=False)
        return result.returncode, result.stdout, result.stderr

    def bench(self, *arguments):
        return self.run_bench(str(BUILD / "bin" / "bench"), *arguments)

    def line_of(self, result):
        code, out, err = result
        self.assertEqual(code, 0, err)
        lines = out.splitlines()
        self.assertEqual(len(lines), 1, out)
        return json.loads(lines[0])

    def check_spread(self, times):
        self.assertLess(0, times["min"])
        self.assertLessEqual(times["min"], times["median"])
        self.assertLessEqual(times["median"], times["max"])

    def check_step(self, line, world):
        self.check_spread(line["step_ms"])
        seconds = line["step_ms"]["median"] / 1000
        self.assertAlmostEqual(line["tokens_per_s"] * seconds, world * TOKENS)
        for key, count in (("gflops_without_attention", COUNTS),
                           ("gflops", COUNTS + NORMS + LAYERS_HEADS_DIM * 16)):
            self.assertAlmostEqual(line[key] * seconds * 1e9 / (6 * count * world * TOKENS), 1,
                                   msg=key)
        self.assertGreater(line["mem_peak_bytes"], 0)
        self.assertTrue(line["cpu"])
        self.assertGreater(line["loss"], 3)  # random bytes: near the logarithm of 256
        self.assertEqual((line["world"], line["threads"]), (world, 1))

    def test_step(self):
        for dtype in ("f32", "bf16"):
            with self.subTest(dtype=dtype):
                line = self.line_of(self.bench("step", "--config", str(CONFIG), *SMALL, "--set",
                                               f"run.dtype={dtype}", "--steps", "2",
                                               "--warmup", "0"))
                self.assertEqual((line["bench"], line["dtype"]), ("step", dtype))
                self.check_step(line, 1)

    def test_step_of_two_ranks(self):
        program = self.folder / "bench_step"  # launch.sh gives --config first
        program.write_text(f'#!/bin/sh\nexec "{BUILD}/bin/bench" step "$@"\n')
        program.chmod(0o755)
        line = self.line_of(self.run_bench(str(LAUNCH), "--program", str(program), "2", str(CONFIG),
                                           *SMALL, "--set", "parallel.ep=2", "--steps", "2"))
        self.assertEqual(line["ep"], 2)
        self.check_step(line, 2)

    def test_a_step_leaves_nothing_behind(self):
        self.line_of(self.bench("step", "--config", str(CONFIG), *SMALL, "--steps", "1"))
        self.assertEqual([path.name for path in self.folder.rglob("*")], ["tmp"])

    def test_matmul(self):
        for dtype in ("f32", "bf16"):
            with self.subTest(dtype=dtype):
                line = self.line_of(self.bench("matmul", "--m", "64", "--n", "48", "--k", "32",
                                               "--dtype", dtype, "--repeat", "3"))
                self.assertEqual((line["bench"], line["m"], line["n"], line["k"], line["dtype"]),
                                 ("matmul", 64, 48, 32, dtype))
                self.check_spread(line["ms"])
                self.assertAlmostEqual(line["gflops"] * line["ms"]["median"] * 1e6,
                                       2 * 64 * 48 * 32, delta=1)

    def bench_of_ranks(self, ranks, *arguments):
        program = self.folder / "bench_ep"  # launch.sh gives --config first
        program.write_text(f'#!/bin/sh\nshift 2\nexec "{BUILD}/bin/bench" "$@"\n')
        program.chmod(0o755)
        return self.run_bench(str(LAUNCH), "--program", str(program), str(ranks), str(CONFIG),
                              *arguments)

    def test_ep(self):
        for dtype, element in (("f32", 4), ("bf16", 2)):
            with self.subTest(dtype=dtype):
                line = self.line_of(self.bench_of_ranks(
                    4, "ep", "--tokens", "512", "--hidden", "512", "--top-k", "2", "--experts", "8",
                    "--dtype", dtype, "--alignment", "8", "--warmup", "2", "--repeat", "9"))
                self.assertEqual((line["bench"], line["dtype"], line["world"], line["threads"]),
                                 ("ep", dtype, 4, 1))
                self.check_spread(line["ms"])
                self.check_spread(line["alltoallv_ms"])
                self.assertAlmostEqual(line["ratio"] * line["alltoallv_ms"]["median"],
                                       line["ms"]["median"])
                for phase in ("prepare", "dispatch", "combine"):
                    self.assertGreater(line[f"{phase}_ms"], 0)
                    self.assertLess(line[f"{phase}_ms"], line["ms"]["max"])
                # Rows to other ranks alone, there with a gate of 4 bytes: about 3 of 4 rows.
                rows = line["bytes_back"] // (512 * element)
                self.assertEqual(line["bytes_back"], rows * 512 * element)
                self.assertEqual(line["bytes_there"], rows * (512 * element + 4))
                self.assertLess(abs(rows / (4 * 512 * 2) - 0.75), 0.05)
                self.assertTrue(line["cpu"])
                self.assertLess(line["ratio"], RATIO_LIMIT)

    def test_ep_needs_ranks_that_share_the_experts(self):
        for ranks, arguments, named in ((1, [], "2 or more"), (2, ["--experts", "3"], "--experts"),
                                        (2, ["--experts", "2", "--top-k", "3"], "--top-k"),
                                        (2, ["--alignment", "3"], "--alignment"),
                                        (2, ["--dtype", "f16"], "--dtype")):
            with self.subTest(arguments=arguments):
                code, out, err = self.bench_of_ranks(ranks, "ep", *arguments)
                self.assertEqual((code, out), (2, ""), err)
                self.assertIn(named, err)

    def test_plan(self):
        sizes = ["--tokens", "1000", "--top-k", "4", "--experts", "32", "--ep", "4",
                 "--warmup", "1", "--repeat", "5"]
        line = self.line_of(self.bench("plan", *sizes))
        self.check_spread(line["us"])
        self.assertEqual((line["bench"], line["dropped_assignments"], line["threads"]),
                         ("plan", 0, 1))
        dropped = set()
        for order in ("tail", "fair", "random", "score"):
            with self.subTest(order=order):
                line = self.line_of(self.bench("plan", *sizes, "--skew", "1", "--capacity", "0.5",
                                               "--order", order, "--alignment", "1"))
                self.check_spread(line["us"])
                self.assertEqual(line["order"], order)
                dropped.add(line["dropped_assignments"])
        # Without padding every order fills the buffer: they lose equally many.
        self.assertEqual(len(dropped), 1)
        self.assertGreater(dropped.pop(), 0)

    def test_refuses(self):
        step = ["step", "--config", str(CONFIG)]
        for arguments, named in (([], "subcommand"), (["fly"], "subcommand"),
                                 (["step"], "--config"),
                                 ([*step, "--steps", "0"], "--steps"),
                                 ([*step, "--warmup", "-1"], "--warmup"),
                                 ([*step, "--set", "moe.topk=2"], "moe.topk"),
                                 ([*step, "--set", "model.vocab_size=100"], "model.vocab_size"),
                                 ([*step, "--set", "run.device=cuda"], "run.device"),
                                 (["step", "--config", "missing.json"], "missing.json"),
                                 (["matmul", "--m", "0"], "--m"), (["matmul", "--k", "-3"], "--k"),
                                 (["matmul", "--dtype", "f16"], "--dtype"),
                                 (["matmul", "--repeat", "x"], "--repeat"),
                                 (["ep"], "2 or more"), (["ep", "--hidden", "0"], "--hidden"),
                                 (["plan", "--order", "best"], "--order"),
                                 (["plan", "--experts", "12"], "--experts"),
                                 (["plan", "--experts", "8", "--top-k", "9"], "top_k"),
                                 (["plan", "--alignment", "3"], "alignment")):
            with self.subTest(arguments=arguments):
                code, out, err = self.bench(*arguments)
                self.assertEqual((code, out), (2, ""), err)
                self.assertEqual(len(err.splitlines()), 1, err)
                self.assertIn(named, err)


class ScriptTest(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([str(ROOT / "scripts" / "bench_cpu.sh"), *arguments],
                              capture_output=True, text=True, timeout=WAIT_S, check=False)

    def test_table_without_the_other_program(self):
        with tempfile.TemporaryDirectory(prefix="spillway_bench_") as holder:
            config = json.loads(CONFIG.read_text())
            config["model"].update(hidden=16, layers=1)
            config["data"]["seq"] = 16
            path = Path(holder) / "config.json"
            path.write_text(json.dumps(config))
            result = self.run_script("--build", str(BUILD), "--config", str(path), "--threads", "1",
                                     "--steps", "1", "--python", "/bin/false")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("no times of transformers", result.stderr)
        head, f32, bf16, machine = result.stdout.splitlines()
        self.assertIn("GFLOP/s", head)
        self.assertEqual([f32.split()[0], bf16.split()[0]], ["f32", "bf16"])
        self.assertEqual(f32.split()[-1], "-")
        self.assertIn("1 threads", machine)

    def test_bad_command_lines(self):
        for arguments in (["--frobnicate"], ["--threads"], ["--threads", "0"], ["--steps", "two"],
                          ["--build", "/nowhere"]):
            with self.subTest(arguments=arguments):
                result = self.run_script(*arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)

    def test_ratio_is_of_the_fastest_kind(self):
        lines = [{"bench": "step", "dtype": "f32", "cpu": "x", "threads": 2, "tokens_per_s": 1,
                  "step_ms": {"median": 100.0, "min": 90.0}, "gflops": 2,
                  "gflops_without_attention": 1}]
        for kind, ms in (("eager", 300.0), ("grouped_mm", 250.0), ("compile", None)):
            line = {"bench": "transformers_step", "dtype": "f32", "kind": kind}
            lines.append({**line, "step_ms": {"median": ms}} if ms else {**line, "error": "no"})
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write("\n".join(json.dumps(line) for line in lines))
            file.flush()
            table = subprocess.run([sys.executable, ROOT / "tests/benchmarks/step_table.py",
                                    file.name], capture_output=True, text=True, check=True)
        row = table.stdout.splitlines()[1]
        self.assertIn("250.0 (grouped_mm)", row)
        self.assertEqual(row.split()[-1], "2.50")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
