"""An op package that torch_npu finds, or does not: an error with its cause and the remedy, and no process that dies.

tests/test_backend_package.py has what is seen without torch_npu.

Run as ``python -m tests.npu.test_adapter_package``, this file makes one call and prints as JSON how it ended.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from emulator.acl.environment import in_emulator
from tests.tiers import full
from toptheta_npu._libraries import seal

CUSTOM_PATH = "ASCEND_CUSTOM_OPP_PATH"
OPP_PATH = "ASCEND_OPP_PATH"
_ROOT = Path(__file__).parents[2]
_STRANGER = 65534


def call(first: str) -> dict[str, Any]:
    """One call, with "torch_npu" or "toptheta_npu" imported first."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("toptheta_npu").addHandler(handler)
    if first == "torch_npu":
        import torch_npu

        # where this Python would have found it, had it looked before
        os.environ[OPP_PATH] = os.environ["LATE"]
    import toptheta_npu

    if first != "torch_npu":
        import torch_npu  # noqa: F401
    query, cache = torch.ones(1, 2, 1, 16).half().npu(), torch.ones(1, 2, 8, 16).half().npu()
    outcome: dict[str, Any] = {"logged": records}
    for _ in range(3):
        try:
            outcome["out"] = toptheta_npu.incremental_attention(query, cache, cache, torch.zeros(2).npu()).sum().item()
        except Exception as error:
            outcome["error"], outcome["type"] = str(error), type(error).__name__
            outcome["cause"] = type(error.__cause__).__name__
    info = toptheta_npu.backend_info()
    return outcome | {"loaded": info.loaded, "problems": [finding.problem for finding in info.findings]}


def outcome_of(package: Path | None, first: str = "toptheta_npu", **variables: str) -> dict[str, Any]:
    """How `call` ends in a process with this op package."""
    given = {name: value for name, value in os.environ.items() if name != CUSTOM_PATH}
    given |= {CUSTOM_PATH: str(package)} if package else {}
    done = subprocess.run(
        [sys.executable, "-m", "tests.npu.test_adapter_package", first], cwd=_ROOT,
        env=given | {"TASK_QUEUE_ENABLE": "0"} | variables, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """A copy of the op package, to be spoilt."""
    from toptheta_npu.npu import environment

    package = environment.find_package()
    assert package is not None
    copy: Path = shutil.copytree(package.folder, tmp_path / "vendors" / "toptheta")
    (tmp_path / "vendors" / "config.ini").write_text("load_priority=toptheta\n")
    return copy


@full
def test_package_found_by_ascend_opp_path(vendor: Path) -> None:
    outcome = outcome_of(None, **{OPP_PATH: str(vendor.parents[1])})
    assert outcome["out"] == pytest.approx(32.0)
    assert outcome["loaded"] == str(vendor)


@full
def test_torch_npu_imported_before_the_path_was_known(vendor: Path) -> None:
    outcome = outcome_of(None, "torch_npu", LATE=str(vendor.parents[1]))
    assert outcome["type"] == "TopThetaBackendError"
    assert outcome["error"] == (
        f"{CUSTOM_PATH}: expected {vendor} in it when torch_npu was imported, got torch_npu imported without it; "
        f"import toptheta_npu before torch, or start Python after: export {CUSTOM_PATH}={vendor}"
        f"${{{CUSTOM_PATH}:+:${CUSTOM_PATH}}}"
    )


@full
def test_adapter_that_is_no_library(vendor: Path) -> None:
    adapter = vendor / "torch" / "libtoptheta_npu_adapter.so"
    adapter.write_text("nothing")
    seal(adapter)
    outcome = outcome_of(vendor)
    assert (outcome["type"], outcome["cause"]) == ("TopThetaBackendError", "OSError")
    assert outcome["error"].startswith("adapter: expected a library that can be loaded, got ")
    assert outcome["error"].endswith(f"build it again with: python -m toptheta_npu.npu.build {vendor}")


@full
def test_library_without_the_functions(vendor: Path) -> None:
    library = vendor / "op_api" / "lib" / "libcust_opapi.so"
    library.unlink()
    subprocess.run(["g++", "-shared", "-x", "c++", "-", "-o", str(library)], input=b"", check=True)
    outcome = outcome_of(vendor)
    assert outcome["error"].startswith(
        "op package: expected aclnnTopThetaIncrementalAttentionGetWorkspaceSize and aclnnTopThetaIncrementalAttention "
        f"in {library}, got none"
    )
    assert outcome["loaded"] is None


@full
@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away and become another user")
@pytest.mark.parametrize(
    ("owner", "user", "found"), [(0, _STRANGER, True), (_STRANGER, _STRANGER, True), (_STRANGER, 0, False)]
)
def test_torch_npu_skips_the_package_of_another_user(owner: int, user: int, found: bool, vendor: Path) -> None:
    """The rule on which the check of the owner rests."""
    os.chown(vendor / "op_api" / "lib" / "libcust_opapi.so", owner, -1)
    assert _torch_npu_finds_functions(vendor, user) == found


def _torch_npu_finds_functions(vendor: Path, user: int) -> bool:
    script = (
        f"import os; os.setresuid({user}, 0, 0)\n"  # root's rights to read files stay
        "import ctypes, torch, torch_npu\n"
        "find = ctypes.CDLL('libtorch_npu.so')._Z16GetOpApiFuncAddrPKc\n"
        "find.restype = ctypes.c_void_p\n"
        "print(bool(find(b'aclnnTopThetaIncrementalAttention')))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | {CUSTOM_PATH: str(vendor)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout.splitlines()[-1] == "True"


@full
def test_auto_without_a_package_runs_the_fallback_and_logs_once() -> None:
    outcome = outcome_of(None, TOPTHETA_BACKEND="auto")
    (record,) = outcome["logged"]
    assert record.startswith("toptheta_npu runs its PyTorch fallback on the NPU: op package: expected an entry of ")


@full
def test_auto_with_a_package_runs_it(vendor: Path) -> None:
    outcome = outcome_of(vendor, TOPTHETA_BACKEND="auto")
    assert (outcome["out"], outcome["logged"], outcome["loaded"]) == (pytest.approx(32.0), [], str(vendor))


@full
def test_doctor_finds_all(vendor: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "toptheta_npu", "doctor", "--json"], capture_output=True, text=True,
                          env=os.environ | {CUSTOM_PATH: str(vendor)}, check=False)  # fmt: skip
    report = json.loads(done.stdout)
    assert (done.returncode, report["usable"]) == (0, True)
    devices = {finding["name"]: finding["found"] for finding in report["findings"]}["devices"]
    assert devices.startswith("1 x Ascend910B")
    assert devices.endswith(", emulated") == in_emulator()


if __name__ == "__main__":
    print(json.dumps(call(sys.argv[1])))
