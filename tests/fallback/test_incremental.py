"""The decode step against the oracle on every case, its equivalences, and the rows it must not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import CASES, SAMPLED_CASES, Case, valid_arguments
from tests.helpers import (
    Inputs,
    assert_equals_oracle,
    assert_within_yardstick,
    from_layout,
    in_layout,
    make_inputs,
    tolerance,
)
from tests.interpreter import is_interpreting
from tests.random_cases import largest_score
from toptheta_npu import (
    fallback,
    incremental_attention,
    incremental_attention_partial,
    incremental_attention_with_stats,
    merge_partials,
    prefill_attention,
)
from toptheta_npu.fallback import reference
from toptheta_npu.fallback.compensation import Compensation

INF = float("inf")
_BY_ID = {case.id: case for case in CASES}
_DTYPES = ("float32", "float16", "bfloat16")
_LAYOUTS = ("BNSD", "BSND", "BSH")
#: Where a test needs any sparse batch: two lengths, groups of 4.
_BASE = Case("base", heads=8, lengths=(200, 77), vmc=True)


def assert_same(result: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Two roads to the same rows: equal counts, outputs within float32 rounding."""
    for got, wanted in zip(result[2:], expected[2:], strict=True):
        assert torch.equal(got, wanted)
    for got, wanted in zip(result[:2], expected[:2], strict=True):
        torch.testing.assert_close(got, wanted, **tolerance(wanted.dtype))


def assert_identical(result: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert all(torch.equal(got, wanted) for got, wanted in zip(result, expected, strict=True))


@lru_cache(maxsize=256)
def base_inputs(case: Case, device: str) -> Inputs:
    return make_inputs(case, device)


def _largest_score(inputs: Inputs, device: str) -> float:
    """What the Triton kernels are allowed: their exponentials and logarithms are those of base 2."""
    return largest_score(inputs) if is_interpreting() or device.startswith("cuda") else 0.0


@pytest.mark.parametrize("case", [*CASES, *SAMPLED_CASES], ids=lambda case: case.id)
def test_incremental_attention_equals_the_oracle(case: Case, device: str) -> None:
    inputs = base_inputs(case, device)
    result = incremental_attention_with_stats(**inputs.arguments)
    assert_equals_oracle(inputs, result, _largest_score(inputs, device))
    torch.testing.assert_close(incremental_attention(**inputs.arguments), result[0], **tolerance(result[0].dtype))


@pytest.mark.parametrize("path", ["dense", "gather"])
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("theta", ["dense", "mixed"])
@pytest.mark.parametrize("layout", ["BNSD", "BSH"])
def test_forced_path_equals_the_oracle(path: str, dtype: str, theta: str, layout: str, device: str) -> None:
    inputs = base_inputs(replace(_BASE, dtype=dtype, theta=theta, layout=layout), device)
    assert_equals_oracle(inputs, incremental_attention_with_stats(**inputs.arguments, _path=path))


@pytest.mark.parametrize("heads", [2, 6, 8, 10])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_long_cache_equals_the_oracle(heads: int, dtype: str, layout: str, device: str) -> None:
    """Thousands of keys of several group sizes; 4096 + 37 of them leave a remainder in pieces of any size."""
    case = Case("long", dtype, layout, heads=heads, head_dim=128, lengths=(4133, 4096), starts=(3, 0), keep=0.02)
    inputs = base_inputs(case, device)
    assert_equals_oracle(inputs, incremental_attention_with_stats(**inputs.arguments))


# The same rows stored in other ways.


def _inside(cache: Tensor, shape: tuple[int, ...], view: tuple[slice, ...]) -> Tensor:
    """The cache [B, Hkv, S, D] as a view of a larger tensor full of NaN."""
    larger = torch.full(shape, torch.nan, dtype=cache.dtype, device=cache.device)
    larger[view] = cache
    return larger[view]


_STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "longer-cache": lambda c: _inside(
        c, (*c.shape[:2], c.shape[2] + 9, c.shape[3]), (slice(None), slice(None), slice(-9))
    ),
    "every-second-row": lambda c: _inside(
        c, (*c.shape[:2], 2 * c.shape[2], c.shape[3]), (slice(None), slice(None), slice(0, None, 2))
    ),
    "every-second-head": lambda c: _inside(c, (len(c), 2 * c.shape[1], *c.shape[2:]), (slice(None), slice(1, None, 2))),
    "odd-slice-of-head-dim": lambda c: _inside(c, (*c.shape[:3], c.shape[3] + 24), (..., slice(8, 8 + c.shape[3]))),
    "sequence-major": lambda c: c.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "component-major": lambda c: c.transpose(2, 3).contiguous().transpose(2, 3),
    "storage-offset": lambda c: torch.cat([c.new_full((5,), torch.nan), c.flatten()])[5:].view(c.shape),
}


@pytest.mark.parametrize("path", ["auto", "dense", "gather"])
@pytest.mark.parametrize("name", _STRIDED)
def test_strided_caches_equal_contiguous(name: str, path: str, device: str) -> None:
    arguments = base_inputs(_BASE, device).arguments
    strided = {cache: _STRIDED[name](arguments[cache]) for cache in ("key", "value")}
    assert_same(
        incremental_attention_with_stats(**arguments | strided, _path=path),
        incremental_attention_with_stats(**arguments),
    )


