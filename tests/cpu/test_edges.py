"""What the native operators do at the edges of values, sizes and addresses."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import Case
from tests.cpu.native import ELEMENTS, OWN_LEVELS, operator_arguments, operators, same_bits, using
from tests.helpers import assert_equals_oracle, make_inputs
from toptheta_npu import TopThetaValueError
from toptheta_npu._checks import ROW_PLACEMENTS
from toptheta_npu._value_checks import check_step_values
from toptheta_npu.fallback import Arguments

INF = math.inf
_BASE = Case("base", heads=8, lengths=(200, 77), vmc=True)


@pytest.fixture(params=OWN_LEVELS, scope="module")
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """While it lasts the native operators run this level."""
    with using(request.param):
        yield request.param


def with_stats(**arguments: Any) -> tuple[Tensor, ...]:
    return operators.incremental_attention_with_stats(Arguments(**arguments))  # type: ignore[no-any-return]


# Sizes and addresses.


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_tensors_at_odd_addresses(dtype: str, level: str) -> None:
    arguments = operator_arguments(make_inputs(Case("odd", dtype, head_dim=72, lengths=(300, 20), vmc=True)))
    odd = {name: _at_odd_address(t) if isinstance(t, Tensor) else t for name, t in arguments.items()}
    assert all(t.data_ptr() % 2 == 1 for t in odd.values() if isinstance(t, Tensor))
    assert same_bits(with_stats(**odd), with_stats(**arguments))


def _at_odd_address(tensor: Tensor) -> Tensor:
    memory = bytearray(tensor.nbytes + 2)
    first = (1 + torch.frombuffer(memory, dtype=torch.uint8).data_ptr()) % 2
    memory[first : first + tensor.nbytes] = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=first).view(tensor.shape)


@pytest.fixture(scope="module")
def huge() -> Tensor:
    """2^31 - 1 rows of 16 float16 numbers; only what is written of it takes memory."""
    rows = 2**31 - 1
    no_reserve = 0x4000  # MAP_NORESERVE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    try:
        memory = mmap.mmap(-1, rows * 32, flags=flags)
    except OSError as error:
        pytest.skip(f"no 64 GiB of addresses: {error}")
    return torch.frombuffer(memory, dtype=torch.float16, count=rows * 16).view(1, 1, rows, 16)


@pytest.mark.parametrize("paged", [False, True])
def test_keys_beyond_the_reach_of_32_bits(paged: bool, huge: Tensor, level: str) -> None:
    case = Case("far", "float16", heads=2, kv_heads=1, head_dim=16, lengths=(50,), lengths_as="int64")
    arguments = operator_arguments(make_inputs(case))
    rows = arguments["key"][:, :, :50].clone()
    expected = with_stats(**arguments | {"key": rows, "value": rows})
    start = huge.shape[2] // 50 * 50 - 50
    huge[:, :, start : start + 50] = rows
    if paged:
        pages = huge[0, 0, : start + 50].view(-1, 1, 50, 16)
        far = {"key": pages, "value": pages, "block_table": torch.tensor([[start // 50]], dtype=torch.int32)}
    else:
        far = {"key": huge, "value": huge, "key_start": torch.tensor([start])}
    assert same_bits(with_stats(**arguments | far), expected)


# Ties, infinities and thresholds.


def _whole_numbers(n: int, dtype: str, heads: int = 2) -> dict[str, Any]:
    """One KV head whose scores are the first numbers of its keys, 0 at first; V row j holds j // 64 and j % 64."""
    torch_dtype = getattr(torch, dtype)
    query, key, value = torch.zeros(1, heads, 1, 16), torch.zeros(1, 1, n, 16), torch.zeros(1, 1, n, 16)
    query[..., 0] = 1.0
    value[0, 0, :, 0], value[0, 0, :, 1] = torch.arange(n) // 64, torch.arange(n) % 64
    tensors = {"query": query, "key": key, "value": value}
    return {
        **{name: tensor.to(torch_dtype) for name, tensor in tensors.items()},
        "threshold": torch.full((1, heads), INF), "num_heads": heads, "num_key_value_heads": 1, "scale_value": 1.0,
        "sdc": "none",
    }  # fmt: skip


