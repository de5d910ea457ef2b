"""CPU tensors through the Triton kernels, in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np

import toptheta_npu
from toptheta_npu.cpu.backend import CPU_SELECTOR, checking_values
from toptheta_npu.fallback import IMPLEMENTATIONS


def is_interpreting() -> bool:
    """Whether Triton interprets its kernels, by its own variable; otherwise it compiles them for a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@contextmanager
def interpreting() -> Iterator[None]:
    """Let the kernels take the place of the CPU's fallback."""
    from toptheta_npu.triton import operators

    kernels = {name: checking_values(getattr(operators, name)) for name in IMPLEMENTATIONS}
    # exponentials and logarithms of -inf are what they should be
    swapped = mock.patch.object(CPU_SELECTOR, "fallbacks", kernels)
    with np.errstate(all="ignore"), swapped, toptheta_npu.use_backend("fallback", device="cpu"):
        yield
    CPU_SELECTOR.choose(CPU_SELECTOR.chosen)  # forgets what was decided