@pytest.mark.parametrize("slot", ["3d", "4d"])
def test_pages_that_are_views_of_a_joint_cache(slot: str, device: str) -> None:
    """K and V interleaved in one pool, as engines allocate them."""
    arguments = base_inputs(replace(_BASE, paged=slot, block_size=16), device).arguments
    joint = torch.stack([arguments["key"], arguments["value"]], dim=1)
    views = {"key": joint[:, 0], "value": joint[:, 1]}
    assert_same(incremental_attention_with_stats(**arguments | views), incremental_attention_with_stats(**arguments))


@pytest.mark.parametrize("number", [-1, -(2**31), 6, 2**31 - 1])
def test_block_numbers_outside_the_cache_are_clamped_where_they_are_not_checked(number: int, device: str) -> None:
    arguments = valid_arguments("paged", device)
    arguments["value"] = torch.arange(6.0, device=device).view(6, 1, 1, 1).expand_as(arguments["value"])
    arguments["block_table"][1, 1] = number
    tensors = [arguments[name] for name in ("query", "key", "value")]
    options = {"block_table": arguments["block_table"], "actual_seq_lengths": arguments["actual_seq_lengths"]}
    dense = torch.full((2, 4), -INF, device=device)
    out = fallback.incremental_attention(fallback.Arguments(4, 2, 0.25, *tensors, dense, **options))
    means = [0.8 * 0 + 0.2 * 1, 0.5 * 4 + 0.5 * (0 if number < 0 else 5)]  # block numbers are the values
    torch.testing.assert_close(out[:, 0, 0, 0].cpu(), torch.tensor(means))


@pytest.mark.parametrize("sdc", ["exact", "exp_threshold"])
def test_key_start_without_lengths_means_all_keys_from_there(sdc: str, device: str) -> None:
    case = replace(_BASE, sdc=sdc, theta="mixed", lengths=(60, 147), starts=(90, 3), vmc=False, lengths_as="none")
    inputs = base_inputs(case, device)  # capacity 150: both sequences end with the cache
    assert_equals_oracle(inputs, incremental_attention_with_stats(**inputs.arguments))


@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize("dtype", _DTYPES)
def test_ties_take_the_lowest_index(layout: str, dtype: str, device: str) -> None:
    """Small whole numbers, so that equal scores are equal in every dtype and order of summation."""
    key = torch.zeros(1, 2, 50, 16)
    key[0, 0, [7, 20, 21, 49], 3] = 2.0
    key[0, 1, [0, 30], 3] = 2.0
    value = torch.arange(50.0)[None, None, :, None].expand(1, 2, 50, 16)
    query = torch.zeros(1, 4, 1, 16)
    query[..., 3] = 1.0
    query, key, value = (in_layout(t.to(getattr(torch, dtype)), layout).to(device) for t in (query, key, value))
    heads = {"num_heads": 4, "num_key_value_heads": 2}
    for theta in (INF, 2.0):  # 2.0 is the score itself: strict
        out, _, kept, _ = incremental_attention_with_stats(
            query, key, value, torch.full((4,), theta, device=device), input_layout=layout, scale_value=1.0,
            sdc="none", **heads,
        )  # fmt: skip
        assert from_layout(out, layout, 4)[0, :, 0].tolist() == [7, 7, 0, 0]
        assert kept.tolist() == [[1, 1, 1, 1]]


# Rows that must not be read.


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize("paged", ["", "4d", "3d"], ids=["contiguous", "paged-4d", "paged-3d"])
@pytest.mark.parametrize(("theta", "placement"), [("quantile", "pre_softmax"), ("nothing", "post_softmax")])
def test_poison_changes_nothing(dtype: str, layout: str, paged: str, theta: str, placement: str, device: str) -> None:
    case = replace(
        _BASE, dtype=dtype, layout=layout, paged=paged, theta=theta, placement=placement, lengths=(200, 0, 129)
    )
    case = replace(case, block_size=16 if paged else 0, starts=() if paged else (3, 20, 70))
    clean, poisoned = make_inputs(case, device), make_inputs(case, device, poison=("values", "outside"))
    assert poisoned.arguments["value"].isnan().any()
    assert poisoned.arguments["value"].isinf().any()
    result = incremental_attention_with_stats(**poisoned.arguments)
    assert result[0].isfinite().all()
    assert_identical(result, incremental_attention_with_stats(**clean.arguments))