def _key_of(out: Tensor) -> int:
    return int(out[0]) * 64 + int(out[1])


@pytest.mark.parametrize("dtype", ELEMENTS)
@settings(max_examples=20)
@given(data=st.data())
def test_lowest_key_stands_in_where_granules_tie(dtype: str, level: str, data: st.DataObject) -> None:
    n, start = data.draw(st.integers(1, 7000)), data.draw(st.integers(0, 100))
    largest = data.draw(st.lists(st.integers(0, n - 1), max_size=5, unique=True))
    arguments = _whole_numbers(start + n, dtype)
    arguments["key"][0, 0, [start + key for key in largest], 0] = 2.0
    arguments["key"][0, 0, :start, 0] = 3.0
    arguments |= {"key_start": torch.tensor([start])}
    out, lse, kept, value_rows = with_stats(**arguments)
    wanted = start + min(largest, default=0)
    assert [_key_of(row) for row in out[0, :, 0].tolist()] == [wanted] * 2
    assert (kept.tolist(), value_rows.tolist()) == ([[1, 1]], [[1]])
    mass = (math.log(len(largest) + (n - len(largest)) * math.exp(-2)) + 2) if largest else math.log(n)
    torch.testing.assert_close(lse, torch.full((1, 2), mass))


@pytest.mark.parametrize("theta", [-INF, INF, 0.0, -0.0])
@pytest.mark.parametrize("n", [1, 16, 5000])
def test_equal_scores(n: int, theta: float, level: str) -> None:
    """0 is not above 0, whatever its sign."""
    arguments = _whole_numbers(n, "float32") | {"threshold": torch.full((1, 2), theta), "scale_value": -1.0}
    out, lse, kept, _ = with_stats(**arguments)
    rows = arguments["value"][0, 0] if theta == -INF else arguments["value"][0, 0, :1]
    assert kept.tolist() == [[len(rows)] * 2]
    torch.testing.assert_close(out[0, 0, 0], rows.mean(0))
    torch.testing.assert_close(lse[0, 0].item(), math.log(n))


@pytest.mark.parametrize("theta", [-INF, INF, 1.0])
def test_rows_with_an_infinite_score_are_nan(theta: float, level: str) -> None:
    arguments = _whole_numbers(3000, "float32") | {"threshold": torch.full((1, 2), theta)}
    arguments["key"][..., 0] = INF
    arguments["query"][..., 1:] = 0.0
    out, _, kept, value_rows = with_stats(**arguments)
    assert out.isnan().all()
    assert 1 <= int(kept.min()) <= int(kept.max()) <= 3000
    assert int(value_rows.max()) <= 3000


@pytest.mark.parametrize("placement", ROW_PLACEMENTS[1:])
@pytest.mark.parametrize("theta", [0.0, -0.0, -1.0, -INF])
def test_no_probability_is_too_small_for_a_threshold_that_is_not_positive(
    theta: float, placement: str, level: str
) -> None:
    arguments = _whole_numbers(3000, "float32") | {"threshold": torch.full((1, 2), theta), "placement": placement}
    arguments["key"][0, 0, 7, 0] = 2000.0  # the other probabilities are 0
    assert with_stats(**arguments | {"sdc": "exact"})[2].tolist() == [[3000, 3000]]


@pytest.mark.parametrize(("theta", "kept"), [(1.0, 1), (INF, 1), (0.5, 1), (0.1, 4), (1e-45, 3000)])
def test_probabilities_as_thresholds(theta: float, kept: int, level: str) -> None:
    arguments = _whole_numbers(3000, "float32") | {"threshold": torch.full((1, 2), theta), "placement": "post_softmax"}
    # a quarter each, if it were not for e^-95, which is no normal float
    arguments["key"][0, 0, [5, 2100, 2200, 2999], 0] = 95.0
    out, _, found, _ = with_stats(**arguments | {"sdc": "exact"})
    assert found.tolist() == [[kept] * 2]
    keys = {1: [5], 4: [5, 2100, 2200, 2999], 3000: [5, 2100, 2200, 2999]}[kept]
    torch.testing.assert_close(out[0, 0, 0, :2], arguments["value"][0, 0, keys, :2].sum(0) / 4)


