"""The kernel on the host model against the oracle, on drawn cases; HYPOTHESIS_PROFILE=explore draws new ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import Case
from tests.helpers import (
    assert_parts_merge,
    assert_within_yardstick,
    from_layout,
    whole_row_tensors,
    yardstick,
)
from tests.op_kernel.calls import assert_kernel_equals_oracle, call, has_tokens, part, statistics
from tests.random_cases import inputs_or_reject, largest_score, random_cases
from tests.tiers import full

_CUBE = st.sampled_from([True, True, False])
#: Scales by the argument that says whether there is one for each row.
_ROW_SCALES = {f"{name}_antiquant_scale": f"{name}_antiquant_mode" for name in ("key", "value")}
_PATHS = st.sampled_from(["auto", "auto", "gather", "dense"])


def tokens_for_the_kernel(**options: Any) -> st.SearchStrategy[Case]:
    """Steps of several tokens, or of one that may be none; the kernel takes them in pre-softmax."""
    return random_cases(for_kernel=True, query_tokens=True, **options).filter(has_tokens)


def _assert_equals_the_oracle(case: Case, path: str, with_stats: bool, **options: Any) -> None:
    inputs = inputs_or_reject(case, path, for_kernel=True)
    result = call(inputs.arguments, path=path, with_stats=with_stats, **options)
    result.run.require_clean()
    if with_stats:
        assert_kernel_equals_oracle(inputs, statistics(result), largest_score(inputs))
    else:
        out = from_layout(result.outputs["attention_out"], case.layout, case.heads)
        assert_within_yardstick(out, yardstick(inputs)[0], inputs.expected.out, largest_score(inputs))


@pytest.mark.drawn
@given(
    case=random_cases(for_kernel=True),
    cores=st.sampled_from([48, 40, 20]) | st.integers(1, 64),
    cube=_CUBE,
    path=_PATHS,
    with_stats=st.booleans(),
)
def test_kernel_equals_the_oracle(case: Case, cores: int, cube: bool, path: str, with_stats: bool) -> None:
    _assert_equals_the_oracle(case, path, with_stats, cores=cores, cube=cube)


@pytest.mark.drawn
@given(case=tokens_for_the_kernel(), cores=st.sampled_from([48, 40, 20]) | st.integers(1, 32).map(lambda n: 2 * n),
       path=_PATHS, with_stats=st.booleans())  # fmt: skip
def test_several_tokens_equal_the_oracle(case: Case, cores: int, path: str, with_stats: bool) -> None:
    _assert_equals_the_oracle(case, path, with_stats, cores=cores)


@full
@pytest.mark.drawn
@given(case=tokens_for_the_kernel(at_borders=True), cores=st.sampled_from([2, 2, 4, 6]), path=_PATHS)
def test_several_tokens_beside_borders_equal_the_oracle(case: Case, cores: int, path: str) -> None:
    _assert_equals_the_oracle(case, path, True, cores=cores)


@full
@pytest.mark.drawn
@given(
    case=random_cases(for_kernel=True, at_borders=True),
    cores=st.sampled_from([1, 1, 2, 3]),
    cube=_CUBE,
    path=_PATHS,
    with_stats=st.booleans(),
)
def test_segments_that_end_beside_borders_equal_the_oracle(
    case: Case, cores: int, cube: bool, path: str, with_stats: bool
) -> None:
    """Few cores leave most sequences whole, so that the length of a sequence is what a core works on at a time."""
    _assert_equals_the_oracle(case, path, with_stats, cores=cores, cube=cube)


@pytest.mark.drawn
@given(
    case=random_cases(for_kernel=True).filter(
        lambda case: not case.paged and not case.starts and case.placement != "sampled_softmax"
    ),
    share=st.floats(0, 1),
    cores=st.sampled_from([48, 20, 3, 1]),
)
def test_parts_of_the_keys_merge_to_the_whole(case: Case, share: float, cores: int) -> None:
    """Two calls over the two halves of a cut cache, as in context parallelism: views, neither of them a copy."""
    inputs = inputs_or_reject(replace(case, lengths_as="int32"), for_kernel=True)
    rows, post = inputs.rows, case.placement == "post_softmax"
    axis = 2 if case.layout == "BNSD" else 1
    capacity = inputs.arguments["key"].shape[axis]
    cut = min(max(1, round(share * capacity / 64) * 64), capacity - 1)  # as long a rest beside a border as the whole
    parts, lengths = [], []
    of_merge = ("sdc", *whole_row_tensors(inputs))
    for first, last in ((0, cut), (cut, capacity)):
        arguments = {name: value for name, value in inputs.arguments.items() if name not in of_merge}
        arguments |= {name: arguments[name].narrow(axis, first, last - first) for name in ("key", "value")}
        arguments |= {name: arguments[name].narrow(2, first, last - first)
                      for name, mode in _ROW_SCALES.items() if arguments.get(mode)}  # fmt: skip
        lengths.append((rows.lengths - first).clamp(0, last - first))
        arguments["actual_seq_lengths"] = lengths[-1].int()
        result = call(arguments, cores=cores, partial=True, row_lse=inputs.expected.lse.float() if post else None)
        result.run.require_clean()
        parts.append(part(result))
    assert_parts_merge(inputs, parts, lengths, largest_score(inputs))
