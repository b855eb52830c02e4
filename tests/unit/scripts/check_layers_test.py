"""scripts/check_layers.py: the repository passes, and a small tree that breaks a rule does not."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "check_layers.py"

TABLE = """# Map
<!-- layers:begin -->
| layer | module | responsibility | may include |
|---|---|---|---|
| 0 | `core` | errors | - |
| 1 | `tensor` | arrays | core |
| 2 | `comm` | messages | tensor |
| 2 | `kernels` | functions | tensor |
| 3 | `ops` | tape | kernels, comm |
| 4 | `config` | JSON | ops |
| 5 | `checkpoint` | planned, no folder yet | config |
| 6 | `train` | loop | config, checkpoint |
| 7 | `apps` | programs | any |
<!-- layers:end -->
"""
CMAKE = """# spillway_module(core DEPS train) in a comment is no call
spillway_module(core PRIVATE_LIBS spdlog::spdlog)
spillway_module(tensor DEPS core)
spillway_module(comm DEPS tensor PRIVATE_LIBS MPI::MPI_C)
spillway_module(kernels DEPS tensor)
spillway_module(ops DEPS kernels comm)
spillway_module(config DEPS ops
                PRIVATE_LIBS json)
spillway_module(train DEPS config)
spillway_app(train DEPS train)
"""
# A tree that keeps every rule.
GOOD = {
    "src/README.md": TABLE,
    "src/CMakeLists.txt": CMAKE,
    "include/spillway/core/error.h": "#pragma once\n#include <string>\n",
    "src/core/error.cpp": '#include "spillway/core/error.h"\n',
    "include/spillway/core/log.h": "#pragma once\n",
    "src/core/log.cpp": "#include <spdlog/spdlog.h>\n#include <fmt/format.h>\n",
    "include/spillway/tensor/tensor.h": '#pragma once\n#include "spillway/core/error.h"\n',
    "src/tensor/tensor.cpp": '#include "spillway/tensor/tensor.h"\n',
    "include/spillway/comm/communicator.h": '#include "spillway/tensor/tensor.h"\n',
    "src/comm/mpi_communicator.cpp": '#include <mpi.h>\n#include "mpi_check.h"\n',
    "src/comm/mpi_check.h": "#include <mpi.h>\n",
    "include/spillway/kernels/matmul.h": '#include "spillway/tensor/tensor.h"\n',
    "src/kernels/matmul.cpp": '#include "checks.h"\n#include "cpu/matmul.h"\n',
    "src/kernels/checks.h": "",
    "src/kernels/cpu/matmul.h": "",
    "src/kernels/cpu/matmul.cpp": '#include "checks.h"\n#include "matmul.h"\n',
    "src/kernels/cpu/onednn_matmul.cpp": "#include <oneapi/dnnl/dnnl.hpp>\n",
    "src/kernels/cuda/matmul.cu": "#include <cuda_bf16.h>\n#include <cublasLt.h>\n",
    "src/kernels/cuda/attention.h": "",
    "src/kernels/cuda/attention_cudnn.cpp": "#include <cudnn_frontend.h>\n",
    # core is two rows down: allowed, since what a row names brings what that may include.
    "include/spillway/ops/linear.h": '#include "spillway/core/error.h"\n',
    "src/ops/linear.cpp": '  #  include "spillway/kernels/matmul.h"\n',
    "src/config/json.h": "#include <nlohmann/json.hpp>\n",
    "src/config/json.cpp": '#include "json.h"\n',
    "src/apps/train.cpp": '#include <CLI/CLI.hpp>\n#include "spillway/ops/linear.h"\n',
    "tests/x_test.cpp": "#include <nlohmann/json.hpp>\n",
}


class CheckLayersTest(unittest.TestCase):
    def run_script(self, root):
        return subprocess.run([sys.executable, SCRIPT, "--root", root], capture_output=True,
                              text=True, timeout=60, check=False)

    def run_on(self, changes):
        """Runs on the good tree with other files in it; None takes a file away."""
        with tempfile.TemporaryDirectory(prefix="spillway_layers_") as folder:
            for name, text in {**GOOD, **changes}.items():
                if text is not None:
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
            return self.run_script(folder)

    def check(self, changes, place, *words):
        """Exactly one violation, at this place, that says these words."""
        result = self.run_on(changes)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 1, result.stdout)
        self.assertTrue(lines[0].startswith(place + ": "), result.stdout)
        for word in words:
            self.assertIn(word, lines[0])

    def check_include(self, path, include, *words):
        header = GOOD.get(path, "")
        self.check({path: header + f"#include {include}\n"},
                   f"{path}:{len(header.splitlines()) + 1}", *words)

    def test_repository(self):
        result = self.run_script(ROOT)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_good_tree(self):
        result = self.run_on({})
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    # 1. Includes

    def test_upward_include(self):
        self.check_include("src/core/error.cpp", '"spillway/tensor/tensor.h"',
                           "core may include nothing")
        self.check_include("include/spillway/tensor/tensor.h", '"spillway/ops/linear.h"',
                           "tensor may include core")

    def test_sideways_include(self):
        self.check_include("include/spillway/comm/communicator.h", '"spillway/kernels/matmul.h"',
                           "comm may include core, tensor")

    def test_row_holds_for_files_in_subfolders_too(self):
        self.check_include("src/kernels/cpu/matmul.cpp", '"spillway/comm/communicator.h"', "kernels")

    def test_missing_own_header(self):
        self.check_include("src/ops/linear.cpp", '"spillway/kernels/nothing.h"', "does not exist")
        self.check_include("src/ops/linear.cpp", '"nothing.h"', "is not in this folder")

    def test_own_header_of_another_folder_without_its_full_name(self):
        self.check_include("src/ops/linear.cpp", '"checks.h"', "is not in this folder")
        self.check_include("src/ops/linear.cpp", '"../kernels/checks.h"', "is not in this folder")
        self.check_include("src/kernels/checks.h", '"kernels/cpu/matmul.h"')

    def test_own_header_in_angle_brackets(self):
        self.check_include("src/ops/linear.cpp", "<spillway/ops/linear.h>", 'with ""')

    def test_folder_without_a_row(self):
        self.check({"src/stray/stray.h": ""}, "src/stray/stray.h:1", "no row")

    def test_file_outside_of_modules(self):
        self.check({"include/spillway/all.h": ""}, "include/spillway/all.h:1", "outside")
        self.check({"include/other/x/y.h": ""}, "include/other/x/y.h:1", "outside")
        self.check({"src/main.cpp": ""}, "src/main.cpp:1", "outside")

    # 2. Links

    def test_link_that_the_row_does_not_name(self):
        self.check({"src/CMakeLists.txt": CMAKE.replace("tensor DEPS core", "tensor DEPS core ops")},
                   "src/CMakeLists.txt:3", "tensor links ops")

    def test_named_module_that_is_not_linked(self):
        self.check({"src/CMakeLists.txt": CMAKE.replace("DEPS kernels comm", "DEPS kernels")},
                   "src/CMakeLists.txt:6", "ops does not link comm")

    def test_link_through_another_row_is_not_enough(self):
        self.check({"src/CMakeLists.txt": CMAKE.replace("comm DEPS tensor", "comm DEPS tensor core")},
                   "src/CMakeLists.txt:4", "comm links core")

    def test_library_without_a_row(self):
        self.check({"src/CMakeLists.txt": CMAKE + "spillway_module(stray DEPS core)\n"},
                   "src/CMakeLists.txt:11", "stray has no row")

    def test_sources_without_a_library(self):
        self.check({"src/CMakeLists.txt": CMAKE.replace("spillway_module(train DEPS config)\n", ""),
                    "src/train/loop.h": "", "src/train/loop.cpp": ""},
                   "src/CMakeLists.txt:1", "src/train has sources")

    def test_row_that_names_its_own_layer_or_one_above(self):
        self.check({"src/README.md": TABLE.replace("messages | tensor", "messages | tensor, kernels")},
                   "src/README.md:7", "comm (layer 2) names kernels (layer 2)")
        self.check({"src/README.md": TABLE.replace("arrays | core", "arrays | ops")},
                   "src/README.md:6", "tensor (layer 1) names ops (layer 3)")

    def test_row_that_names_an_unknown_module(self):
        self.check({"src/README.md": TABLE.replace("arrays | core", "arrays | core, cores")},
                   "src/README.md:6", "cores, which has no row")

    def test_second_row(self):
        self.check({"src/README.md": TABLE.replace("<!-- layers:end", "| 0 | `core` | x | - |\n"
                                                   "<!-- layers:end")}, "src/README.md:14",
                   "second row for core")

    def test_missing_table(self):
        self.check({"src/README.md": None}, "src/README.md:1", "missing")
        self.check({"src/README.md": "# Map\n"}, "src/README.md:1", "layers:begin")
        self.check({"src/README.md": "<!-- layers:begin -->\n<!-- layers:end -->\n"},
                   "src/README.md:1", "no row")

    # 3. Third-party headers

    def test_third_party_headers_outside_of_their_rooms(self):
        for path, header in (("src/ops/linear.cpp", "<mpi.h>"),
                             ("src/ops/linear.cpp", "<nccl.h>"),
                             ("src/ops/linear.cpp", "<cuda_runtime.h>"),
                             ("src/kernels/cpu/matmul.cpp", "<cublas_v2.h>"),
                             ("src/kernels/cpu/matmul.cpp", "<oneapi/dnnl/dnnl.h>"),
                             ("src/kernels/cpu/matmul.cpp", "<dnnl.hpp>"),
                             ("src/kernels/cuda/matmul.cu", "<cudnn_frontend.h>"),
                             ("src/core/error.cpp", "<spdlog/spdlog.h>"),
                             ("src/core/error.cpp", "<fmt/core.h>"),
                             ("src/core/error.cpp", '"fmt/core.h"'),
                             ("src/ops/linear.cpp", "<nlohmann/json_fwd.hpp>"),
                             ("src/config/json.cpp", "<CLI/CLI.hpp>")):
            with self.subTest(path=path, header=header):
                self.check_include(path, header, "belongs in")

    def test_third_party_headers_in_public_headers(self):
        for module, header in (("comm", "<mpi.h>"), ("config", "<nlohmann/json.hpp>"),
                               ("core", "<spdlog/spdlog.h>"), ("kernels", "<cuda_runtime.h>")):
            with self.subTest(header=header):
                self.check_include(f"include/spillway/{module}/new.h", header, "belongs in")

    # 4. One stem

    def test_source_without_a_header(self):
        self.check({"src/ops/misc.cpp": ""}, "src/ops/misc.cpp:1", "no header misc.h")
        self.check({"src/kernels/cuda/fast.cu": ""}, "src/kernels/cuda/fast.cu:1", "no header")

    def test_programs_need_no_header(self):
        self.assertEqual(self.run_on({"src/apps/bench.cpp": ""}).returncode, 0)

    # 5. Long files

    def test_long_file_is_a_warning_only(self):
        for path in ("src/core/error.cpp", "tests/x_test.cpp"):
            with self.subTest(path=path):
                self.assertEqual(self.run_on({path: "\n" * 400}).stderr, "")
                result = self.run_on({path: "\n" * 401})
                self.assertEqual((result.returncode, result.stdout), (0, ""))
                self.assertTrue(result.stderr.startswith(f"{path}:401: warning: 401 lines"))

    def test_every_violation_is_told(self):
        result = self.run_on({"src/ops/misc.cpp": "#include <mpi.h>\n#include <nccl.h>\n"})
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stdout.splitlines()), 3)


if __name__ == "__main__":
    sys.exit(unittest.main())
