"""scripts/check_format.sh and scripts/size_report.sh on small made-up trees."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HAS_FORMATTER = bool(shutil.which("clang-format-14") or shutil.which("clang-format"))


class ReportsTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="spillway_reports_")
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        for folder in ("scripts", "src/core", "include/spillway/core", "tests/unit/core", "bin"):
            (self.root / folder).mkdir(parents=True)
        for name in ("check_format.sh", "size_report.sh"):
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts")
        shutil.copy(ROOT / ".clang-format", self.root)
        self.write("src/core/error.cpp", "int f() { return 1; }\n")
        self.write("include/spillway/core/error.h", "#pragma once\nint f();\n")

    def write(self, name, text):
        (self.root / name).write_text(text)

    def run_script(self, name, *arguments, code=0, path=None):
        environment = {**os.environ, "PATH": path or os.environ["PATH"]}
        result = subprocess.run([self.root / "scripts" / name, *map(str, arguments)],
                                capture_output=True, text=True, timeout=60, check=False,
                                env=environment)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    @unittest.skipUnless(HAS_FORMATTER, "clang-format is not installed")
    def test_files_in_form_pass(self):
        self.assertIn("2 files are in form", self.run_script("check_format.sh").stdout)

    @unittest.skipUnless(HAS_FORMATTER, "clang-format is not installed")
    def test_one_file_out_of_form_fails_and_stays_as_it_is(self):
        bad = "int  g( ) {return 1;}\n"
        for name in ("src/core/a.cpp", "include/spillway/core/a.h", "tests/unit/core/a.cuh",
                     "src/core/a.cu"):
            with self.subTest(name=name):
                self.write(name, bad)
                self.assertIn(Path(name).name,
                              self.run_script("check_format.sh", code=1).stderr)
                self.assertEqual((self.root / name).read_text(), bad)
                (self.root / name).unlink()

    def test_without_a_formatter_the_skip_is_visible(self):
        for tool in ("bash", "env", "dirname"):  # a PATH that holds no clang-format
            (self.root / "bin" / tool).symlink_to(shutil.which(tool))
        result = self.run_script("check_format.sh", path=str(self.root / "bin"))
        self.assertIn("SKIPPED", result.stdout)

    def test_no_sources_is_no_success(self):
        if not HAS_FORMATTER:
            self.skipTest("clang-format is not installed")
        (self.root / "src/core/error.cpp").unlink()
        (self.root / "include/spillway/core/error.h").unlink()
        self.run_script("check_format.sh", code=1)

    def test_lines_and_files_a_module(self):
        self.write("tests/unit/core/error_test.cpp", "1\n2\n3\n4\n")
        (self.root / "src/empty").mkdir()
        rows = [line.split() for line in self.run_script("size_report.sh").stdout.splitlines()]
        self.assertIn(["core", "2", "3", "1", "4"], rows)
        self.assertIn(["modules", "together", "2", "3", "1", "4"], rows)
        self.assertNotIn("empty", [row[0] for row in rows if row])

    def test_bytes_of_a_build_tree(self):
        build = self.root / "build"
        (build / "bin").mkdir(parents=True)
        (build / "src").mkdir()
        (build / "src" / "libspillway_core.a").write_bytes(b"x" * 1234)
        (build / "bin" / "train").write_bytes(b"x" * 77)
        (build / "bin" / "train").chmod(0o755)
        (build / "bin" / "notes.txt").write_bytes(b"x")
        rows = [line.split()
                for line in self.run_script("size_report.sh", build).stdout.splitlines()]
        self.assertIn(["libspillway_core.a", "1234"], rows)
        self.assertIn(["bin/train", "77"], rows)
        self.assertEqual([row for row in rows if row and row[0] == "bin/notes.txt"], [])

    def test_bad_command_lines(self):
        self.run_script("size_report.sh", self.root / "nowhere", code=2)
        self.run_script("size_report.sh", "a", "b", code=2)


if __name__ == "__main__":
    sys.exit(unittest.main())
