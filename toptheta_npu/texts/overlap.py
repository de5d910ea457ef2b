"""Whether texts to judge by were calibrated on: runs of tokens that both have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

#: As many tokens in a row count as the same text: no two authors write them alike by chance.
RUN = 32
#: Of a window's tokens, the share in common runs from which on it counts as calibrated on: licence headers have less.
SHARE = 0.1
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Overlap(NamedTuple):
    """What a window shares with others.

    Attributes:
        window: its number.
        share: of its tokens, those in runs that others have too.
        tokens: the longest such stretch, int64 [n].
    """

    window: int
    share: float
    tokens: Tensor


def overlaps(windows: list[Tensor], others: Iterable[Tensor]) -> list[Overlap]:
    """Find the windows that share more than a tenth of their tokens with ``others``, in runs of 32 tokens or more.

    In windows shorter than 64 tokens, runs of half of their length count.

    Args:
        windows: int64 [n] each.
        others: the same; read once.

    Example:
        >>> import torch
        >>> text = torch.arange(200)
        >>> [overlap.share for overlap in overlaps([text, -text], [torch.arange(50, 150)])]
        [0.5]
    """
    sizes = [min(RUN, max(1, len(window) // 2)) for window in windows]
    codes = [_codes(window, size) for window, size in zip(windows, sizes, strict=True)]
    shared = [np.zeros(len(code), dtype=np.bool_) for code in codes]
    for other in others:
        known = {size: _codes(other, size) for size in set(sizes)}
        for code, size, mask in zip(codes, sizes, shared, strict=True):
            mask |= np.isin(code, known[size])
    found = []
    for number, (window, size, starts) in enumerate(zip(windows, sizes, shared, strict=True)):
        covered = _covered(starts, size, len(window))
        if covered.mean() > SHARE:
            found.append(Overlap(number, float(covered.mean()), window[_longest(covered)]))
    return found


def _codes(window: Tensor, size: int) -> NDArray[np.uint64]:
    """Compute a number for each run of ``size`` tokens: different ones for different runs, but for one in 2**64."""
    tokens = window.numpy().astype(np.uint64) + np.uint64(1)
    if len(tokens) < size:
        return np.empty(0, dtype=np.uint64)
    # a token's number is stirred first, lest sums of small ones meet
    tokens = (tokens * _FACTOR) ^ ((tokens * _FACTOR) >> np.uint64(29))
    factors = np.full(size, _FACTOR, dtype=np.uint64).cumprod(dtype=np.uint64)
    runs: NDArray[np.uint64] = np.lib.stride_tricks.sliding_window_view(tokens, size) @ factors
    return runs


def _covered(starts: NDArray[np.bool_], size: int, length: int) -> NDArray[np.bool_]:
    """Tell which of ``length`` tokens lie in a run that begins at one of ``starts``."""
    edges = np.zeros(length + 1, dtype=np.int64)
    edges[np.flatnonzero(starts)] += 1
    edges[np.flatnonzero(starts) + size] -= 1
    return edges.cumsum()[:length] > 0


def _longest(covered: NDArray[np.bool_]) -> slice:
    edges = np.flatnonzero(np.diff(covered.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    start, end = edges[(edges[:, 1] - edges[:, 0]).argmax()]
    return slice(int(start), int(end))
