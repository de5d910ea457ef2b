"""Merging decode steps over parts of the keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import fallback
from ._checks import LAYOUTS, check_choice, check_compensation, check_threshold
from .errors import TopThetaValueError
from .fallback.layout import in_layout, query_heads


def merge_partials(
    parts: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]],
    threshold: Tensor,
    n: Sequence[int | Tensor],
    *,
    input_layout: str = "BNSD",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Merge the parts of a row, and apply SDC and VMC, which only the whole row can know.

    Args:
        parts: results of `incremental_attention_partial`, in any order.
        threshold: float32 [Hq] or [B, Hq], as given to the parts.
        n: valid keys of each part, an int or an integer tensor [B] per part.
        input_layout, sdc, sdc_gamma, discarded_mass, value_mean: as in `incremental_attention`.
        dtype: of the result.

    Returns:
        The whole row's output in the layout of the query. The stand-in of a part that kept nothing is used
        only if no part kept anything; the largest element wins.
    """
    if not parts:
        raise TopThetaValueError("parts", "at least one part", "none")
    if len(n) != len(parts):
        raise TopThetaValueError("n", f"one entry per part, {len(parts)}", str(len(n)))
    maximum = parts[0][1]
    batch, heads = maximum.shape
    check_choice("input_layout", input_layout, LAYOUTS)
    check_threshold(threshold, maximum, batch, heads)
    kv_heads = heads if value_mean is None else value_mean.shape[1]
    check_compensation(maximum, heads, kv_heads, "pre_softmax", sdc, sdc_gamma, discarded_mass, value_mean)
    total = sum(torch.as_tensor(length, device=maximum.device).long().expand(batch) for length in n)
    out = fallback.merge_partials(
        [fallback.Partial(query_heads(part[0], input_layout, heads), *part[1:]) for part in parts],
        threshold.expand(batch, heads), torch.as_tensor(total)[:, None], sdc, sdc_gamma, discarded_mass, value_mean,
    )  # fmt: skip
    return in_layout(out.to(dtype), input_layout)
