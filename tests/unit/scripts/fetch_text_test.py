"""scripts/fetch_text.sh: the cut, the names, repeats and errors."""

import gzip
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "fetch_text.sh"
DICTIONARY = Path("/usr/share/dictd/gcide.dict.dz")


class FetchTextTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="spillway_text_")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.out = self.folder / "out"

    def run_script(self, *arguments, code=0):
        result = subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True,
                                timeout=60, check=False)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def source(self, data, name="book.txt"):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def parts(self, name="book"):
        return ((self.out / f"{name}.train.txt").read_bytes(),
                (self.out / f"{name}.valid.txt").read_bytes())

    def test_last_two_percent_from_a_line_start(self):
        text = b"".join(b"line %04d\n" % i for i in range(1000))  # lines of 10 bytes
        self.run_script(self.out, self.source(text))
        train, valid = self.parts()
        self.assertEqual(train + valid, text)
        self.assertEqual(len(train), 9800)  # 98 % is a line start itself
        self.assertTrue(valid.startswith(b"line 0980\n"))

    def test_cut_inside_a_line_moves_to_the_next_line(self):
        text = b"".join(b"line %05d\n" % i for i in range(1003))  # 11 bytes; 98 % falls inside
        self.run_script(self.out, self.source(text))
        train, valid = self.parts()
        self.assertEqual(train + valid, text)
        self.assertTrue(train.endswith(b"\n"))
        self.assertTrue(0 <= len(train) - len(text) * 98 // 100 < 11)

    def test_any_bytes_are_kept(self):
        text = b"\xff\x00\r\n\xc3\n" * 500 + b"no newline at the end"
        self.run_script(self.out, self.source(text))
        train, valid = self.parts()
        self.assertEqual(train + valid, text)

    def test_name_comes_from_the_file(self):
        self.run_script(self.out, self.source(b"a\n" * 100, "two words.v2.md"))
        self.assertEqual(sorted(path.name for path in self.out.iterdir()),
                         ["two words.v2.train.txt", "two words.v2.valid.txt"])

    def test_repeat_leaves_the_files_alone(self):
        source = self.source(b"a\n" * 1000)
        first = self.run_script(self.out, source).stdout
        before = [(path.stat().st_ino, path.stat().st_mtime_ns)
                  for path in sorted(self.out.iterdir())]
        self.assertEqual(self.run_script(self.out, source).stdout, first)
        after = [(path.stat().st_ino, path.stat().st_mtime_ns)
                 for path in sorted(self.out.iterdir())]
        self.assertEqual(after, before)
        self.assertEqual(len(after), 2)  # no temporary files are left

    def test_changed_source_and_damaged_output_are_made_anew(self):
        source = self.source(b"a\n" * 1000)
        self.run_script(self.out, source)
        (self.out / "book.valid.txt").write_bytes(b"cut short")
        self.run_script(self.out, source)
        self.assertEqual(b"".join(self.parts()), b"a\n" * 1000)
        source.write_bytes(b"b\n" * 1000)
        self.run_script(self.out, source)
        self.assertEqual(b"".join(self.parts()), b"b\n" * 1000)

    def test_sizes_are_told(self):
        stdout = self.run_script(self.out, self.source(b"a\n" * 1000)).stdout
        self.assertEqual(stdout.splitlines(), [f"{self.out}/book.train.txt: 1960 bytes",
                                               f"{self.out}/book.valid.txt: 40 bytes"])

    def test_texts_that_cannot_be_cut(self):
        for data in (b"", b"x", b"one line only\n", b"a\n" * 10 + b"x" * 1000):
            with self.subTest(data=data[:20]):
                result = self.run_script(self.out, self.source(data), code=1)
                self.assertIn("book.txt", result.stderr)
                self.assertEqual(list(self.out.iterdir()), [])

    def test_missing_file_and_folder_are_named(self):
        self.assertIn("nowhere.txt",
                      self.run_script(self.out, self.folder / "nowhere.txt", code=1).stderr)
        self.assertIn(str(self.folder), self.run_script(self.out, self.folder, code=1).stderr)

    def test_bad_command_lines(self):
        for arguments in ([], [""], ["a", "b", "c"], ["--what"]):
            with self.subTest(arguments=arguments):
                self.assertIn("usage:", self.run_script(*arguments, code=2).stderr)

    @unittest.skipUnless(DICTIONARY.exists(), "the dictionary is not installed")
    def test_dictionary(self):
        self.run_script(self.out)
        train, valid = self.parts("gcide")
        with gzip.open(DICTIONARY) as source:
            self.assertEqual(train + valid, source.read())
        self.assertTrue(train.endswith(b"\n"))
        self.assertAlmostEqual(len(valid) / len(train + valid), 0.02, places=4)
        shutil.rmtree(self.out)


if __name__ == "__main__":
    sys.exit(unittest.main())
