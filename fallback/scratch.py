"""Memory that a decode step fills and forgets, kept from step to step.

Freed megabytes go back to the operating system, and come again page by page, each page cleared by the kernel: on
a virtual machine that took longer than the step itself.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

_SMALLEST, _LARGEST = 64 << 10, 64 << 20  # bytes: below, allocation is cheap; above, memory is better given back


class _Buffers(threading.local):
    """Each thread has its own."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}


_BUFFERS = _Buffers()


def scratch(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor of this shape, valid until this thread asks for the same name again."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not _SMALLEST <= size <= _LARGEST:
        # other devices have allocators that keep what is freed
        return torch.empty(shape, dtype=dtype, device=device)
    buffer = _BUFFERS.named.get(name)
    if buffer is None or buffer.numel() < size:
        # a tensor made in inference mode could not be written outside of it
        with torch.inference_mode(False):
            buffer = _BUFFERS.named[name] = torch.empty(size, dtype=torch.uint8)
    return buffer[:size].view(dtype).view(shape)
