"""Steps of several query tokens: against the oracle and against dense attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import TOKEN_CASES, Case
from tests.helpers import (
    Inputs,
    assert_equals_oracle,
    by_sequence,
    in_layout,
    make_inputs,
)
from tests.random_cases import inputs_or_reject, largest_score, random_cases
from toptheta_npu import (
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
    merge_partials,
    row_lengths,
    use_backend,
)

INF = float("inf")
_BY_ID = {case.id: case for case in TOKEN_CASES}
BASE = Case("base", query_tokens=4, heads=8, lengths=(150, 77), query_lengths=(4, 2), vmc=True)


@pytest.fixture(autouse=True, scope="module")
def fallback() -> Iterator[None]:
    with use_backend("fallback"):
        yield


@lru_cache(maxsize=64)
def inputs_of(case: Case, device: str = "cpu") -> Inputs:
    return make_inputs(case, device, poison=("outside",))


@pytest.mark.parametrize("case", TOKEN_CASES, ids=lambda case: case.id)
def test_a_step_equals_the_oracle(case: Case, fallback_device: str) -> None:
    inputs = inputs_of(case, fallback_device)
    result = incremental_attention_with_stats(**inputs.arguments)
    assert_equals_oracle(inputs, result)
    assert torch.equal(incremental_attention(**inputs.arguments), result[0])


@pytest.mark.parametrize("case_id", ["tokens-ragged", "tokens-paged-3d-bf16-bsh", "tokens-start-f16-bsnd-post"])
@pytest.mark.parametrize("path", ["dense", "gather"])
def test_a_forced_path_equals_the_oracle(path: str, case_id: str) -> None:
    case = _BY_ID[case_id]
    inputs = make_inputs(case, poison=("outside", "values") if path == "gather" else ("outside",))
    assert_equals_oracle(inputs, incremental_attention_with_stats(**inputs.arguments, _path=path))


@pytest.mark.drawn
@given(
    case=random_cases(for_kernel=False, query_tokens=True), path=st.sampled_from(["auto", "auto", "gather", "dense"])
)
def test_a_drawn_step_equals_the_oracle(case: Case, path: str) -> None:
    inputs = inputs_or_reject(case, path)
    result = incremental_attention_with_stats(**inputs.arguments, _path=path)
    assert_equals_oracle(inputs, result, largest_score(inputs))


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_rows_equal_masked_dense_attention(placement: str) -> None:
    """Written without a line of the package: one mask of causality and selection, one softmax, one mean."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, n, 16, dtype=torch.float64) for n in (3, 40, 40))
    n, real = torch.tensor([40, 25]), torch.tensor([3, 2])
    theta = 0.8 if placement == "pre_softmax" else 0.03
    position = torch.arange(40)
    expected, mean = torch.zeros_like(query), torch.zeros(2, 2, 3, 16)
    for b in range(2):
        for t in range(int(real[b])):
            seen = position < n[b] - real[b] + 1 + t
            scores = torch.where(seen, query[b, :, t, None] @ key[b].mT / 4, -INF)[:, 0]
            weights = scores.softmax(-1)
            keep = (weights if placement == "post_softmax" else scores) > theta
            mean[b, :, t] = value[b][:, seen].mean(1)
            lost = (weights * ~keep).sum(-1, keepdim=True)
            expected[b, :, t] = ((weights * keep)[:, None] @ value[b])[:, 0] + lost * mean[b, :, t]
    tensors = [tensor.float() for tensor in (query, key, value)]
    out = incremental_attention(
        *tensors, torch.full((2,), theta), actual_seq_lengths=n, actual_query_lengths=real, value_mean=mean,
        placement=placement,
    )  # fmt: skip
    torch.testing.assert_close(out, expected.float(), atol=1e-5, rtol=0)


# What reaches a token, and what does not.


def _with_rows(arguments: dict[str, Any], name: str, rows: slice, value: float) -> dict[str, Any]:
    spoilt = arguments[name].clone()
    spoilt[:, :, rows] = value
    return arguments | {name: spoilt}


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("theta", ["mixed", "dense"])
def test_a_later_token_never_reaches_an_earlier_one(theta: str, placement: str) -> None:
    """Rejected drafts: other keys, values, queries, means of later tokens change no bit of what stands before."""
    case = replace(BASE, theta=theta, placement=placement, lengths=(150, 150), query_lengths=())
    arguments = inputs_of(case).arguments
    before = incremental_attention_with_stats(**arguments, _path="dense")
    changed = _with_rows(arguments, "key", slice(148, 150), 3.0)
    changed = _with_rows(changed, "value", slice(148, 150), -20.0)
    changed = _with_rows(changed, "query", slice(2, 4), 5.0)
    changed = _with_rows(changed, "value_mean", slice(2, 4), 9.0)
    after = incremental_attention_with_stats(**changed, _path="dense")
    for one, other in zip(before[:3], after[:3], strict=True):
        assert torch.equal(one[:, :, :2], other[:, :, :2])
    assert not torch.equal(before[0][:, :, 2:], after[0][:, :, 2:])


