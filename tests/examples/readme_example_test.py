"""README shows the core of ep_library.cpp word for word: the block of C++ after its marker."""

import re
import textwrap
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "examples" / "ep_library.cpp"
BEGIN, END = "// The library: begin", "// The library: end"
BLOCK = re.compile(r"<!-- tests/examples/ep_library\.cpp -->\s*```cpp\n(.*?)```", re.DOTALL)
MAX_STATEMENTS = 15


def core():
    inside = EXAMPLE.read_text().split(BEGIN)[1].split(END)[0]
    return textwrap.dedent(inside.strip("\n").rstrip(" ")).strip("\n") + "\n"


class ReadmeExampleTest(unittest.TestCase):
    def test_the_block_is_the_core_of_the_program(self):
        blocks = BLOCK.findall((ROOT / "README.md").read_text())
        self.assertEqual(len(blocks), 1, "README.md: one block of C++ after the line "
                                         "'<!-- tests/examples/ep_library.cpp -->'")
        self.assertEqual(blocks[0], core())

    def test_the_core_is_short_and_whole(self):
        text = core()
        for call in ("bootstrap", "prepare", "dispatch", "combine", "combine_backward",
                     "dispatch_backward", "reconfigure"):
            self.assertIn(f"session.{call}(", text)
        self.assertLessEqual(text.count(";\n") + text.count(";  //"), MAX_STATEMENTS)


if __name__ == "__main__":
    unittest.main()
