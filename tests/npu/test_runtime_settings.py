"""What the settings of the emulator change; each case is a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.acl.environment import in_emulator
from emulator.acl.settings import NAMES, VARIABLE, current_settings, with_settings
from tests.tiers import full

if not in_emulator():
    pytest.skip("settings of the emulated devices", allow_module_level=True)

_HERE = Path(__file__).resolve().parent
_REPOSITORY = _HERE.parents[1]
RunPython = Callable[..., str]


@full
@pytest.mark.skipif(current_settings().get("asynchronous") == "1", reason="runs in asynchronous mode already")
@pytest.mark.parametrize("module", ["test_runtime.py", "test_runtime_operator.py"])
def test_the_runtime_in_asynchronous_mode(module: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", str(_HERE / module)]
    done = subprocess.run(
        command, env=os.environ | with_settings(asynchronous=1), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


_MEMORY = """
import torch, torch_npu
kept = torch.empty(20 << 20, dtype=torch.uint8, device="npu")
try:
    torch.empty(60 << 20, dtype=torch.uint8, device="npu")
except torch.OutOfMemoryError as error:
    print("out of memory:", "64" in str(error))
del kept
torch.npu.empty_cache()
print(torch.empty(40 << 20, dtype=torch.uint8, device="npu").numel() >> 20, torch.npu.mem_get_info()[1] >> 20)
"""


@full
@pytest.mark.parametrize("options", ["", "expandable_segments:True"])
def test_memory_has_a_limit(run_python: RunPython, options: str) -> None:
    printed = run_python(_MEMORY, PYTORCH_NPU_ALLOC_CONF=options, **with_settings(memory_mb=64))
    assert printed == "out of memory: True\n40 64\n"


_DEVICES = """
import torch, torch_npu
print(torch.npu.device_count())
x = torch.arange(6.0, device="npu:0")
y = x.to("npu:1")
print(y.device, y.cpu().tolist() == x.cpu().tolist())
z = torch.ones(3, device="npu:1")
print((z + y[:3]).cpu().tolist())
before = torch.npu.mem_get_info(0)[0], torch.npu.mem_get_info(1)[0]
big = torch.empty(64 << 20, dtype=torch.uint8, device="npu:1")
print(torch.npu.mem_get_info(0)[0] == before[0], torch.npu.mem_get_info(1)[0] < before[1])
try:
    torch.npu.set_device(2)
except RuntimeError as error:
    print("--devices of the emulator sets their number" in str(error))
"""


_OTHER_DEVICE = """
import ctypes, torch, torch_npu
from tests.npu.acl_calls import recent_error, runtime
stream = ctypes.c_void_p(torch.npu.Stream("npu:1").npu_stream)
torch.npu.set_device(0)
source, target = (torch.ones(4, dtype=torch.uint8).npu() for _ in range(2))
addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (target, source)]
size = ctypes.c_size_t(4)
print(runtime().aclrtMemcpyAsync(addresses[0], size, addresses[1], size, 3, stream), recent_error())
"""


@full
def test_a_stream_belongs_to_its_device(run_python: RunPython) -> None:
    printed = run_python(_OTHER_DEVICE, **with_settings(devices=2))
    assert printed.startswith("107003 ")
    assert "expected a stream of the current device 0, got one of device 1" in printed


@full
@pytest.mark.parametrize("asynchronous", ["0", "1"])
def test_two_devices(run_python: RunPython, asynchronous: str) -> None:
    printed = run_python(_DEVICES, **with_settings(devices=2, asynchronous=asynchronous))
    assert printed.splitlines() == ["2", "npu:1 True", "[1.0, 2.0, 3.0]", "True True", "True"]


@full
def test_fresh_memory_can_be_filled(run_python: RunPython) -> None:
    code = "import torch, torch_npu; print(torch.empty(4, dtype=torch.uint8, device='npu').cpu().tolist())"
    assert run_python(code, **with_settings(fill="0xAB")) == f"{[0xAB] * 4}\n"


@full
def test_the_soc_decides_the_cores(run_python: RunPython) -> None:
    import torch

    properties = torch.npu.get_device_properties(0)
    if "soc" not in current_settings():
        assert (properties.name, properties.vector_core_num) == ("Ascend910B1", 48)
    code = "import torch, torch_npu; p = torch.npu.get_device_properties(0); print(p.name, p.vector_core_num)"
    assert run_python(code, **with_settings(soc="Ascend910B3")) == "Ascend910B3 40\n"


@full
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("devices", "many", "an integer from 1 to 64"), ("memory_mb", "0", "an integer from 1 to 1048576")],
)
def test_a_wrong_setting_is_named(run_python: RunPython, name: str, value: str, expected: str) -> None:
    code = (
        "import torch, torch_npu\ntry: torch.ones(1).npu()\n"
        "except RuntimeError as error: print(str(error).replace('\\n', ' '))"
    )
    printed = run_python(code, **with_settings(**{name: value}))
    assert f'ACL_EMULATOR, {name}: expected {expected}, got "{value}"' in printed


_FORK = """
import os, torch, torch_npu
child = os.fork()
if child == 0:
    ok = (torch.ones(3).npu() + 1).cpu().tolist() == [2.0, 2.0, 2.0]
    os._exit(0 if ok else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (torch.ones(2).npu() * 3).cpu().tolist())
