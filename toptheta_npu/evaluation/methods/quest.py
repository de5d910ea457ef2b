"""Quest (Tang et al. 2024, arXiv 2406.10774): pages of keys, by a bound of their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaValueError
from ...fallback.prefill import RowChunk, Selector
from .blocks import check_block, in_blocks, of_groups, of_keys
from .control import control
from .matching import nearest_cut, value_rows_by_cut, wanted_value_rows
from .method import Compensation, KeyReads, Method, Selection
from .options import AS_PUBLISHED, SELECTION, whole_number
from .selecting import key_reads_of
from .spec import MethodKind, MethodSpec, Reference

_TITLE = "pages (Quest)"


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
    check_block("page", page)

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


def pages(
    k: int,
    count: int,
    targets: Sequence[int],
    *,
    page: int = 16,
    compensated: bool | Compensation = False,
    selection: Selection = "own",
) -> Method:
    """Attend to the pages of `select_pages`; Top-k in the first layers.

    Args:
        k: of the Top-θ run that it is matched to.
        count, page: as in `select_pages`.
        targets: the k of each layer, of which the first layers' are used.
        compensated, selection: as in `top_theta.top_theta`; exact SDC makes it read every K row.
    """
    return control(_TITLE, k, targets, select_pages(count, page), compensated, page_key_reads(page), selection)


def page_key_reads(page: int) -> KeyReads:
    """Count the least and the largest elements of every page, and the keys of the pages that are kept."""
    return KeyReads(2 / page, 1.0)


def match_pages(
    model: PreTrainedModel, windows: Tensor, keys: float, value_rows: float, page: int
) -> tuple[int, float]:
    """Find the number of pages for a mean number of V rows per KV head, and the number that it gives on ``windows``.

    The arguments and the errors are those of `blasst.match_scale_factor`.
    """

    def place(chunk: RowChunk) -> Tensor:
        return of_groups(page_rank(chunk, page), chunk).amin(2)

    kept = value_rows_by_cut(model, windows, keys, page, place, -(-windows.shape[1] // page))
    count = nearest_cut(kept, value_rows)
    return count, float(kept[count])


def _match(spec: MethodSpec, to: Reference) -> Method:
    """Find the number of pages with which as many K and V rows are read, the bounds of all pages included."""
    page = spec.options["page"]
    wanted = wanted_value_rows(to.reads, key_reads_of(spec.compensation, page_key_reads(page)))
    count, expected = match_pages(to.model, to.windows, to.reads.keys_mean, wanted, page)
    method = pages(to.k, count, to.layer_targets, page=page, compensated=spec.compensation, selection=spec.selection)
    settings = {"count": count, "wanted_value_rows": wanted, "expected_value_rows": expected}
    return replace(method, settings=settings)


KIND = MethodKind(
    "pages", _TITLE, match=_match, calibrates=True,
    options={**AS_PUBLISHED, "selection": SELECTION, "page": whole_number(16, "pages of {}")},
)  # fmt: skip
