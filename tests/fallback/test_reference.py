"""The oracle against the paper: numbers worked out by hand, then the identities it states."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from toptheta_npu.fallback import reference
from toptheta_npu.fallback.compensation import Compensation

INF = float("inf")
LN = math.log
#: Four keys whose exponentiated scores are 8, 4, 2 and 1, with values 1, 2, 3 and 4; their mean is 2.5.
SCORES = [LN(8.0), LN(4.0), LN(2.0), LN(1.0)]
VALUES = [1.0, 2.0, 3.0, 4.0]


def one_row(theta: float, scores: list[float] = SCORES, **options: Any) -> reference.ReferenceResult:
    """A row of one head with head_dim 1, q = 1 and scale 1: the keys are the scores."""
    key = torch.tensor(scores, dtype=torch.float64).view(1, 1, -1, 1)
    value = torch.tensor(VALUES[: len(scores)], dtype=torch.float64).view(1, 1, -1, 1)
    query = torch.ones(1, 1, 1, dtype=torch.float64)
    threshold = torch.tensor([[theta]], dtype=torch.float64)
    where = {name: options.pop(name) for name in ("lengths", "starts") if name in options}
    placement = options.pop("placement", "pre_softmax")
    rows = reference.Rows(query, key, value, threshold, scale_value=1.0, **where)
    return reference.incremental_attention(rows, Compensation(**options), placement=placement)


def mean(value: float) -> Tensor:
    return torch.full((1, 1, 1), value, dtype=torch.float64)


MASS = torch.full((1, 1), 0.5, dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "expected"),
    [  # theta = ln 3 keeps 8 and 4: R = 12/8, E = 3/8, N = (8*1 + 4*2)/8 = 2
        pytest.param({"sdc": "none"}, 4 / 3, id="none"),
        pytest.param({"sdc": "exact"}, 16 / 15, id="exact"),
        pytest.param({"sdc": "exp_threshold"}, 2 / 1.5375, id="exp_threshold"),  # 0.05 * 2 * 3/8 = 0.0375
        pytest.param({"sdc": "exp_threshold", "sdc_gamma": 0.4}, 2 / 1.8, id="exp_threshold-gamma"),
        pytest.param({"sdc": "offline", "discarded_mass": MASS}, 1.0, id="offline"),
        pytest.param({"sdc": "exact", "value_mean": mean(2.5)}, 16 / 15 + 0.2 * 2.5, id="exact-vmc"),
        pytest.param({"sdc": "offline", "discarded_mass": MASS, "value_mean": mean(2.5)}, 1.625, id="offline-vmc"),
        pytest.param(
            {"sdc": "exp_threshold", "value_mean": mean(2.5)}, (2 + 0.0375 * 2.5) / 1.5375, id="exp_threshold-vmc"
        ),
    ],
)
def test_sdc_and_vmc_by_hand(options: dict[str, Any], expected: float) -> None:
    result = one_row(LN(3.0), **options)
    assert result.out.item() == pytest.approx(expected, rel=1e-14)
    assert result.keep.tolist() == [[[True, True, False, False]]]
    assert (result.kept.item(), result.value_rows.item()) == (2, 2)
    assert (result.kept_mass.item(), result.discarded_mass.item()) == pytest.approx((1.5, 0.375), rel=1e-14)
    assert result.lse.item() == pytest.approx(LN(15.0), rel=1e-14)


@pytest.mark.parametrize(
    ("theta", "kept"), [(0.2, 2), (0.5, 1), (0.6, 1), (0.0, 4), (-0.1, 4), (-INF, 4), (0.1, 3), (INF, 1)]
)
def test_post_softmax_by_hand(theta: float, kept: int) -> None:
    result = one_row(theta, placement="post_softmax")  # probabilities 8/15, 4/15, 2/15, 1/15
    assert result.kept.item() == kept
    numerator = [8 * 1, 8 * 1 + 4 * 2, 8 * 1 + 4 * 2 + 2 * 3, 8 * 1 + 4 * 2 + 2 * 3 + 1 * 4][kept - 1]
    assert result.out.item() == pytest.approx(numerator / 15, rel=1e-14)


def test_post_softmax_vmc_by_hand() -> None:
    result = one_row(0.2, placement="post_softmax", value_mean=mean(2.5))
    assert result.out.item() == pytest.approx(16 / 15 + 3 / 15 * 2.5, rel=1e-14)


def sink(logit: float) -> Tensor:
    return torch.tensor([logit])


@pytest.mark.parametrize(
    ("options", "expected"),
    [  # the sink is ln 4 with a mass of 4/8 in the denominator, and its part of the weight is lost
        pytest.param({"sdc": "none"}, 2 / 2, id="none"),
        pytest.param({"sdc": "exact"}, 2 / 2.375, id="exact"),
        pytest.param({"sdc": "exp_threshold"}, 2 / 2.0375, id="exp_threshold"),
        pytest.param({"sdc": "offline", "discarded_mass": MASS}, 2 / 2.5, id="offline"),
        pytest.param({"sdc": "exact", "value_mean": mean(2.5)}, (2 + 0.375 * 2.5) / 2.375, id="exact-vmc"),
    ],
)
def test_learnable_sink_by_hand(options: dict[str, Any], expected: float) -> None:
    result = one_row(LN(3.0), learnable_sink=sink(LN(4.0)), **options)
    assert result.out.item() == pytest.approx(expected, rel=1e-6)  # ln 4 is a float32
    assert (result.kept.item(), result.value_rows.item()) == (2, 2)
    assert result.lse.item() == pytest.approx(LN(19.0), rel=1e-6)


def test_post_softmax_tests_the_probability_beside_a_learnable_sink() -> None:
    result = one_row(0.2, placement="post_softmax", learnable_sink=sink(LN(10.0)))  # 8/25, 4/25, 2/25, 1/25
    assert result.kept.item() == 1
    assert result.out.item() == pytest.approx(8 / 25, rel=1e-6)


def test_learnable_sinks_without_a_row_and_rows_without_a_sink() -> None:
    assert one_row(LN(3.0), learnable_sink=sink(-INF)).out.item() == one_row(LN(3.0)).out.item()
    assert one_row(LN(3.0), learnable_sink=sink(3e38)).out.item() == 0.0  # exp overflows
    for scores, length in ((SCORES, 0), ([-INF] * 4, 4)):
        result = one_row(1.0, scores, learnable_sink=sink(1.0), lengths=torch.tensor([length]))
        assert (result.out.item(), result.lse.item(), result.kept.item()) == (0.0, -INF, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [  # nothing passes, so the 8 is kept: R = 1, E = 7/8
        pytest.param({"sdc": "none"}, 1.0, id="none"),
        pytest.param({"sdc": "exact"}, 8 / 15, id="exact"),
        pytest.param({"sdc": "exact", "value_mean": mean(2.5)}, 8 / 15 + 7 / 15 * 2.5, id="exact-vmc"),
        pytest.param({"sdc": "exp_threshold"}, 1 / 1.15, id="exp_threshold-never-above-the-maximum"),
        pytest.param({"sdc": "offline", "discarded_mass": MASS}, 1 / 1.5, id="offline"),
    ],
)
@pytest.mark.parametrize("theta", [LN(8.0), LN(80.0), INF], ids=["equal-is-not-above", "above", "inf"])
def test_row_that_keeps_nothing_by_hand(theta: float, options: dict[str, Any], expected: float) -> None:
    result = one_row(theta, **options)
    assert result.keep.tolist() == [[[True, False, False, False]]]
    assert result.out.item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("scores", "index"), [([0.0, 0.0, 0.0, 0.0], 0), ([1.0, 3.0, 3.0, 2.0], 1), ([1.0, 2.0, 3.0, 3.0], 2)]
)
def test_row_that_keeps_nothing_takes_the_lowest_index_among_equals(scores: list[float], index: int) -> None:
    result = one_row(9.0, scores, sdc="none")
    assert result.keep[0, 0].nonzero().tolist() == [[index]]
    assert result.out.item() == VALUES[index]


def test_where_nothing_is_discarded_no_estimate_is_added() -> None:
    for options in ({"sdc": "exp_threshold"}, {"sdc": "offline", "discarded_mass": MASS}):
        result = one_row(-1.0, value_mean=mean(100.0), **options)
        assert result.kept.item() == 4
        assert result.out.item() == pytest.approx((8 + 8 + 6 + 4) / 15, rel=1e-14)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("theta", [-INF, 0.5, INF])
def test_length_0(placement: str, theta: float) -> None:
    options = {"lengths": torch.tensor([0]), "value_mean": mean(2.5), "placement": placement}
    result = one_row(theta, **options)
    assert (result.out.item(), result.lse.item(), result.kept.item(), result.value_rows.item()) == (0.0, -INF, 0, 0)


def test_lengths_and_starts_choose_the_valid_keys() -> None:
    result = one_row(-INF, lengths=torch.tensor([2]), starts=torch.tensor([1]))
    assert result.keep.tolist() == [[[False, True, True, False]]]
    assert result.out.item() == pytest.approx((4 * 2 + 2 * 3) / 6, rel=1e-14)
    assert result.lse.item() == pytest.approx(LN(6.0), rel=1e-14)


def test_rows_outside_the_valid_range_are_not_multiplied() -> None:
    scores = [LN(8.0), LN(4.0), math.nan, INF]
    result = one_row(-INF, scores, lengths=torch.tensor([2]))
    assert result.out.item() == pytest.approx(16 / 12, rel=1e-14)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "expected"),
    [(12, 1, 1, [2]), (16, 2, 1, [1, 1]), (8, 1, 257, [2]), (4, 4, 1, [1] * 4)],
)
def test_value_rows_count_the_union_per_head_block(
    heads: int, kv_heads: int, head_dim: int, expected: list[int]
) -> None:
    query, key = torch.ones(1, heads, head_dim), torch.zeros(1, kv_heads, 5, head_dim)
    key[:, :, 3] = 1.0  # every head keeps row 3 alone
    result = reference.incremental_attention(
        reference.Rows(query, key, key, torch.full((1, heads), 0.5), scale_value=1.0)
    )
    assert result.value_rows.tolist() == [expected]


def test_scale_defaults_to_one_over_root_head_dim() -> None:
    query, key = torch.ones(1, 1, 16), torch.ones(1, 1, 1, 16)
    assert reference.incremental_attention(reference.Rows(query, key, key, torch.zeros(1, 1))).lse.item() == 4.0


# The identities, over random rows in float64.


@st.composite
def random_rows(draw: st.DrawFn) -> dict[str, Tensor]:
    """query [B, Hq, D], key and value [B, Hkv, S, D], threshold [B, Hq] from below all scores to above all."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4, 7]))
    n, dim = draw(st.integers(1, 40)), draw(st.sampled_from([1, 3, 16]))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    heads = kv_heads * group
    threshold = draw(st.floats(-3, 3)) + 0.3 * normal(batch, heads)
    key_value = {"key": normal(batch, kv_heads, n, dim), "value": normal(batch, kv_heads, n, dim)}
    return {"query": normal(batch, heads, dim) * draw(st.sampled_from([1.0, 5.0])), **key_value, "threshold": threshold}