"""


@full
@pytest.mark.parametrize("asynchronous", ["0", "1"])
def test_a_process_can_fork_after_the_import(run_python: RunPython, asynchronous: str) -> None:
    assert run_python(_FORK, **with_settings(asynchronous=asynchronous)) == "0 [3.0, 3.0]\n"


@full
def test_a_python_without_the_environment_can_load_the_emulator() -> None:
    code = (
        "from emulator.acl import load\nload()\nimport torch, toptheta_npu\n"
        "q, k = torch.randn(1, 2, 1, 64).half(), torch.randn(1, 2, 128, 64).half()\n"
        "out = toptheta_npu.incremental_attention(q.npu(), k.npu(), k.npu(), torch.zeros(2).npu())\n"
        "print(out.device, bool(out.isfinite().all()))"
    )
    removed = (VARIABLE, "PYTHONPATH", "LD_LIBRARY_PATH", "ASCEND_CUSTOM_OPP_PATH")
    plain = {name: value for name, value in os.environ.items() if name not in removed}
    done = subprocess.run([sys.executable, "-c", code], env=plain, cwd=_REPOSITORY, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.stdout == "npu:0 True\n", done.stderr


def test_an_unknown_command_is_named() -> None:
    done = subprocess.run([sys.executable, "-m", "emulator", "run", "no-such-command"], cwd=_REPOSITORY,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 2
    assert "no-such-command" in done.stderr


@full
def test_another_sitecustomize_still_runs(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.other_ran = True\n")
    path = f"{os.environ['PYTHONPATH']}:{tmp_path}"
    assert run_python("print(other_ran)", PYTHONPATH=path) == "True\n"


def test_a_run_has_the_settings_of_its_options() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "emulator", "run", "--devices", "2", "--async", "--fill", "0xFF",
         sys.executable, "-c", "import os; print(os.environ['ACL_EMULATOR'])"],
        cwd=_REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = dict(part.split("=") for part in done.stdout.strip().split(";"))
    assert found | {"devices": "2", "asynchronous": "1", "fill": "0xFF"} == found


def test_the_readme_names_every_setting() -> None:
    source = (_REPOSITORY / "emulator" / "acl" / "runtime" / "settings.cpp").read_text()
    assert set(re.findall(r'(?:Read|ValueOf)\("(\w+)"', source)) == set(NAMES)
    page = (_REPOSITORY / "emulator" / "README.md").read_text()
    options = {name.replace("_", "-") for name in NAMES} - {"asynchronous", "checks"} | {"async", "no-checks"}
    assert set(re.findall(r"^\| `--([\w-]+)", page, re.MULTILINE)) == options
