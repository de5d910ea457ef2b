"""What docs/kernel.md says of the sources holds: limits, files, flags."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toptheta_npu import _checks

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = (_ROOT / "docs" / "kernel.md").read_text()
_LIMITS = {
    "ub_layout.h": {"kMaxHeadDim": 512, "kMinPageRows": 16, "kMaxHeadBlock": 8, "kWideHeadDim": 256},
    "work_split.h": {"kGranuleRows": 128, "kFineGranuleRows": 32, "kMinimumGranules": 2},
    "geometry.h": {"kMaxPageRows": 512, "kMaxCapacity": 262144, "kMaxBatch": 65536, "kMaxHeads": 4096},
    "tiling_math.h": {"kMaxCores": 64},
}
#: What Python refuses before it calls the operator, in the sources' words.
_CHECKED_IN_PYTHON = {
    "op_host/geometry.h: kMaxPageRows": _checks.KERNEL_PAGE_ROWS,
    "op_kernel/ub_layout.h: kMinPageRows": _checks.KERNEL_STEP,
    "op_host/geometry.h: kMaxHeads": _checks.KERNEL_QUERY_ROWS,
    "op_kernel/cube_layout.h: kMostRowStride": _checks.KERNEL_TOKENS_STRIDE,
    "op_kernel/query_tokens.h: kMostStep": _checks.KERNEL_TOKENS_STRIDE,
}


@pytest.mark.parametrize("header", _LIMITS)
def test_limits_on_the_page(header: str) -> None:
    folder = "op_host" if header in ("geometry.h", "tiling_math.h") else "op_kernel"
    source = (_ROOT / folder / header).read_text()
    found = {name: re.search(rf"{name} = (\d+);", source) for name in _LIMITS[header]}
    assert {name: int(match[1]) for name, match in found.items() if match} == _LIMITS[header]
    for value in _LIMITS[header].values():
        assert f"{value:,}" in _PAGE or str(value) in _PAGE or value == 2, value


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
