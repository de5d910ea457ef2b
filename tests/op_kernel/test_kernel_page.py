"""What docs/kernel.md says of the sources holds: files, flags; and Python has their limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toptheta_npu import _checks

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = (_ROOT / "docs" / "kernel.md").read_text()
#: What Python refuses before it calls the operator, in the sources' words.
_CHECKED_IN_PYTHON = {
    "op_host/geometry.h: kMaxPageRows": _checks.KERNEL_PAGE_ROWS,
    "op_kernel/ub_layout.h: kMinPageRows": _checks.KERNEL_STEP,
    "op_host/geometry.h: kMaxHeads": _checks.KERNEL_QUERY_ROWS,
    "op_kernel/cube_layout.h: kMostRowStride": _checks.KERNEL_TOKENS_STRIDE,
    "op_kernel/query_tokens.h: kMostStep": _checks.KERNEL_TOKENS_STRIDE,
}


@pytest.mark.parametrize(("place", "limit"), _CHECKED_IN_PYTHON.items())
def test_python_has_the_limits_of_the_sources(place: str, limit: int) -> None:
    file, name = place.split(": ")
    assert re.findall(rf"\b{name} = (\d+);", (_ROOT / file).read_text()) == [str(limit)]


def test_files_on_the_page_exist() -> None:
    named = re.findall(r"`(\w+\.(?:h|cpp))`", _PAGE)
    assert named
    assert not [name for name in named if not (_ROOT / "op_kernel" / name).exists()]
    sources = {path.name for path in (_ROOT / "op_kernel").iterdir()}
    assert sources - set(named) <= {"top_theta_incremental_attention_tiling_data.h"}


def test_flags_on_the_page() -> None:
    sources = "".join(path.read_text() for path in (_ROOT / "op_kernel").glob("*.h"))
    table = "".join(part.split("\n\n")[0] for part in _PAGE.split("| flag | says |")[1:])
    named = set(re.findall(r"(?<![A-Z0-9])[A-Z]+\d?_[A-Z]+\d?(?![A-Z0-9])", table))
    assert named == set(re.findall(r"Flag<HardEvent::(\w+)>", sources))
