"""Memory as a user sees it: what --validate says before a run, what the metrics say of one.

usage: memory_program_test.py BUILD_DIR [unittest options]
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path

from workplace import EXPERTS, LAYERS, ROOT, STEPS, Workplace, of_type, read_metrics

BUILD = ROOT / "build"  # replaced by the first argument


class MemoryTest(unittest.TestCase):
    def setUp(self):
        self.place = Workplace(BUILD)
        self.addCleanup(self.place.close)


class ZeroTest(MemoryTest):
    """Optimizer state in the metrics: master, m and v are 12 bytes a parameter of a bf16 model; of a
    f32 model the master is the weight itself, so 8 are left."""

    def optimizer_bytes(self, **changes):
        config = self.place.config(model__hidden=64, moe__ffn=48, train__steps=2, **changes)
        shutil.rmtree(self.place.run_dir, ignore_errors=True)
        code, _, err = self.place.run(4, config)
        self.assertEqual(code, 0, err)
        lines = read_metrics(self.place.run_dir)
        parameters = of_type(lines, "run")[0]["parameters"]["total"]
        return of_type(lines, "step")[-1]["mem_peak_by_purpose"]["optimizer"], parameters

    def test_state_is_shared_out(self):
        experts = 3 * EXPERTS * 64 * 48 * LAYERS
        for dtype, state in (("bf16", 12), ("f32", 8)):
            for ep in (1, 2, 4):
                dp = 4 // ep
                with self.subTest(dtype=dtype, ep=ep):
                    held, parameters = self.optimizer_bytes(
                        run__dtype=dtype, parallel__zero=1, parallel__ep=ep)
                    # Dense over the world, a rank's experts over its dp group.
                    wanted = state * ((parameters - experts) / 4 + experts / ep / dp)
                    self.assertLess(abs(held / wanted - 1), 0.01, f"{held} bytes, not {wanted}")
                    whole, _ = self.optimizer_bytes(
                        run__dtype=dtype, parallel__zero=0, parallel__ep=ep)
                    wanted = state * (parameters - experts + experts / ep)
                    self.assertLess(abs(whole / wanted - 1), 0.01, f"{whole} bytes, not {wanted}")


class ValidateTest(MemoryTest):
    def test_prints_config_and_memory_and_makes_nothing(self):
        config = self.place.config(parallel__ep=4, run__device="cuda",
                                   data__train=["does/not/exist.txt"])
        code, out, err = self.place.run(1, config, "--validate", "--world", "4")
        self.assertEqual(code, 0, err)
        resolved, end = json.JSONDecoder().raw_decode(out)
        self.assertEqual(resolved["parallel"]["ep"], 4)
        self.assertEqual(resolved["train"]["steps"], STEPS)
        table = out[end:]
        self.assertIn("world 4 = ep 4 x dp 1", table)
        for row in ("weights", "gradients", "optimizer", "activations", "receive buffers",
                    "workspace", "data", "total"):
            size = r"\d+\.\d MiB \(\d+\)"
            self.assertRegex(table, rf"(?m)^  {row}\s+{size}\s+{size}$")
        self.assertFalse(self.place.run_dir.exists())

    def test_lists_what_named_saves_hold_and_avoid(self):
        config = self.place.config(parallel__ep=2, recompute__region="moe",
                                   recompute__save=["dispatch"])
        code, out, err = self.place.run(1, config, "--validate", "--world", "2")
        self.assertEqual(code, 0, err)
        size = r"\d+\.\d MiB \(\d+\)"
        for name, saved in (("routing", "always"), ("dispatch", "yes"), ("router", "no"),
                            ("expert_up", "no"), ("expert_act", "no")):
            self.assertRegex(out, rf"(?m)^  {name}\s+{size}\s+{saved}\s+\S")
        self.assertRegex(out, rf"{LAYERS} prepares, {LAYERS} dispatches, {size} sent")
        self.assertNotRegex(out, r"(?m)^  attention\s", "it is outside of region moe")

    def test_resolved_config_is_a_config(self):
        code, out, _ = self.place.run(1, self.place.config(), "--validate")
        self.assertEqual(code, 0)
        resolved, _ = json.JSONDecoder().raw_decode(out)
        code, again, _ = self.place.run(1, resolved, "--validate")
        self.assertEqual(code, 0)
        self.assertEqual(again, out)

    def test_a_model_of_30_billion_takes_neither_time_nor_memory(self):
        max_seconds, max_bytes = 2, 10**9
        command = [BUILD / "bin" / "train", "--config", ROOT / "configs" / "qwen3-30b-a3b.json",
                   "--world", "8", "--validate"]
        start = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            out = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertLess(time.monotonic() - start, max_seconds)
        self.assertLess(usage.ru_utime + usage.ru_stime, max_seconds)
        self.assertLess(usage.ru_maxrss * 1024, max_bytes)
        self.assertIn("parameters: 30532122624 total", out)
        # bf16 weights of the dense parts and an eighth of the experts, and the rotary table.
        sizes = [int(size) for size in re.search(r"weights .*\((\d+)\) .*\((\d+)\)", out).groups()]
        self.assertEqual(sizes, [10350915584] * 2)

    def test_refuses_what_the_world_cannot_hold(self):
        code, _, err = self.place.run(1, self.place.config(parallel__ep=4), "--validate")
        self.assertEqual(code, 2)
        self.assertIn("parallel.ep", err)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