def test_denormal_elements_are_not_taken_for_zero(level: str) -> None:
    arguments = _whole_numbers(40, "float16") | {"threshold": torch.zeros(1, 2), "scale_value": 1e30}
    arguments["key"][0, 0, 3, 0] = 6e-8  # the least float16
    arguments["value"][:] *= 6e-8
    arguments["value"][0, 0, 3] = 6e-8
    out, _, kept, _ = with_stats(**arguments)
    assert kept.tolist() == [[1, 1]]
    assert (out == arguments["value"][0, 0, 3, 0]).all()


def test_v_rows_that_no_head_keeps_are_not_read_where_a_third_is_kept(level: str) -> None:
    """Granule by granule, and for all heads of a block together."""
    case = Case("auto", heads=6, kv_heads=2, lengths=(3000, 100), keep=0.03, vmc=True)
    clean, poisoned = make_inputs(case), make_inputs(case, poison=("values", "outside"))
    result = with_stats(**operator_arguments(poisoned))
    assert_equals_oracle(poisoned, result)
    assert same_bits(result, with_stats(**operator_arguments(clean)))


# Wrong values.


@settings(max_examples=4 * settings().max_examples)
@given(data=st.data())
def test_wrong_values_are_those_that_python_words(level: str, data: st.DataObject) -> None:
    arguments = _drawn_values(data)
    worded = None
    try:
        check_step_values(Arguments(**arguments))
    except TopThetaValueError as error:
        worded = str(error)
    if worded is None:
        assert with_stats(**arguments)[0].isfinite().all()
    else:
        with pytest.raises(TopThetaValueError) as refused:
            with_stats(**arguments)
        assert str(refused.value) == worded


def _drawn_values(data: st.DataObject) -> dict[str, Any]:
    """Two sequences of at most 12 keys, with numbers near and far from what is allowed."""

    def integers(*usual: int) -> st.SearchStrategy[int]:
        far = [-1, -(2**31), 2**31 - 1, 2**62, -(2**63), 2**63 - 1, *usual]
        return st.integers(*usual) | st.integers(*usual) | st.sampled_from(far)

    def pair(strategy: st.SearchStrategy[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(data.draw(st.lists(strategy, min_size=2, max_size=2)), dtype=dtype)

    paged = data.draw(st.booleans())
    thetas = st.sampled_from([0.5, 0.5, 0.0, 1.0, -1.0, INF, -INF, math.nan, 1.0000001, 3e38])
    given = {
        "query": torch.ones(2, 2, 1, 16), "key": torch.ones(5 if paged else 2, 1, 4 if paged else 12, 16),
        "threshold": torch.stack([pair(thetas, torch.float32) for _ in range(2)]),
        "placement": data.draw(st.sampled_from(ROW_PLACEMENTS)), "sdc": "exact",
        "actual_seq_lengths": pair(integers(0, 13), torch.int64), "key_start": None, "block_table": None,
        "num_heads": 2, "num_key_value_heads": 1, "scale_value": 0.25,
    }  # fmt: skip
    if given["placement"] == "pre_softmax" and data.draw(st.booleans()):
        masses = st.sampled_from([0.0, 1.0, -0.0, 3e38, INF, -INF, math.nan, -1e-40])
        given |= {"sdc": "offline", "discarded_mass": torch.stack([pair(masses, torch.float32) for _ in range(2)])}
    if paged:
        numbers = st.integers(0, 4) | st.sampled_from([-1, 5, -(2**31), 2**31 - 1])
        given["block_table"] = torch.stack([pair(numbers, torch.int32) for _ in range(3)], dim=1)
    else:
        given["key_start"] = data.draw(st.none() | st.just(pair(integers(0, 13), torch.int64)))
        if given["key_start"] is not None and data.draw(st.booleans()):
            given["actual_seq_lengths"] = None
    return given | {"value": given["key"]}
