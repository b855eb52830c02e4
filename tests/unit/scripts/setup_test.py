"""scripts/setup.sh, with stand-ins for dpkg-query, apt-get and id in front of PATH."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "setup.sh"
DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12"\nVERSION_ID="12"\nID=debian\n'
UBUNTU = 'VERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n'
# Prints the packages of the file `installed` that it is asked for; like dpkg-query, it fails when
# one of them is not known.
DPKG_QUERY = """#!/bin/sh
code=0
shift 3  # -W -f FORMAT
for name in "$@"; do
  if grep -qx "$name" "{folder}/installed"; then echo "installed $name"; else code=1; fi
done
exit $code
"""
APT_GET = '#!/bin/sh\necho "$@" >>"{folder}/apt.log"\n'
ID = '#!/bin/sh\ncat "{folder}/uid"\n'


class SetupTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="spillway_setup_")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        (self.folder / "bin").mkdir()
        for name, text in (("dpkg-query", DPKG_QUERY), ("apt-get", APT_GET), ("id", ID)):
            path = self.folder / "bin" / name
            path.write_text(text.replace("{folder}", str(self.folder)))
            path.chmod(0o755)
        (self.folder / "os-release").write_text(DEBIAN)
        self.all = self.names_asked_for()

    def run_script(self, *options, installed=(), uid=0, code=0):
        (self.folder / "installed").write_text("".join(name + "\n" for name in installed))
        (self.folder / "uid").write_text(f"{uid}\n")
        (self.folder / "apt.log").write_text("")
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        result = subprocess.run([SCRIPT, "--os-release", self.folder / "os-release", *options],
                                capture_output=True, text=True, env=environment, timeout=30,
                                check=False)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def apt_calls(self):
        return (self.folder / "apt.log").read_text().splitlines()

    def names_asked_for(self):
        self.run_script()
        return self.apt_calls()[-1].split("--no-install-recommends ")[1].split()

    def test_list_holds_what_the_build_and_the_demo_need(self):
        for name in ("g++", "cmake", "ninja-build", "libopenmpi-dev", "openmpi-bin", "libdnnl-dev",
                     "nlohmann-json3-dev", "libspdlog-dev", "libcli11-dev", "libgtest-dev",
                     "python3", "dict-gcide"):
            self.assertIn(name, self.all)

    def test_nothing_to_do_is_one_line_and_fast(self):
        best = min(self.timed_run() for _ in range(3))
        self.assertLess(best, 0.3)

    def timed_run(self):
        start = time.monotonic()
        result = self.run_script(installed=self.all)
        took = time.monotonic() - start
        self.assertEqual(len(result.stdout.splitlines()), 1)
        self.assertEqual(self.apt_calls(), [])
        return took

    def test_only_what_is_missing_is_installed_and_explained(self):
        present = [name for name in self.all if name not in ("libdnnl-dev", "dict-gcide")]
        result = self.run_script(installed=present)
        self.assertEqual(self.apt_calls()[0], "update -qq")
        self.assertTrue(self.apt_calls()[1].endswith(" libdnnl-dev dict-gcide"))
        self.assertEqual(len(self.apt_calls()), 2)
        self.assertRegex(result.stdout, r"libdnnl-dev \(.+\)")
        self.assertRegex(result.stdout, r"dict-gcide \(.+\)")
        self.assertNotIn("cmake", result.stdout)

    def test_ci_asks_for_the_formatter_too(self):
        self.run_script("--ci", installed=self.all)
        self.assertTrue(self.apt_calls()[-1].endswith(" clang-format-14"))

    def test_without_root_the_line_to_run_is_printed(self):
        present = [name for name in self.all if name != "libcli11-dev"]
        result = self.run_script(installed=present, uid=1000, code=1)
        self.assertIn("sudo apt-get install -y --no-install-recommends libcli11-dev\n",
                      result.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_without_root_and_nothing_to_do_is_fine(self):
        self.run_script(installed=self.all, uid=1000)

    def test_ubuntu_is_known(self):
        (self.folder / "os-release").write_text(UBUNTU)
        self.run_script(installed=self.all)

    def test_other_systems_are_refused_with_the_packages(self):
        for text in ("ID=fedora\nVERSION_ID=41\n", "ID=debian\nVERSION_ID=11\n",
                     'ID=ubuntu\nVERSION_ID="22.04"\n', "ID=arch\n", ""):
            with self.subTest(text=text):
                (self.folder / "os-release").write_text(text)
                result = self.run_script(installed=self.all, code=1)
                for name in self.all:
                    self.assertIn(name, result.stderr)
                self.assertEqual(self.apt_calls(), [])

    def test_no_os_release_at_all_is_refused(self):
        (self.folder / "os-release").unlink()
        self.assertIn("unknown", self.run_script(installed=self.all, code=1).stderr)

    def test_unknown_option(self):
        self.assertIn("--frobnicate", self.run_script("--frobnicate", code=2).stderr)


if __name__ == "__main__":
    sys.exit(unittest.main())
