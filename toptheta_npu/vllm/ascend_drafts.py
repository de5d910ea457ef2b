"""Drafts in vllm-ascend: how many tokens of a sequence the kernel verifies, and which sequences have any."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import KERNEL_QUERY_ROWS, KERNEL_TOKENS_STRIDE, MAX_TOKENS
from ..errors import TopThetaBackendError, TopThetaNotImplementedError
from .ascend_signatures import DISTRIBUTION, known_versions
from .engine import EngineLayers
from .layouts import Pages


def limit_drafts(engine: EngineLayers, num_heads: int) -> None:
    """Leave drafts dense that the kernel does not verify, with layers of ``num_heads`` query heads on this rank."""
    if engine.placement != "pre_softmax":
        engine.limit_drafts(1, "an NPU verifies no drafts post-softmax; use thresholds for placement='pre_softmax'")
    elif num_heads * MAX_TOKENS > KERNEL_QUERY_ROWS:
        most = max(1, KERNEL_QUERY_ROWS // num_heads)
        engine.limit_drafts(most, f"an NPU takes {KERNEL_QUERY_ROWS} query heads times tokens")


def check_rows(name: str, pages: Pages) -> None:
    """Check that the kernel can copy the K rows of a layer for several tokens at once.

    Raises:
        TopThetaNotImplementedError: they lie too far apart.
    """
    apart = pages.keys.stride(2)
    if apart > KERNEL_TOKENS_STRIDE:
        raise TopThetaNotImplementedError(
            "kv_cache", f"K rows at most {KERNEL_TOKENS_STRIDE} elements apart with drafts in {name}", str(apart),
            "set VLLM_KV_CACHE_LAYOUT=HND, or leave speculative_config out",
        )  # fmt: skip


def going_on(metadata: Any, query_start_loc: Tensor) -> np.ndarray:
    """Tell which sequences of a step have keys before its new tokens, by vllm-ascend's lengths on the host.

    Where it schedules asynchronously, these count drafts of the step before as accepted that may have been rejected.
    Of that step at least one token was accepted, so whether there are keys does not depend on it; how many there are
    is for the lengths on the device to say.

    Args:
        metadata: vllm-ascend's.
        query_start_loc: int [B+1], on the CPU.

    Returns:
        bool [B].

    Raises:
        TopThetaBackendError: the lengths do not lie on the host.

    Example:
        >>> from types import SimpleNamespace
        >>> going_on(SimpleNamespace(seq_lens_cpu=torch.tensor([3, 9, 0])), torch.tensor([0, 3, 6])).tolist()
        [False, True]
    """
    lengths = metadata.seq_lens_cpu
    if lengths.device.type != "cpu":
        raise TopThetaBackendError(
            DISTRIBUTION, "seq_lens_cpu on the host", str(lengths.device), f"install version {known_versions()}"
        )
    counts = query_start_loc.diff()
    more: np.ndarray = (lengths[: len(counts)] > counts).numpy()
    return more


def is_capturing() -> bool:
    """Tell whether a graph is being captured now."""
    npu = getattr(torch, "npu", None)
    return npu is not None and bool(npu.is_current_stream_capturing())
