"""Which pages of memory tensors lie in: a CPU reads scattered rows faster from huge ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

_MAPPINGS = Path("/proc/self/smaps")
_START = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
#: A tensor's ends may lie in small pages whatever the rest lies in.
_NEARLY_ALL = 0.75


class _Mapping(NamedTuple):
    """A range of addresses, and the share of its memory in use that lies in huge pages."""

    start: int
    end: int
    huge: float


def page_mode(tensors: Iterable[Tensor], mappings: Path = _MAPPINGS) -> str | None:
    """Find the pages of tensors: "huge pages", "small pages" or the share of huge ones; None if the system is silent.

    PyTorch's allocator asks for huge ones if THP_MEM_ALLOC_ENABLE=1 is set, where the system grants them on request;
    where it always gives them, nothing needs to be set.

    Example:
        >>> import torch
        >>> page_mode([torch.zeros(1000)]) in ("small pages", "huge pages", None)
        True
    """
    try:
        known = list(_mappings(mappings.read_text()))
    except OSError:
        return None
    inside = huge = 0.0
    for tensor in tensors:
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for mapping in known:
            common = min(end, mapping.end) - max(start, mapping.start)
            if common > 0:
                inside += common
                huge += common * mapping.huge
    if not inside:
        return None
    if huge >= _NEARLY_ALL * inside:
        return "huge pages"
    return "small pages" if huge <= (1 - _NEARLY_ALL) * inside else f"{huge / inside:.0%} huge pages"


def _mappings(text: str) -> Iterator[_Mapping]:
    start = end = resident = 0
    for line in text.splitlines():
        if found := _START.match(line):
            start, end = (int(address, 16) for address in found.groups())
        elif line.startswith("Rss:"):
            resident = int(line.split()[1])
        elif line.startswith("AnonHugePages:"):
            yield _Mapping(start, end, int(line.split()[1]) / max(resident, 1))
