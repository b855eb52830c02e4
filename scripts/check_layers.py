#!/usr/bin/env python3
"""Compares the code with the layer table of src/README.md. One line a violation, exit code 1.

1. Includes. A file of a module includes our own headers as "spillway/<module>/x.h", from its own
   module and from those that its row names, directly or through other rows; or as "x.h", from its
   own folder or the module's folder in src.
2. Links. DEPS of spillway_module(...) in src/CMakeLists.txt are exactly the modules of the row
   (those that are not in the tree yet are left out), and a row names lower layers only.
3. Third-party headers stay in the rooms of ROOMS below; public headers include none of them.
4. Every src/<module>/**/x.cpp (or .cu) goes with a header of its module: one of the same stem, or
   one that shares its first or last word (policy_peak.cpp: policy.h; mpi_communicator.cpp:
   communicator.h). Programs in src/apps need none.
5. Files of more than 400 lines are reported as warnings, which do not fail.
"""

import argparse
import re
import sys
from pathlib import Path

BEGIN, END = "<!-- layers:begin -->", "<!-- layers:end -->"
ANY = "any"  # of the row of the programs
MAX_LINES = 400
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')

# What is included (a pattern), what it is called, and the folders or files that may do so.
CUDA_ROOMS = ("src/runtime/cuda/", "src/kernels/cuda/", "src/comm/")
JSON_ROOMS = tuple(f"src/{module}/" for module in
                   ("config", "checkpoint", "metrics", "lab", "data", "apps"))
ROOMS = (
    (r"mpi\.h$", "MPI", ("src/comm/",)),
    (r"nccl\.h$", "NCCL", ("src/comm/",)),
    (r"cudnn_frontend", "cudnn-frontend", ("src/kernels/cuda/attention_cudnn.cpp",)),
    (r"(cuda|cublas|curand|cudnn|cutlass|cute|cub/|thrust/|nvtx)", "CUDA", CUDA_ROOMS),
    (r"(oneapi/)?dnnl", "oneDNN", ("src/kernels/cpu/onednn_matmul.cpp",)),
    (r"(spdlog|fmt)/", "spdlog and fmt", ("src/core/log.cpp",)),
    (r"nlohmann/", "JSON", JSON_ROOMS),
    (r"CLI/|CLI11", "CLI11", ("src/apps/",)),
)