@pytest.mark.parametrize("path", ["gather", "dense"])
def test_no_real_token_reads_nothing(path: str) -> None:
    """Nor do its mean, its thresholds' rows and its caches matter, whatever they hold."""
    case = replace(BASE, lengths=(40, 30, 0), query_lengths=(0, 2, 0))
    arguments = dict(inputs_of(case).arguments)
    expected = incremental_attention_with_stats(**arguments, _path=path)
    for name in ("query", "key", "value", "value_mean"):
        arguments[name] = arguments[name].clone()
        arguments[name][[0, 2]] = torch.nan
    out, lse, kept, value_rows = incremental_attention_with_stats(**arguments, _path=path)
    assert all(torch.equal(one, other) for one, other in zip((out, lse, kept, value_rows), expected, strict=True))
    for sequence in (0, 2):
        assert out[sequence].abs().max() == 0
        assert (lse[sequence] == -INF).all()
        assert (kept[sequence] == 0).all()
        assert (value_rows[sequence] == 0).all()


@pytest.mark.parametrize("form", ["[Hq]", "[B, Hq]"])
def test_thresholds_of_heads_are_those_of_all_tokens(form: str) -> None:
    arguments = inputs_of(replace(BASE, theta="quantile", vmc=False)).arguments
    threshold = arguments["threshold"][:, :, 0] if form == "[B, Hq]" else arguments["threshold"][0, :, 0]
    spread = threshold.expand(2, 8)[..., None].expand(2, 8, 4)
    whole, shared = (incremental_attention_with_stats(**arguments | {"threshold": t}) for t in (spread, threshold))
    assert all(torch.equal(one, other) for one, other in zip(whole, shared, strict=True))
    parts = [incremental_attention_partial(
        *(arguments[name] for name in ("query", "key", "value")), given,
        actual_seq_lengths=by_sequence(BASE, inputs_of(BASE).rows.lengths),
    ) for given in (spread, threshold)]  # fmt: skip
    merged = [
        merge_partials([part], given, [by_sequence(BASE, inputs_of(BASE).rows.lengths)], sdc="exp_threshold")
        for part, given in zip(parts, (spread, threshold), strict=True)
    ]
    assert torch.equal(*merged)


def test_ties_take_the_lowest_index_that_the_token_sees() -> None:
    key = torch.zeros(1, 2, 20, 16)
    key[:, :, [7, 18, 19], 0] = torch.tensor([1.0, 2.0, 2.0])[:, None].T
    value = torch.arange(20.0).view(1, 1, 20, 1).expand(1, 2, 20, 16)
    query = torch.zeros(1, 2, 3, 16)
    query[..., 0] = 1.0
    out, _, kept, value_rows = incremental_attention_with_stats(
        query, key, value, torch.full((2,), INF), scale_value=1.0, sdc="none"
    )
    assert out[0, 0, :, 0].tolist() == [7, 18, 18]
    assert kept.tolist() == [[[1, 1, 1]] * 2]
    assert value_rows.tolist() == [[2, 2]]


def test_one_token_by_query_lengths_is_one_token() -> None:
    inputs = inputs_of(Case("one", lengths=(150, 77, 0), query_lengths=(1, 0, 0), vmc=True))
    arguments = dict(inputs.arguments)
    found = incremental_attention_with_stats(**arguments)
    arguments["actual_query_lengths"] = None
    arguments["actual_seq_lengths"] = torch.tensor([150, 0, 0])
    for one, other in zip(found, incremental_attention_with_stats(**arguments), strict=True):
        assert torch.equal(one, other)


def test_row_lengths() -> None:
    n, real = torch.tensor([9, 2, 20, 5, -3], dtype=torch.int32), torch.tensor([3, 7, -1, 2, 1])
    expected = [[7, 8, 9], [1, 2, 0], [0, 0, 0], [4, 5, 0], [0, 0, 0]]
    assert row_lengths(n, real, 3).tolist() == expected
    assert row_lengths(n, None, 3).tolist() == [[7, 8, 9], [1, 2, 0], [18, 19, 20], [3, 4, 5], [0, 0, 0]]
    assert row_lengths(n, None, 1).tolist() == [[9], [2], [20], [5], [0]]


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH"])
def test_lengths_of_devices_are_clamped(layout: str) -> None:
    """As where nobody looks at values: s to n and Sq, n to the cache."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(4, 2, n, 16, generator=generator) for n in (3, 9, 9))
    threshold = torch.zeros(2)
    options = {"num_heads": 2, "num_key_value_heads": 2, "scale_value": 0.25, "input_layout": layout}
    rows = [in_layout(tensor, layout) for tensor in (query, key, value)]

    def run(lengths: list[int], real: list[int]) -> tuple[Tensor, ...]:
        from toptheta_npu import fallback

        result: tuple[Tensor, ...] = fallback.incremental_attention_with_stats(fallback.Arguments(
            2, 2, 0.25, *rows, threshold, torch.tensor(lengths), actual_query_lengths=torch.tensor(real),
            input_layout=layout,
        ))  # fmt: skip
        return result

    clamped = run([9, 2, 9, 0], [3, 2, 0, 0])
    assert all(map(torch.equal, run([99, 2, 9, -1], [7, 3, -4, 2]), clamped))
    good = incremental_attention_with_stats(
        *rows, threshold, actual_seq_lengths=[9, 2, 9, 0], actual_query_lengths=[3, 2, 0, 0], **options
    )
    assert all(map(torch.equal, good, clamped))
