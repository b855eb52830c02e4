"""train --sample as a user runs it: text on stdout, exit codes, and a run directory left alone.

usage: sample_program_test.py BUILD_DIR [unittest options]
"""

import sys
import time
import unittest
from pathlib import Path

from workplace import ROOT, STEPS, WAIT_S, Workplace

BUILD = ROOT / "build"  # replaced by the first argument
PROMPT = "abc def"


def snapshot(folder):
    """Every file and folder with its time and bytes."""
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
            for path in [folder, *folder.rglob("*")]}


class SampleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace(BUILD)
        cls.addClassCleanup(cls.place.close)
        cls.config = cls.place.config(parallel__ep=2, checkpoint__every=STEPS)
        cls.trained = cls.place.run(2, cls.config)

    def setUp(self):
        self.assertEqual(self.trained[0], 0, self.trained[2])

    def sample(self, ranks, *options, **changes):
        # ep = 2 throughout: one process then holds all experts.
        config = {**self.config, **changes}
        return self.place.run(ranks, config, *options)

    def texts(self, *options):
        found = []
        for ranks in (1, 2):
            code, out, err = self.sample(ranks, "--resume", "auto", *options)
            self.assertEqual((code, err), (0, ""))
            found.append(out)
        return found

    def test_ranks_agree_and_the_run_directory_stays(self):
        before = snapshot(self.place.run_dir)
        for options in ([], ["--temperature", "0.8"]):
            with self.subTest(options=options):
                one, two = self.texts("--sample", "12", "--prompt", PROMPT, *options)
                self.assertEqual(one, two)
                self.assertTrue(one.startswith(PROMPT), one)
                self.assertGreater(len(one), len(PROMPT) + 1)
        self.assertEqual(snapshot(self.place.run_dir), before)

    def test_no_tokens_are_the_prompt(self):
        self.assertEqual(self.texts("--sample", "0", "--prompt", "caf\u00e9"), ["caf\u00e9\n"] * 2)

    def test_checkpoint_and_run_directory_by_name(self):
        folders = [self.place.run_dir, *(self.place.run_dir / "checkpoints").iterdir()]
        self.assertEqual(len(folders), 2)
        texts = {self.sample(1, "--resume", str(folder), "--sample", "8", "--prompt", "a")[1]
                 for folder in folders}
        self.assertEqual(len(texts), 1)

    def test_while_a_job_uses_the_run_directory(self):
        config = self.place.config(run__dir=str(self.place.folder / "busy"), train__steps=100000,
                                   checkpoint__every=2, log__every=0)
        job = self.place.start(1, config)
        try:
            folder = self.place.folder / "busy" / "checkpoints"
            end = time.monotonic() + WAIT_S
            while not list(folder.glob("*/COMMITTED")) and time.monotonic() < end:
                time.sleep(0.02)
            sampling = self.place.start(1, config, "--resume", "auto", "--sample", "2")
            _, err = sampling.communicate(timeout=WAIT_S)
            self.assertIsNone(job.poll())
            self.assertEqual((sampling.returncode, err), (0, ""))
        finally:
            job.terminate()
            self.assertEqual(self.place.finish(job)[0], 143)

    def test_ids(self):
        data = {"train": ["any.bin"], "format": "u16", "seq": 32}
        code, out, err = self.sample(1, "--resume", "auto", "--sample", "3", "--prompt", "5, 6 7",
                                     data=data)
        self.assertEqual(code, 0, err)
        ids = [int(word) for word in out.split()]
        self.assertEqual((ids[:3], len(ids)), ([5, 6, 7], 6))
        for prompt in ("", "x", "258", "-1"):
            with self.subTest(prompt=prompt):
                code, out, err = self.sample(1, "--resume", "auto", "--sample", "3",
                                             f"--prompt={prompt}", data=data)
                self.assertEqual((code, out), (2, ""))
                self.assertIn("--prompt", err)

    def test_refuses(self):
        sample = ["--sample", "3", "--prompt", "a"]
        empty = str(self.place.folder / "nothing")
        ranks = 1
        for options, code, named in ((sample, 2, "--resume"),
                                     ([*sample, "--resume", "none"], 2, "--resume"),
                                     ([*sample, "--resume", "auto", "--run-dir", empty], 2, empty),
                                     ([*sample, "--resume", empty], 4, empty),
                                     (["--sample", "-1", "--resume", "auto"], 2, "--sample"),
                                     (["--prompt", "a"], 2, "--sample"),
                                     (["--temperature", "1"], 2, "--sample"),
                                     ([*sample, "--validate"], 2, "--validate"),
                                     ([*sample, "--resume", "auto", "--temperature", "-1"], 2,
                                      "--temperature"),
                                     ([*sample, "--resume", "auto", "--temperature", "nan"], 2,
                                      "--temperature"),
                                     ([*sample, "--resume", "auto", "--set", "model.norm_eps=0.1"],
                                      2, "model.norm_eps")):
            ranks = 3 - ranks  # one and two by turns
            with self.subTest(options=options, ranks=ranks):
                result = self.sample(ranks, *options)
                self.assertEqual((result[0], result[1]), (code, ""), result[2])
                self.assertEqual(len(result[2].splitlines()), 1, result[2])
                self.assertIn(named, result[2])
        self.assertFalse(Path(empty).exists())

    def test_a_damaged_checkpoint_is_told_once(self):
        (checkpoint,) = (self.place.run_dir / "checkpoints").iterdir()
        damaged = self.place.folder / checkpoint.name
        damaged.mkdir()
        for path in checkpoint.iterdir():
            data = bytearray(path.read_bytes())
            if path.name.startswith("model-0"):
                data[-1] ^= 1
            (damaged / path.name).write_bytes(data)
        code, out, err = self.sample(2, "--resume", str(damaged), "--sample", "3")
        self.assertEqual((code, out), (4, ""))
        self.assertEqual(len(err.splitlines()), 1, err)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = Path(sys.argv.pop(1)).resolve()
    unittest.main()
