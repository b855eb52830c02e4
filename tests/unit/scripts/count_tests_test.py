"""scripts/count_tests.py: what it counts in the logs of ctest."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "count_tests.py"


class CountTests(unittest.TestCase):
    def count(self, log):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            file.write(log)
            file.flush()
            result = subprocess.run([sys.executable, SCRIPT, file.name], capture_output=True,
                                    text=True, check=False)
        return result.stdout.strip(), result.returncode

    def test_googletest(self):
        self.assertEqual(self.count("3: [  PASSED  ] 114 tests.\n3: [  SKIPPED ] 1 test, listed below:\n"),
                         ("114 passed, 0 failed, 1 skipped", 0))

    def test_googletest_in_colour(self):
        log = ("14: \x1b[0;32m[  PASSED  ] \x1b[m26 tests.\r\n"
               "14: \x1b[0;31m[  FAILED  ] \x1b[m2 tests, listed below:\r\n"
               " 1/1 Test #14: ep_tests.2 .....***Failed    0.30 sec\n")
        self.assertEqual(self.count(log), ("26 passed, 2 failed, 0 skipped", 1))

    def test_a_crash_counts_once(self):
        log = "2: [ RUN      ] A.B\n 2/3 Test  #2: unit_x ......***Exception: SegFault  0.1 sec\n"
        self.assertEqual(self.count(log), ("0 passed, 1 failed, 0 skipped", 1))

    def test_unittest(self):
        log = ("4: Ran 10 tests in 0.5s\n4: FAILED (failures=1, errors=2, skipped=1)\n"
               " 4/4 Test  #4: scripts ......***Failed  0.5 sec\n"
               "5: Ran 3 tests in 0.1s\n5: OK\n")
        self.assertEqual(self.count(log), ("9 passed, 3 failed, 1 skipped", 1))

    def test_nothing_run_is_a_failure(self):
        self.assertEqual(self.count("nothing\n"), ("0 passed, 0 failed, 0 skipped", 1))


if __name__ == "__main__":
    unittest.main()