def attend(rows: dict[str, Tensor], placement: str = "pre_softmax", **compensation: Any) -> reference.ReferenceResult:
    return reference.incremental_attention(reference.Rows(**rows), Compensation(**compensation), placement=placement)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def value_mean(rows: dict[str, Tensor]) -> Tensor:
    return rows["value"].mean(2)


@given(random_rows(), st.sampled_from(["none", "exact", "exp_threshold"]))
def test_threshold_of_minus_infinity_is_torch_sdpa(rows: dict[str, Tensor], sdc: str) -> None:
    rows["threshold"] = torch.full_like(rows["threshold"], -INF)
    dense = torch.nn.functional.scaled_dot_product_attention(
        rows["query"].unsqueeze(2), rows["key"], rows["value"], enable_gqa=True
    )
    mean = None if sdc == "none" else value_mean(rows) * 1000
    close(attend(rows, sdc=sdc, value_mean=mean).out, dense[:, :, 0])


@given(random_rows(), st.booleans())
def test_pre_softmax_with_exact_sdc_equals_post_softmax_on_the_same_set(rows: dict[str, Tensor], vmc: bool) -> None:
    mean = value_mean(rows) if vmc else None
    pre = attend(rows, value_mean=mean)
    probability = (rows["threshold"] - pre.lse).exp()  # the same test, up to rounding: a > theta
    post = attend(rows | {"threshold": probability}, "post_softmax", value_mean=mean)
    assert torch.equal(pre.keep, post.keep)
    close(post.out, pre.out)


