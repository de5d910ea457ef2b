"""Points of a step of several query tokens, whose rows lie apart and are shared out to two vector cores."""

from __future__ import annotations

import torch

from .calls import Call, check_tokens, make_call
from .launch_checks import ROWS_FOR_EVERY_CORE

_LAYOUTS = ("query", "key", "value")


def query_tokens(device: str) -> None:
    """Check tokens that lie side by side and tokens that have all heads between them, real ones and others.

    16 rows of a KV head are two blocks, which two vector cores take with the same keys. 15 rows are blocks that differ.
    """
    for seed, (heads, tokens) in enumerate(((4, 4), (5, 3))):
        call = make_call((2 * heads, 2), 600, 64, lengths=[600, 77, 300], tokens=tokens, seed=seed)
        check_tokens(call, device)
        real = torch.tensor([tokens, 1, 0], dtype=torch.int32, device="cpu")
        check_tokens(_with_tokens_first(call).with_tensors(actual_query_lengths=real), device)


def shared_tokens(device: str) -> None:
    """Share one sequence among all pairs of vector cores, so that each combines what the others have left."""
    for seed in range(2):
        check_tokens(make_call((4, 1), ROWS_FOR_EVERY_CORE, 16, keep=0.01, tokens=4, seed=seed), device)


def _with_tokens_first(call: Call) -> Call:
    turned = {name: call[name].transpose(1, 2).contiguous() for name in _LAYOUTS}
    return call.with_tensors(**turned).with_options(input_layout="BSND")
