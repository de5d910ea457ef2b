"""Splitting a row into parts and merging them equals the whole row."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import INF, Case
from tests.helpers import Inputs, make_inputs
from toptheta_npu import (
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
    merge_partials,
)
from toptheta_npu.fallback import reference
from toptheta_npu.fallback.compensation import Compensation

pytestmark = pytest.mark.usefixtures("cpu_backend")
_BASE = Case("split", heads=8, lengths=(40, 33, 1), head_dim=16, keep=0.1)
_PART = ("threshold", "input_layout", "placement", "scale_value", "num_heads", "num_key_value_heads")


@lru_cache(maxsize=64)
def whole(placement: str, theta: str, vmc: bool = False) -> Inputs:
    return make_inputs(replace(_BASE, vmc=vmc, placement=placement, theta=theta), poison=("outside",))


def split(inputs: Inputs, cuts: list[int]) -> tuple[list[Any], list[Tensor]]:
    """The parts between the cuts, and their valid keys; a part without keys gets one unmapped row."""
    arguments = inputs.arguments
    capacity = arguments["key"].shape[2]
    edges = [0, *sorted(min(cut, capacity) for cut in cuts), capacity]
    parts, counts = [], []
    options = {name: arguments[name] for name in _PART if name in arguments}
    if inputs.case.placement == "post_softmax":
        options["lse"] = incremental_attention_with_stats(**arguments)[1]
    for first, last in pairwise(edges):
        counts.append((inputs.rows.lengths - first).clamp(0, last - first))
        first = min(first, capacity - 1)
        key, value = (arguments[name].narrow(2, first, max(last - first, 1)) for name in ("key", "value"))
        parts.append(
            incremental_attention_partial(arguments["query"], key, value, actual_seq_lengths=counts[-1], **options)
        )
    return parts, counts


@pytest.mark.parametrize("theta", ["quantile", "nothing", "inf", "mixed", "dense"])
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_incremental_attention_partial_equals_the_oracle_on_its_keys(theta: str, placement: str) -> None:
    inputs = whole(placement, theta)
    rows, cuts = inputs.rows, [0, 9, 25, 38, 45]
    parts, counts = split(inputs, cuts[1:-1])
    lse = inputs.expected.lse
    for part, count, first, last in zip(parts, counts, cuts[:-1], cuts[1:], strict=True):
        key, value = (t[:, :, first:last].double() for t in (rows.key, rows.value))
        seen = reference.Rows(rows.query.double(), key, value, rows.threshold.double(), lengths=count)
        expected = reference.incremental_attention(seen, placement=placement, row_lse=lse)
        theta_score = reference.score_threshold(rows.threshold.double(), lse, placement)
        scores = reference.attention_scores(rows.query.double(), key, 0.25)
        passing = ((scores > theta_score[..., None]) & reference.valid_keys(key.shape[2], count, count * 0)).sum(-1)
        assert torch.equal(part.kept.long(), passing)
        empty, has_keys = passing == 0, (count > 0)[:, None].expand_as(passing)
        total = expected.kept_mass + expected.discarded_mass
        kept_mass = expected.kept_mass.masked_fill(empty, 0.0)
        close = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
        torch.testing.assert_close(part.maximum, expected.maximum, **close)
        torch.testing.assert_close(part.kept_mass, kept_mass, **close)
        torch.testing.assert_close(part.discarded_mass, total - kept_mass, **close)
        none = Compensation("none")
        plain = reference.incremental_attention(seen, none, placement=placement, row_lse=lse).out
        torch.testing.assert_close(part.out[:, :, 0][has_keys], plain[has_keys], **close)


def test_masses_of_60000_keys_are_exact_to_a_few_roundings(device: str) -> None:
    """Equal masses, so that roundings add up: a float32 sum of one after the other is off by 1e-4."""
    scores = torch.tensor([0.9, 0.9, 0.9, -2.0]).repeat(15000)
    scores[7] = 1.0
    key = torch.zeros(1, 1, 60000, 16)
    key[..., 0] = scores
    query = torch.zeros(1, 1, 1, 16)
    query[..., 0] = 1.0
    tensors = [t.to(device) for t in (query, key, key, torch.tensor([0.5]))]
    part = incremental_attention_partial(*tensors, scale_value=1.0)
    masses = (scores.double() - 1.0).exp()
    close = {"rtol": 1e-6, "atol": 0.0}
    torch.testing.assert_close(part.kept_mass.cpu().double().squeeze(), masses[scores > 0.5].sum(), **close)
    torch.testing.assert_close(part.discarded_mass.cpu().double().squeeze(), masses[scores < 0.5].sum(), **close)


def test_a_part_that_keeps_nothing_has_its_v_row_used_only_if_no_part_keeps_any() -> None:
    query = torch.zeros(1, 1, 1, 16)
    query[..., 0] = 4.0  # scores are the first component of a key
    key, value = torch.zeros(1, 1, 4, 16), torch.arange(4.0).view(1, 1, 4, 1).expand(1, 1, 4, 16).contiguous()
    key[0, 0, :, 0] = torch.tensor([1.0, 3.0, 3.0, 2.0])
    parts = [incremental_attention_partial(query, key[:, :, s], value[:, :, s], torch.tensor([2.5]))
             for s in (slice(0, 1), slice(1, 3), slice(3, 4))]  # fmt: skip
    assert [part.kept.item() for part in parts] == [0, 2, 0]
    assert [part.kept_mass.item() for part in parts] == [0.0, 2.0, 0.0]
    assert [part.discarded_mass.item() for part in parts] == [1.0, 0.0, 1.0]
    assert merge_partials(parts, torch.tensor([2.5]), [1, 2, 1], sdc="none").unique().tolist() == [1.5]
    nothing = [incremental_attention_partial(query, key[:, :, s], value[:, :, s], torch.tensor([9.0]))
               for s in (slice(0, 1), slice(1, 2), slice(2, 4))]  # fmt: skip
    assert merge_partials(nothing, torch.tensor([9.0]), [1, 1, 2], sdc="none").unique().tolist() == [1.0]


@pytest.mark.parametrize("cuts", [(1,), (2,), (3,), (1, 2, 3), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("largest", [(0, 3), (1, 2), (2, 5), (0, 1, 2, 3, 4, 5)], ids=str)
def test_lowest_key_stands_in_where_parts_in_key_order_tie(cuts: tuple[int, ...], largest: tuple[int, ...]) -> None:
    query = torch.ones(1, 2, 1, 16)
    key, value = torch.zeros(1, 2, 6, 16), torch.arange(6.0).view(1, 1, 6, 1).expand(1, 2, 6, 16).contiguous()
    key[:, :, list(largest), 0] = 4.0
    never = torch.full((2,), INF)
    whole_row = incremental_attention(query, key, value, never, sdc="none")
    edges = (0, *cuts, 6)
    parts = [incremental_attention_partial(query, key[:, :, a:b], value[:, :, a:b], never) for a, b in pairwise(edges)]
    out = merge_partials(parts, never, [b - a for a, b in pairwise(edges)], sdc="none")
    assert torch.equal(out, whole_row)
    assert out.unique().tolist() == [largest[0]]


def test_merge_partials_of_a_length_0_row_is_0_even_if_its_mean_is_nan() -> None:
    inputs = whole("pre_softmax", "quantile", vmc=True)
    arguments = inputs.arguments | {"actual_seq_lengths": torch.tensor([40, 0, 1])}
    mean = arguments["value_mean"].clone()
    mean[1] = torch.nan  # 0 / 0
    options = {name: arguments[name] for name in _PART if name in arguments}
    part = incremental_attention_partial(
        arguments["query"], arguments["key"], arguments["value"], actual_seq_lengths=torch.tensor([40, 0, 1]), **options
    )
    assert part.maximum[1].tolist() == [-torch.inf] * 8
    assert part.kept[1].tolist() == [0] * 8
    assert part.kept_mass[1].tolist() == part.discarded_mass[1].tolist() == [0.0] * 8
    out = merge_partials([part, part], arguments["threshold"], [torch.tensor([40, 0, 1])] * 2, value_mean=mean)
    assert out[1].abs().max().item() == 0.0
    assert out.isfinite().all()
