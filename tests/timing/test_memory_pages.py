"""Small and huge pages, as the system tells them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from toptheta_npu.timing.memory_pages import page_mode

_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def mapping(tensor: Tensor, resident: int, huge: int, before: int = 0) -> str:
    """What smaps says of a mapping that begins ``before`` bytes before a tensor and ends where the tensor does."""
    start, end = tensor.data_ptr() - before, tensor.data_ptr() + tensor.nbytes
    return (
        f"{start:x}-{end:x} rw-p 00000000 00:00 0 [anon]\nSize: 9 kB\nRss: {resident} kB\nPss: {resident} kB\n"
        f"AnonHugePages: {huge} kB\nVmFlags: rd wr\n"
    )


@pytest.mark.parametrize(
    ("resident", "huge", "mode"),
    [(100, 0, "small pages"), (100, 80, "huge pages"), (100, 100, "huge pages"), (100, 40, "40% huge pages"),
     (100, 20, "small pages"), (0, 0, "small pages")],
)  # fmt: skip
def test_share_of_huge_pages(resident: int, huge: int, mode: str, tmp_path: Path) -> None:
    tensor = torch.zeros(1000)
    file = tmp_path / "smaps"
    elsewhere = "1000-2000 rw-p 0 0:0 0\nRss: 4 kB\nAnonHugePages: 4 kB\n"
    file.write_text(elsewhere + mapping(tensor, resident, huge, before=64) + elsewhere)
    assert page_mode([tensor], file) == mode


def test_tensors_count_by_their_bytes(tmp_path: Path) -> None:
    tensors = [torch.zeros(7000), torch.zeros(3000)]
    file = tmp_path / "smaps"
    file.write_text("".join(mapping(tensor, 4, huge) for tensor, huge in zip(tensors, (4, 0), strict=True)))
    assert page_mode(tensors, file) == "70% huge pages"


def test_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert page_mode([torch.zeros(10)], tmp_path / "none") is None
    (tmp_path / "smaps").write_text("")
    assert page_mode([torch.zeros(10)], tmp_path / "smaps") is None


#: Prints the pages of a tensor, and of as much memory that asks for huge ones itself.
_ALLOCATIONS = """
import mmap, torch
from toptheta_npu.timing.memory_pages import page_mode
tensor = torch.ones(16 << 20)
memory = mmap.mmap(-1, tensor.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
asked = torch.frombuffer(memory, dtype=torch.float32).fill_(1)
print(page_mode([tensor] * 2), page_mode([asked]), sep="|")
"""


@pytest.mark.skipif(not _THP.exists() or "[never]" in _THP.read_text(), reason="this system has no huge pages")
def test_the_allocator_of_torch() -> None:
    """A busy system may have no huge pages left for a moment, for whoever asks."""
    granted = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _ALLOCATIONS], env=os.environ | {"THP_MEM_ALLOC_ENABLE": "1"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        tensor, asked = done.stdout.strip().split("|")
        if tensor == "huge pages":
            return
        granted.append(asked == "huge pages")
    if not any(granted):
        pytest.skip("the system has no huge pages to give now")
    pytest.fail("huge pages are there, but the allocator of torch does not get them")
