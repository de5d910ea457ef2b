"""Host cost of the adapter on an NPU tensor's way to the operator, over emulated devices.

    python -m benchmarks.adapter_overhead

The operator behind it is an empty one, whose functions return at once: what is measured is the dispatcher, the
adapter, torch_npu's task queue and memory, and the emulated runtime under them, which is no faster or slower than
CANN in a way that is known. No device is timed. Beside it stands the same call through torch_npu's own macro
EXEC_NPU_CMD_EXT. All variants alternate; the cost of empty_like, which each of them calls, is taken off.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils.benchmark import Timer

from benchmarks.tables import Goal, goal_table
from emulator.acl import default_op_package, install_torch_npu, make_op_package
from emulator.acl.build import link
from emulator.acl.op_source import declaration
from emulator.acl.torch_npu import torch_npu_package, torch_package
from emulator.cann import aclnn_signature

GOAL_MICROSECONDS = 10.0
NOTHING, ADAPTER, PUBLIC, MACRO, QUEUE = "empty_like", "operator", "public function", "EXEC_NPU_CMD_EXT", "queue"
_CALLS, _ROUNDS = 400, 41
_MACRO_SOURCE = Path(__file__).with_name("macro_route.cpp")
_OTHER_WORK = 4.0  # microseconds between two entries of the queue alone: about what a call takes without it
_WORKSPACE = 16 << 20  # what every operator of CANN asks for at least
_Figures = dict[str, dict[str, float]]


def prepare(folder: Path) -> Path:
    """Make an op package of the real adapter and an empty operator, and build the macro's library beside it."""
    package = make_op_package(folder, library=False)
    shutil.copytree(default_op_package() / "torch", package / "torch")
    signature = aclnn_signature()
    source = folder / "empty_operator.cpp"
    source.write_text("\n".join([
        "#include <cstdint>", "struct aclTensor;", "struct aclIntArray;", "struct aclOpExecutor;",
        "using aclnnStatus = int;", "using aclrtStream = void*;", 'extern "C" {',
        declaration(signature["get_workspace_size"]),
        f"{{ *workspaceSize = {_WORKSPACE}; *executor = nullptr; return 0; }}",
        declaration(signature["run"]), "{ return 0; }", "}",
    ]))  # fmt: skip
    link(package / "op_api" / "lib" / "libcust_opapi.so", [source], [], ("-std=c++17", "-O2", "-fPIC", "-w"))
    build_macro_route(folder / "libmacro_route.so")
    return package


def build_macro_route(library: Path) -> None:
    torch_root, npu = torch_package(), torch_npu_package()
    headers = [torch_root / "include", npu / "include", npu / "include/third_party/op-plugin",
               npu / "include/third_party/acl/inc", Path(sysconfig.get_path("include"))]  # fmt: skip
    major, minor = torch.__version__.split(".")[:2]
    flags = ["-std=c++20", "-O2", "-fPIC", "-w", f"-DCURRENT_VERSION=V{major}R{minor}"]
    libraries = [f"-L{torch_root / 'lib'}", f"-L{npu / 'lib'}", "-ltorch_cpu", "-lc10", "-ltorch_npu",
                 "-Wl,--allow-shlib-undefined"]  # fmt: skip
    link(library, [_MACRO_SOURCE], [*(f"-isystem{path}" for path in headers), *libraries], flags)


def measure(macro_library: Path) -> dict[str, float]:
    """Measure the median microseconds of each variant above `NOTHING`. The process must run over emulated devices."""
    import torch_npu  # noqa: F401 (registers torch.npu)

    import toptheta_npu
    from toptheta_npu.ops import SCHEMAS

    library = torch.library.Library("toptheta_npu_macro", "DEF")
    library.define("incremental_attention" + SCHEMAS["incremental_attention"])
    library.define("queue_alone(Tensor query, float microseconds) -> Tensor")
    for name in ("incremental_attention", "queue_alone"):
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    torch.ops.load_library(str(macro_library))
    query = torch.zeros(1, 8, 1, 128, dtype=torch.float16).npu()
    key, value = (torch.zeros(1, 8, 256, 128, dtype=torch.float16).npu() for _ in range(2))
    names: dict[str, Any] = {
        "tensors": (query, key, value, torch.zeros(8).npu()), "query": query, "empty_like": torch.empty_like,
        "public": toptheta_npu.incremental_attention,
        "adapter": torch.ops.toptheta_npu.incremental_attention.default,
        "macro": torch.ops.toptheta_npu_macro.incremental_attention.default,
        "queue": torch.ops.toptheta_npu_macro.queue_alone.default,
        "options": {"num_heads": 8, "num_key_value_heads": 8, "scale_value": 0.1},
    }  # fmt: skip
    names["public"](*names["tensors"])  # loads the adapter
    statements = {
        NOTHING: "empty_like(query)", ADAPTER: "adapter(*tensors, **options)",
        PUBLIC: "public(*tensors)", MACRO: "macro(*tensors, **options)", QUEUE: f"queue(query, {_OTHER_WORK})",
    }  # fmt: skip
    rounds: dict[str, list[float]] = {name: [] for name in statements}
    timers = {name: Timer(statement, globals=names) for name, statement in statements.items()}
    with torch.no_grad():
        for _ in range(_ROUNDS):
            for name, timer in timers.items():
                rounds[name].append(1e6 * timer.timeit(_CALLS).mean)
    # Timer waits for the device at the end of its loop, so the task queue's own work is in the figures
    middle = {name: torch.tensor(values).median().item() for name, values in rounds.items()}
    middle[QUEUE] += middle[NOTHING] - _OTHER_WORK  # during which its empty_like was made
    return {name: middle[name] - middle[NOTHING] for name in statements if name != NOTHING}


def run() -> _Figures:
    """Measure the figures by task queue setting, each in a process of its own."""
    install_torch_npu()
    with tempfile.TemporaryDirectory() as folder:
        package = prepare(Path(folder))
        figures: _Figures = {}
        for queue in ("0", "1", "2"):
            # set inside, since the emulator puts its own op package in front
            command = [sys.executable, "-m", "emulator", "run", "env", f"ASCEND_CUSTOM_OPP_PATH={package}",
                       f"TASK_QUEUE_ENABLE={queue}", "OMP_NUM_THREADS=1", sys.executable, "-m",
                       "benchmarks.adapter_overhead", str(Path(folder) / "libmacro_route.so")]  # fmt: skip
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            figures[queue] = json.loads(done.stdout.splitlines()[-1])
    return figures


def goals() -> list[Goal]:
    """Measure the figures, and put them beside their goal."""
    figures = []
    for queue, costs in run().items():
        setting = f"TASK_QUEUE_ENABLE={queue}"
        figures.append(Goal(f"the operator, {setting}", costs[ADAPTER], GOAL_MICROSECONDS, " µs"))
        for name, variant in (
            ("of it torch_npu's queue, with nothing in it", QUEUE), ("through EXEC_NPU_CMD_EXT instead", MACRO),
            ("the public function, with its checks", PUBLIC),
        ):  # fmt: skip
            figures.append(Goal(f"{name}, {setting}", costs[variant], unit=" µs"))
    return figures


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(Path(sys.argv[1]))))
    else:
        title = "Host cost of a call over emulated devices, above empty_like"
        Console().print(goal_table(goals(), title=title).as_rich())