@given(random_rows(), st.sampled_from(["exact", "exp_threshold", "offline"]), st.booleans())
def test_vmc_returns_the_row_where_all_v_rows_are_equal(rows: dict[str, Tensor], sdc: str, post: bool) -> None:
    rows["value"] = rows["value"][:, :, :1].expand_as(rows["value"])
    options: dict[str, Any] = {"sdc": sdc, "discarded_mass": rows["threshold"].abs() if sdc == "offline" else None}
    if post:
        options = {"placement": "post_softmax"}
        rows["threshold"] = rows["threshold"] / 10
    out = attend(rows, value_mean=rows["value"][:, :, 0], **options).out
    group = out.shape[1] // rows["value"].shape[1]
    close(out, rows["value"][:, :, 0].repeat_interleave(group, dim=1))


@given(random_rows(), st.floats(-50, 50))
def test_exp_threshold_is_bounded_by_gamma_times_the_discarded_count(rows: dict[str, Tensor], theta: float) -> None:
    rows["threshold"] = torch.full_like(rows["threshold"], theta)
    rows["value"] = torch.ones_like(rows["value"])  # out = R / (R + E~)
    result = attend(rows, sdc="exp_threshold", sdc_gamma=0.5)
    discarded = rows["key"].shape[2] - result.kept
    estimate = result.kept_mass / result.out[..., 0] - result.kept_mass
    assert bool((estimate <= 0.5 * discarded + 1e-9).all())
    close(estimate, 0.5 * discarded * (rows["threshold"].minimum(result.maximum) - result.maximum).exp())
