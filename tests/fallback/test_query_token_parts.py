"""Steps of several query tokens split into parts, which are told what each token sees, and merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import Case
from tests.fallback.test_query_tokens import BASE, inputs_of
from tests.helpers import Inputs, assert_parts_merge, by_sequence, lse_of_rows, of_tokens
from tests.random_cases import inputs_or_reject, largest_score, random_cases
from toptheta_npu import incremental_attention_partial, incremental_attention_with_stats, use_backend

_PART = ("threshold", "input_layout", "placement", "scale_value", "num_heads", "num_key_value_heads")


@pytest.fixture(autouse=True, scope="module")
def fallback() -> Iterator[None]:
    with use_backend("fallback"):
        yield


@pytest.mark.drawn
@given(case=random_cases(for_kernel=False, query_tokens=True), data=st.data())
def test_parts_of_a_drawn_step_merge(case: Case, data: st.DataObject) -> None:
    case = replace(case, paged="", block_size=0)
    if "token" in (case.scales_of("key"), case.scales_of("value")):
        case = replace(case, scales="channel", value_scales="")
    inputs = inputs_or_reject(case)
    capacity = inputs.rows.key.shape[2]
    cuts = data.draw(st.lists(st.integers(0, capacity), max_size=3).map(sorted), "cuts")
    assert_parts_merge(inputs, *split(inputs, cuts), largest_score(inputs))


def split(inputs: Inputs, cuts: list[int]) -> tuple[list[Any], list[Tensor]]:
    """The parts between cuts of the cache, and the keys of each that each token sees."""
    case, arguments = inputs.case, inputs.arguments
    axis = 2 if case.layout == "BNSD" else 1
    capacity = arguments["key"].shape[axis]
    starts, lengths = (by_sequence(case, each) for each in (inputs.rows.starts, inputs.rows.lengths))  # [B, Sq]
    options = {name: arguments[name] for name in _PART if name in arguments}
    antiquant = {name: given for name, given in arguments.items() if "antiquant" in name}
    if case.placement == "post_softmax":
        options["lse"] = incremental_attention_with_stats(**arguments)[1]
    elif case.placement == "sampled_softmax":  # which is told to parts
        options |= {"placement": "post_softmax", "lse": of_tokens(case, lse_of_rows(inputs))}
    parts, counts = [], []
    for first, last in zip([0, *cuts], [*cuts, capacity], strict=True):
        room = max(last - first, 1)
        at = min(first, capacity - 1)
        start = (starts - first).clamp(0, room)[:, 0]
        seen = ((starts + lengths).clamp(max=last) - starts.clamp(min=first)).clamp(min=0)
        key, value = (arguments[name].narrow(axis, at, room) for name in ("key", "value"))
        given = seen if case.query_tokens > 1 else seen[:, 0]
        parts.append(incremental_attention_partial(
            arguments["query"], key, value, actual_seq_lengths=given, key_start=start.where(seen.amax(1) > 0, 0),
            **options, **antiquant,
        ))  # fmt: skip
        counts.append(given)
    return parts, counts


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("cuts", [(), (60,), (0, 75, 150), (148, 150), (149, 149)], ids=str)
@pytest.mark.parametrize("theta", ["quantile", "nothing", "mixed", "inf"])
@pytest.mark.parametrize(
    "modes",
    [{}, {"sdc": "none", "vmc": False}, {"sdc": "exp_threshold"}, {"sdc": "offline"}, {"sink": True},
     {"placement": "post_softmax"}],
    ids=str,
)  # fmt: skip
def test_parts_merge(modes: dict[str, Any], theta: str, cuts: tuple[int, ...], tokens: int) -> None:
    """In any order, that of the keys turned round among them."""
    case = replace(BASE, query_tokens=tokens, query_lengths=(4, 2) if tokens > 1 else ())
    inputs = inputs_of(replace(case, theta=theta, **modes))
    parts, counts = split(inputs, list(cuts))
    assert_parts_merge(inputs, parts, counts)
    assert_parts_merge(inputs, parts[::-1], counts[::-1])


def test_paged_parts_merge() -> None:
    inputs = inputs_of(replace(BASE, paged="4d", block_size=16, int8="both", scales="token"))
    seen = by_sequence(inputs.case, inputs.rows.lengths)
    names = [name for name in inputs.arguments if name not in ("actual_seq_lengths", "actual_query_lengths")]
    part = {name: inputs.arguments[name] for name in names if name not in ("sdc", "value_mean")}
    assert_parts_merge(inputs, [incremental_attention_partial(**part, actual_seq_lengths=seen)], [seen])