@pytest.mark.parametrize("theta", ["quantile", "dense", "nothing"])
@pytest.mark.parametrize("paged", ["", "4d"], ids=["contiguous", "paged"])
@pytest.mark.parametrize("name", ["key", "query"])
def test_nan_in_a_valid_row_stays_in_its_group(theta: str, paged: str, name: str, device: str) -> None:
    inputs = base_inputs(replace(_BASE, theta=theta, paged=paged, block_size=16 if paged else 0), device)
    arguments = inputs.arguments
    clean = incremental_attention_with_stats(**arguments)
    spoilt = arguments[name].clone()
    heads = torch.zeros(2, 8, dtype=torch.bool)
    if name == "query":
        spoilt[1, 2] = torch.nan
        heads[1, 2] = True
    else:
        block, row = (int(arguments["block_table"][0, 3]), 2) if paged else (0, 50)
        spoilt[block, 1, row, 5] = torch.nan
        heads[0, 4:] = True
    out, lse, kept, value_rows = incremental_attention_with_stats(**arguments | {name: spoilt})
    assert out[heads].isnan().all()
    torch.testing.assert_close(out[~heads], clean[0][~heads], **tolerance(torch.float32))
    torch.testing.assert_close(lse[~heads], clean[1][~heads])
    assert torch.equal(kept[~heads], clean[2][~heads])
    assert int(kept.min()) >= 0
    assert bool((kept.amax(1) <= arguments["actual_seq_lengths"]).all())
    assert int(value_rows.max()) <= 200


def test_length_0_is_0_even_if_its_mean_is_nan(device: str) -> None:
    """The mean over no rows is 0 / 0, and a padded batch row reads nothing."""
    arguments = dict(base_inputs(_BY_ID["empty-vmc"], device).arguments)
    arguments["value_mean"] = arguments["value_mean"].clone()
    arguments["value_mean"][0] = torch.nan
    out, lse, kept, value_rows = incremental_attention_with_stats(**arguments)
    assert out[0].abs().max().item() == 0.0
    assert out.isfinite().all()
    assert lse[0].tolist() == [-INF] * 4
    assert (kept[0].tolist(), value_rows[0].tolist()) == ([0] * 4, [0, 0])


@pytest.mark.parametrize("mode", ["none", "exact", "exp_threshold", "offline", "post_softmax"])
@pytest.mark.parametrize("theta", [-INF, 1e-3, INF])
def test_scores_of_minus_infinity_alone_have_no_mass(mode: str, theta: float, device: str) -> None:
    """Decode step, merged parts, prompt row and oracle: out 0, lse -inf, nothing kept; the other head is as ever."""
    query = torch.tensor([1e30, 0.0], device=device).view(1, 2, 1, 1).expand(1, 2, 1, 16)
    key = torch.full((1, 1, 20, 16), -1e30, device=device)
    value = torch.arange(20.0, device=device).view(1, 1, 20, 1).repeat(1, 1, 1, 16)
    options: dict[str, Any] = {"sdc": mode}
    if mode == "post_softmax":
        options = {"placement": mode}
    elif mode == "offline":
        options["discarded_mass"] = torch.full((1, 2), 0.5, device=device)
    if mode != "none":
        options["value_mean"] = value.mean(2)
    threshold, cuts = torch.full((1, 2), theta, device=device), (slice(0, 12), slice(12, 20))
    out, lse, kept, _ = incremental_attention_with_stats(query, key, value, threshold, **options)
    assert out[0, 0].count_nonzero() == 0
    assert (lse[0, 0].item(), kept[0, 0].item()) == (-INF, 0)
    assert out[0, 1].isfinite().all()
    whole = {"placement": mode, "lse": lse} if mode == "post_softmax" else {}
    parts = [incremental_attention_partial(query, key[:, :, cut], value[:, :, cut], threshold, **whole) for cut in cuts]
    torch.testing.assert_close(merge_partials(parts, threshold, [12, 8], **options), out)
    options["vmc"] = options.pop("value_mean", None) is not None
    if mode == "offline":
        options["discarded_mass"] = options["discarded_mass"][..., None]
    torch.testing.assert_close(prefill_attention(query, key, value, threshold[..., None], **options), out)
    if options.pop("vmc"):
        options["value_mean"] = value.mean(2)
    if mode == "offline":
        options["discarded_mass"] = options["discarded_mass"][..., 0]
    placement = options.pop("placement", "pre_softmax")
    rows = reference.Rows(query[:, :, 0], key, value, threshold)
    oracle = reference.incremental_attention(rows, Compensation(**options), placement=placement)
    torch.testing.assert_close(oracle.out, out[:, :, 0])
    assert torch.equal(oracle.kept, kept.long())


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("path", ["auto", "dense", "gather"])
def test_many_survivors_of_equal_weight_sum_within_the_yardstick(dtype: str, path: str, device: str) -> None:
    """60000 keys of which every fourth is kept; equal values, so that the roundings of a careless sum add up."""
    n, torch_dtype = 60000, getattr(torch, dtype)
    kept = torch.arange(n) % 4 == 0
    key = kept.to(torch_dtype)[None, None, :, None].expand(1, 1, n, 16) / 16
    value = torch.ones(1, 1, n, 16, dtype=torch_dtype)
    query = torch.ones(1, 1, 1, 16, dtype=torch_dtype)
    weights = kept.to(torch_dtype) * (4 / n)
    tensors = [t.to(device) for t in (query, key, value, torch.tensor([0.5]))]
    out = incremental_attention(*tensors, scale_value=1.0, sdc="none", _path=path)
    assert_within_yardstick(out.flatten(), weights @ value[0, 0], torch.ones(16, dtype=torch.float64))
