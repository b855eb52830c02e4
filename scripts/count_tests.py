#!/usr/bin/env python3
"""Counts test cases in the verbose logs of ctest and prints "N passed, N failed, N skipped".

A GoogleTest or unittest program says how many of its cases passed; a program that ended badly
without saying so (crash, time limit) counts as one failed case. Exit code 1 when anything failed
or nothing ran.
"""
import re
import sys


def count(log: str) -> tuple[int, int, int]:
    passed = failed = skipped = 0
    spoke = {}  # test number -> failures it reported itself
    for line in log.splitlines():
        # mpirun runs its ranks on a terminal of its own: GoogleTest then colours what it says.
        line = re.sub(r"\x1b\[[0-9;]*[mK]", "", line).rstrip()
        match = re.match(r"(\d+): (.*)", line)
        if match:
            number, text = int(match.group(1)), match.group(2)
            gtest = re.match(r"\[  (PASSED|FAILED|SKIPPED) +\] (\d+) tests?[.,]", text)
            if gtest:
                cases = int(gtest.group(2))
                if gtest.group(1) == "PASSED":
                    passed += cases
                elif gtest.group(1) == "SKIPPED":
                    skipped += cases
                else:
                    failed += cases
                    spoke[number] = spoke.get(number, 0) + cases
                continue
            ran = re.match(r"Ran (\d+) tests? in", text)
            if ran:
                pending = int(ran.group(1))
                passed += pending
                continue
            summary = re.match(r"(OK|FAILED)(?: \((.*)\))?$", text)
            if summary and summary.group(2):
                fields = dict(part.split("=") for part in summary.group(2).split(", "))
                bad = int(fields.get("failures", 0)) + int(fields.get("errors", 0))
                left = int(fields.get("skipped", 0))
                passed -= bad + left
                failed += bad
                skipped += left
                spoke[number] = spoke.get(number, 0) + bad
            continue
        ended = re.match(r" *\d+/\d+ Test +#(\d+): (\S+) .*\*\*\*", line)
        if ended and not spoke.get(int(ended.group(1))):
            failed += 1
    return passed, failed, skipped


def main() -> int:
    totals = [0, 0, 0]
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8", errors="replace") as file:
            totals = [a + b for a, b in zip(totals, count(file.read()))]
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 1 if totals[1] > 0 or totals[0] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