class Checker:
    def __init__(self, root):
        self.root = root
        self.violations = []
        self.warnings = []
        self.rows = {}  # module -> (layer, modules that it may include, line of the table)

    def report(self, path, line, text):
        self.violations.append(f"{path.relative_to(self.root)}:{line}: {text}")

    def run(self):
        self.read_table()
        if self.violations:
            return  # without a table the rest would only make noise
        self.check_links()
        for path in self.files("src", "include"):
            self.check_file(path)
        for path in self.files("src", "include", "tests"):
            num_lines = len(self.lines(path))
            if num_lines > MAX_LINES:
                self.warnings.append(f"{path.relative_to(self.root)}:{MAX_LINES + 1}: warning: "
                                     f"{num_lines} lines; {MAX_LINES} is the rule")

    def files(self, *folders):
        for folder in folders:
            yield from sorted(path for path in (self.root / folder).rglob("*")
                              if path.suffix in SOURCES and path.is_file())

    @staticmethod
    def lines(path):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()

    # -- the table

    def read_table(self):
        readme = self.root / "src" / "README.md"
        if not readme.exists():
            self.report(readme, 1, "is missing; it holds the layer table")
            return
        lines = self.lines(readme)
        if lines.count(BEGIN) != 1 or lines.count(END) != 1:
            self.report(readme, 1, f"needs {BEGIN} and {END}, once each, around the layer table")
            return
        begin, end = lines.index(BEGIN), lines.index(END)
        for number, line in enumerate(lines[begin + 1:end], begin + 2):
            cells = [cell.strip(" `") for cell in line.strip().strip("|").split("|")]
            if len(cells) != 4 or not cells[0].isdigit():
                continue  # the head and the rule below it, blank lines
            layer, module, _, allowed = cells
            names = set(re.findall(r"[a-z_][a-z0-9_]*", allowed))
            if module in self.rows:
                self.report(readme, number, f"a second row for {module}")
            self.rows[module] = (int(layer), names, number)
        for module, (layer, names, number) in self.rows.items():
            for name in sorted(names - {ANY}):
                if name not in self.rows:
                    self.report(readme, number, f"{module} names {name}, which has no row")
                elif self.rows[name][0] >= layer:
                    self.report(readme, number, f"{module} (layer {layer}) names {name} "
                                                f"(layer {self.rows[name][0]}); allowed: lower")
        if not self.rows:
            self.report(readme, begin + 1, "the layer table has no row")

    def reachable(self, module):
        """What a file of the module may include: the closure of the table, itself included."""
        found, todo = set(), [module]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            allowed = self.rows[name][1]
            todo += self.rows if ANY in allowed else allowed
        return found

    # -- links

    def check_links(self):
        cmake = self.root / "src" / "CMakeLists.txt"
        text = cmake.read_text() if cmake.exists() else ""
        # Comments become blanks, so that places stay where they are.
        text = re.sub(r"#[^\n]*", lambda comment: " " * len(comment.group()), text)
        modules = {}
        for call in re.finditer(r"^\s*spillway_module\(\s*(\w+)([^)]*)\)", text, re.MULTILINE):
            words, deps, in_deps = call.group(2).split(), set(), False
            for word in words:
                if word.isupper():
                    in_deps = word == "DEPS"
                elif in_deps:
                    deps.add(word)
            modules[call.group(1)] = (deps, text.count("\n", 0, call.start(1)) + 1)
        for module, (deps, line) in modules.items():
            if module not in self.rows:
                self.report(cmake, line, f"module {module} has no row in the layer table")
                continue
            row = self.rows[module][1] & modules.keys()
            for name in sorted(deps - row):
                self.report(cmake, line, f"{module} links {name}, which its row does not name")
            for name in sorted(row - deps):
                self.report(cmake, line, f"{module} does not link {name}, which its row names")
        for module in self.rows.keys() - modules.keys() - {"apps"}:
            if any((self.root / "src" / module).rglob("*.c*")):
                self.report(cmake, 1, f"src/{module} has sources but no spillway_module call")

    # -- one file

    def check_file(self, path):
        parts = path.relative_to(self.root).parts
        skip = 2 if parts[0] == "include" else 1  # include/spillway/<module>, src/<module>
        if parts[0] == "include" and parts[1] != "spillway" or len(parts) < skip + 2:
            self.report(path, 1, "lies outside of a module's folder")
            return
        module = parts[skip]
        if module not in self.rows:
            self.report(path, 1, f"module {module} has no row in the layer table")
            return
        if parts[0] == "src" and module != "apps" and path.suffix in {".cpp", ".cu"}:
            self.check_stem(path, module)
        reachable = self.reachable(module)
        for number, line in enumerate(self.lines(path), 1):
            match = INCLUDE.match(line)
            if match:
                self.check_include(path, number, module, reachable, match)

    def check_stem(self, path, module):
        folders = (path.parent, self.root / "src" / module,
                   self.root / "include" / "spillway" / module)
        stems = {header.stem for folder in folders for header in folder.glob("*.h")}
        ends = {word for stem in stems for word in (stem.split("_")[0], stem.split("_")[-1])}
        words = path.stem.split("_")
        if path.stem not in stems and not {words[0], words[-1]} & ends:
            self.report(path, 1, f"no header {path.stem}.h in include/spillway/{module} or "
                                 f"src/{module}, and none that shares its first or last word")

    def check_include(self, path, number, module, reachable, match):
        name = match.group(1) or match.group(2)
        place = path.relative_to(self.root).as_posix()
        for pattern, title, rooms in ROOMS:
            if re.match(pattern, name):
                if not any(place == room or room.endswith("/") and place.startswith(room)
                           for room in rooms):
                    self.report(path, number, f"<{name}>: {title} belongs in {', '.join(rooms)}")
                return
        if name.startswith("spillway/"):
            self.check_own_include(path, number, module, reachable, match)
        elif match.group(1):
            folders = (path.parent, self.root / "src" / module)
            if ".." in name.split("/") or not any((folder / name).exists() for folder in folders):
                self.report(path, number, f'"{name}" is not in this folder nor in src/{module}; '
                                          'other headers are "spillway/<module>/x.h"')

    def check_own_include(self, path, number, module, reachable, match):
        name = match.group(1) or match.group(2)
        target = name.split("/")[1]
        if match.group(2):
            self.report(path, number, f'<{name}>: our own headers are included with ""')
        if not (self.root / "include" / name).exists():
            self.report(path, number, f'"{name}" does not exist')
        elif target not in reachable:
            self.report(path, number, f'"{name}": {module} may include '
                                      f"{', '.join(sorted(reachable - {module})) or 'nothing'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1],
                        help="repository (default: the one of this script)")
    checker = Checker(parser.parse_args().root.resolve())
    checker.run()
    for warning in checker.warnings:
        print(warning, file=sys.stderr)
    for violation in checker.violations:
        print(violation)
    return 1 if checker.violations else 0


if __name__ == "__main__":
    sys.exit(main())
