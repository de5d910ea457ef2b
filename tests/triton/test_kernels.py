"""The Triton kernels in Triton's interpreter: drawn calls, and what they promise beyond the operator's contract.

The table of cases and all that tests/fallback asks of an operator run there too: see the fixture `device`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import CASES, SAMPLED_CASES, Case
from tests.cpu.native import keys_of_part, operator_arguments, partial_arguments, same_bits
from tests.helpers import Inputs, assert_equals_oracle, assert_parts_merge, make_inputs
from tests.interpreter import interpreting
from tests.random_cases import inputs_or_reject, largest_score, random_cases
from toptheta_npu import incremental_attention
from toptheta_npu.fallback import Arguments
from toptheta_npu.fallback.sampled import sampled_keys

pytestmark = pytest.mark.triton
_BY_ID = {case.id: case for case in (*CASES, *SAMPLED_CASES)}


def _whole_and_parts(inputs: Inputs) -> tuple[Any, Any, Any]:
    from toptheta_npu.triton import operators

    arguments = operator_arguments(inputs)
    plain = operators.incremental_attention(Arguments(**arguments))
    statistics = operators.incremental_attention_with_stats(Arguments(**arguments))
    if inputs.case.placement == "sampled_softmax":  # of whole rows alone
        return plain, statistics, None
    part = partial_arguments(inputs, arguments)
    return plain, statistics, operators.incremental_attention_partial(Arguments(**part))


@pytest.mark.drawn
@given(case=random_cases(for_kernel=False, query_tokens=True, work=60_000, rows=12), by_sample=st.booleans())
def test_operators_equal_the_oracle(case: Case, by_sample: bool) -> None:
    _assert_operators_equal_the_oracle(case, by_sample)


@pytest.mark.drawn
@settings(max_examples=settings().max_examples // 5)
@given(case=random_cases(for_kernel=False, query_tokens=True), by_sample=st.booleans())
def test_operators_on_many_rows_equal_the_oracle(case: Case, by_sample: bool) -> None:
    _assert_operators_equal_the_oracle(case, by_sample)


def _assert_operators_equal_the_oracle(case: Case, by_sample: bool) -> None:
    if by_sample and case.placement == "post_softmax":
        case = replace(case, placement="sampled_softmax")
    inputs = inputs_or_reject(case, "auto")
    with interpreting():
        plain, statistics, partial = _whole_and_parts(inputs)
    assert same_bits((plain,), statistics[:1])
    largest = largest_score(inputs)
    assert_equals_oracle(inputs, statistics, largest)
    if partial is not None:
        assert_parts_merge(inputs, [partial], [keys_of_part(inputs)], largest)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_row_of_one_int8_key_is_as_exact_as_the_output(dtype: str) -> None:
    """Its weight is its scale, which 16 bits round."""
    case = Case(
        "random", dtype=dtype, paged="4d", block_size=16, heads=1, kv_heads=1, head_dim=16, lengths=(1,), sdc="exact",
        keep=0.01, int8="both", scales="token",
    )  # fmt: skip
    _assert_operators_equal_the_oracle(case, by_sample=False)


def test_int8_rows_far_below_the_largest_score_have_weights_near_0() -> None:
    """All weights of a tile may be so small that their inverse is no number of float32."""
    case = Case(
        "random", heads=1, kv_heads=1, head_dim=35, lengths=(17,), starts=(144,), placement="post_softmax", sdc="exact",
        theta="mixed", keep=0.01, scores="steep", scale=-0.5, int8="both", scales="token", query_tokens=2,
        query_lengths=(2,),
    )  # fmt: skip
    _assert_operators_equal_the_oracle(case, by_sample=False)


def test_small_scales_of_int8_rows_cost_no_digits() -> None:
    """With float16 queries: a sixteen-thousandth of the scales gives a sixteen-thousandth of the sums, bit for bit."""
    from toptheta_npu.triton import operators

    inputs = make_inputs(_BY_ID["int8-mixed-g8"])
    part = partial_arguments(inputs, operator_arguments(inputs))
    with interpreting():
        out = operators.incremental_attention_partial(Arguments(**part))[0]
        part["value_antiquant_scale"] = part["value_antiquant_scale"] * 2.0**-14
        assert torch.equal(operators.incremental_attention_partial(Arguments(**part))[0], out * 2.0**-14)
    assert out.count_nonzero() > 0


@pytest.mark.parametrize("case_id", ["ragged", "paged-4d", "post-bf16-mixed", "sampled-sink"])
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(case_id: str) -> None:
    inputs = make_inputs(_BY_ID[case_id])
    with interpreting():
        together = incremental_attention(**inputs.arguments)
        for row in range(len(together)):
            alone = {name: _row(name, given, row, len(together)) for name, given in inputs.arguments.items()}
            assert torch.equal(incremental_attention(**alone), together[row : row + 1])


def _row(name: str, given: Any, row: int, batch: int) -> Any:
    """An argument of one sequence; pages and what has no axis of sequences stay whole."""
    pages = name in ("key", "value") and given.shape[0] != batch
    if not isinstance(given, torch.Tensor) or pages or given.shape[0] != batch or name == "learnable_sink":
        return given
    return given[row : row + 1]


@pytest.mark.parametrize("multiprocessors", [1, 2, 1000])
def test_the_number_of_programs_changes_no_bit(multiprocessors: int) -> None:
    from toptheta_npu.triton import plan

    inputs = make_inputs(_BY_ID["n4097"])
    with interpreting():
        usual = incremental_attention(**inputs.arguments)
        with mock.patch.object(plan, "_multiprocessors", return_value=multiprocessors):
            assert torch.equal(incremental_attention(**inputs.arguments), usual)


def test_splits_of_every_length_fit_the_buffers_of_a_capacity() -> None:
    from tests.triton.probes import split
    from toptheta_npu.triton import plan

    edges = (0, 512, 1024, 16384, 65536, 131072, 200_000)
    lengths = torch.tensor(sorted({max(0, edge + beside) for edge in edges for beside in (-33, -1, 0, 1, 31, 700)}))
    lengths = lengths.int()
    counts, keys = torch.empty_like(lengths), torch.empty_like(lengths)
    split[(len(lengths),)](lengths, counts, keys, BLOCK=plan._KEYS)
    assert (counts * keys >= lengths).all()
    assert ((counts - 1).clamp(min=0) * keys <= lengths).all()
    for capacity in lengths.tolist():
        fits = lengths <= capacity
        most, most_keys = plan.largest_splits(capacity)
        assert (counts[fits] <= most).all()
        assert (keys[fits] <= most_keys).all()


def test_samples_have_the_keys_that_the_fallback_takes() -> None:
    """Of rows so long, too, that products of places leave 32 bits."""
    from tests.triton.probes import sample

    edges = (16, 144, 400, 656, 5000, 2**24, 2**31 - 2)
    lengths = torch.tensor([0, 1, *(edge + beside for edge in edges for beside in (-1, 0, 1))])
    places, there = torch.empty(2, len(lengths), 512, dtype=torch.int32)
    stand_for = torch.empty(len(lengths), 512)
    sample[(len(lengths),)](lengths.int(), places, stand_for, there, SLOTS=512)
    expected = sampled_keys(lengths)
    taken = expected.log_weights > -torch.inf
    assert not there[:, 400:].any()
    assert torch.equal(there[:, :400].bool(), taken)
    assert torch.equal(places[:, :400][taken].long(), expected.places[taken])
    torch.testing.assert_close(stand_for[:, :400][taken].log(), expected.log_weights[taken])
