"""Programs in C++ that call the operator by aclnn, without PyTorch: they compile and run over the emulated runtime."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from emulator.acl.environment import in_emulator

if not in_emulator():
    pytest.skip("programs over the emulated runtime", allow_module_level=True)

from emulator.acl import build_program

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "test_aclnn_top_theta_incremental_attention.cpp"


def _build(folder: Path, change: tuple[str, str] = ("", "")) -> Path:
    source, program = folder / "program.cpp", folder / "program"
    text = _EXAMPLE.read_text()
    assert change[0] in text
    source.write_text(text.replace(*change) if change[0] else text)
    build_program(source, program, Path(os.environ["ASCEND_CUSTOM_OPP_PATH"].split(":")[0]))
    return program


def _run(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=120)


def test_the_example_agrees_with_the_host(tmp_path: Path) -> None:
    done = _run(_build(tmp_path))
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"(\d+) of 13792 scores kept; largest difference to the host: (\S+)\n", done.stdout)
    assert found is not None
    assert 800 < int(found[1]) < 1050  # of normal numbers one in fifteen is above 1.5
    assert float(found[2]) < 1e-3


def test_the_example_notices_another_result(tmp_path: Path) -> None:
    assert (
        _run(
            _build(tmp_path, ("std::vector<float>(kHeads, kThreshold)", "std::vector<float>(kHeads, 1.0F)"))
        ).returncode
        == 1
    )
