"""Quest (Tang et al. 2024, arXiv 2406.10774): pages of keys, by a bound of their scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import TopThetaValueError
from ...fallback.prefill import RowChunk, Selector
from .after_top_k import after_top_k
from .blocks import in_blocks, of_keys
from .method import KeyReads, Method
from .spec import MethodKind, MethodSpec, Option, Setting


def select_pages(count: int, page: int = 16) -> Selector:
    """Keep ``count`` pages of keys: the last of the row, and those whose scores may be the largest.

    Pages count from the row's first key on; the bound of a page is the sum over d of max(q_d min_d, q_d max_d), of the
    least and the largest key elements of the page. The last page, which may be incomplete, needs none. A row of at most
    ``count`` pages is dense.

    Raises:
        TopThetaValueError: ``count`` or ``page`` is not positive.
    """
    if count < 1:
        raise TopThetaValueError("count", "at least 1, the last page", str(count))
    if page < 1:
        raise TopThetaValueError("page", "at least 1 key", str(page))

    def select(chunk: RowChunk) -> Tensor:
        return of_keys(page_rank(chunk, page) < count, chunk, page)

    return select


def page_rank(chunk: RowChunk, page: int) -> Tensor:
    """Rank the pages of each row, [B, Hq, rows, pages]: its last is 0, the best other one 1."""
    keys = in_blocks(chunk.key.transpose(-1, -2), chunk, page, 0.0)  # [B, Hkv, D, pages, page]
    query = chunk.query.unflatten(1, (chunk.key.shape[1], -1))
    with torch.autocast(query.device.type, enabled=False):
        bound = torch.einsum("bkgrd,bkdp->bkgrp", query.clamp_min(0), keys.amax(-1))
        bound += torch.einsum("bkgrd,bkdp->bkgrp", query.clamp_max(0), keys.amin(-1))
    index = torch.arange(bound.shape[-1], device=bound.device)
    last = (chunk.n.unsqueeze(-1) - 1).div(page, rounding_mode="floor")  # [B, 1, rows, 1]
    # all pages before the last are complete; those behind it are the row's future or padding, of whatever content
    bound = bound.flatten(1, 2).masked_fill(index > last, -math.inf).masked_fill(index == last, math.inf)
    rank: Tensor = bound.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return rank


def _make(spec: MethodSpec, setting: Setting) -> Method:
    """Keep as many pages as k keys, the "token budget" of the paper, fill."""
    page = spec.options["page"]
    select = select_pages(-(-setting.k // page), page)
    # the least and the largest elements of every page are read to choose, then the keys of those that are kept
    key_reads = KeyReads(2 / page, 1.0)
    return Method(setting.family, setting.k, lambda model: after_top_k(model, setting.targets, select), key_reads)


KIND = MethodKind("pages", "pages (Quest)", _make, options={"page": Option(16, label="pages of {}")})
