"""train --check-ep as a user runs it: the table, exit codes, and no run directory.

usage: check_ep_program_test.py BUILD_DIR [unittest options]
"""

import re
import sys
import unittest
from pathlib import Path

from workplace import EXPERTS, LAYERS, MICRO, ROOT, SEQ, TOP_K, Workplace

BUILD = ROOT / "build"  # replaced by the first argument
WORLD, EP, ACCUM = 4, 2, 2
MAX_LINE = 300  # of an error of the config or the command line
# Of f32 sums in another order, over a thousand terms some 1e-6.
ROUNDING = 1e-5

LINE = re.compile(r"^step (?P<step>\d) (?P<name>.*?) {2,}(?P<values>\S.*)$")


def rows(out):
    """(step, name) -> the columns after it."""
    found = {}
    for line in out.splitlines():
        match = LINE.match(line)
        if match:
            found[int(match["step"]), match["name"]] = match["values"].split()
    return found


class CheckEpTest(unittest.TestCase):
    def setUp(self):
        self.place = Workplace(BUILD)
        self.addCleanup(self.place.close)

    def check(self, ranks, *options, **changes):
        before = {path.name for path in self.place.folder.iterdir()}
        code, out, err = self.place.run(ranks, self.place.config(**changes), "--check-ep", *options)
        after = {path.name for path in self.place.folder.iterdir()}
        self.assertEqual({name for name in after - before if not name.startswith("config")}, set(),
                         "it writes no run directory and no other file")
        return code, out, err

    def assert_agrees(self, out, ep):
        last = out.strip().splitlines()[-1]
        self.assertEqual(last, f"ep check: ep {ep} agrees with ep 1 over 2 steps", out)
        self.assertEqual(out.count("agrees with"), 1)  # rank 0 alone speaks
        self.assertNotIn("DIFFERS", out)
        self.assertNotIn("FAILED", out)

    def test_table_of_two_steps(self):
        # Buffers far too small, drops allowed: neither may take part.
        code, out, err = self.check(WORLD, parallel__ep=EP, train__grad_accum=ACCUM,
                                    capacity__policy="factor", capacity__factor={"factor": 0.5},
                                    capacity__on_overflow="drop")
        self.assertEqual(code, 0, err)
        self.assertNotIn("rror", err)
        self.assert_agrees(out, EP)
        table = rows(out)
        assignments = str(WORLD * MICRO * ACCUM * SEQ * TOP_K)
        for step in (1, 2):
            for layer in range(LAYERS):
                self.assertEqual(table[step, f"counts of MoE layer {layer}"],
                                 [assignments, assignments, "0", "0"])
            for name in ("loss", "aux loss", "z loss", "gradient norm"):
                one, other, difference, allowed = map(float, table[step, name])
                self.assertGreater(one, 0.0)
                self.assertLessEqual(abs(one - other), ROUNDING * one)
                self.assertLessEqual(difference, allowed)
            groups = [name for s, name in table
                      if s == step and name.startswith("gradient model.layers.*.")]
            for part in ("mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj",
                         "self_attn.o_proj.weight", "input_layernorm.weight"):
                self.assertIn(f"gradient model.layers.*.{part}", groups)
            for name in groups:
                word, largest, difference, allowed = table[step, name][:4]
                self.assertEqual(word, "max")
                self.assertGreater(float(largest), 0.0, f"{name} is all zero")
                self.assertLessEqual(float(difference), float(allowed))
        self.assertEqual({step for step, _ in table}, {1, 2})

    def test_bf16_with_recompute_over_all_ranks(self):
        code, out, err = self.check(WORLD, run__dtype="bf16", parallel__ep=WORLD,
                                    recompute={"region": "layer", "save": ["dispatch"]},
                                    ep__fused_prepare=True)
        self.assertEqual(code, 0, err)
        self.assert_agrees(out, WORLD)

    def test_nothing_to_compare(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                code, out, err = self.check(ranks)
                self.assertEqual(code, 0, err)
                self.assertIn("nothing to compare", out)
                self.assertEqual(len(out.strip().splitlines()), 1, out)

    def test_refused(self):
        for options in (["--validate"], ["--sample", "4"], ["--resume", "auto"]):
            with self.subTest(options=options):
                code, out, err = self.check(2, *options, parallel__ep=2)
                self.assertEqual((code, out), (2, ""), err)
                self.assertIn("--check-ep", err)
                self.assertEqual(len(err.strip().splitlines()), 1, err)
                self.assertLess(len(err), MAX_LINE)

    def test_bad_ep(self):
        code, out, err = self.check(2, parallel__ep=EXPERTS)
        self.assertEqual((code, out), (2, ""), err)
        self.assertIn("parallel.ep", err)

    def test_what_all_ranks_run_into_is_said_once(self):
        code, out, err = self.check(WORLD, parallel__ep=EP, data__train=["no-such-file"])
        self.assertEqual((code, out), (4, ""), err)
        self.assertEqual(err.count("no-such-file"), 1, err)

    def test_a_run_directory_in_use_does_not_matter(self):
        self.place.run_dir.mkdir()
        mark = self.place.run_dir / "metrics.jsonl"
        mark.write_text("not ours\n")
        code, out, err = self.check(2, parallel__ep=2)
        self.assertEqual(code, 0, err)
        self.assert_agrees(out, 2)
        self.assertEqual([path.name for path in self.place.run_dir.iterdir()], [mark.name])
        self.assertEqual(mark.read_text(), "not ours\n")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
