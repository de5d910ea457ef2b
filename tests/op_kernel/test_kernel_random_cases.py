"""The kernel on the host model against the oracle, on drawn cases; HYPOTHESIS_PROFILE=explore draws new ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import Case
from tests.helpers import assert_equals_oracle, assert_parts_merge
from tests.op_kernel.calls import call, part, statistics_of
from tests.random_cases import inputs_or_reject, largest_score, random_cases

_OF_MERGE = ("sdc", "discarded_mass", "value_mean")  # arguments of the whole row, not of its parts


@given(
    case=random_cases(for_kernel=True),
    cores=st.sampled_from([48, 40, 20]) | st.integers(1, 64),
    cube=st.sampled_from([True, True, False]),
    path=st.sampled_from(["auto", "auto", "gather", "dense"]),
)
def test_kernel_equals_the_oracle(case: Case, cores: int, cube: bool, path: str) -> None:
    inputs = inputs_or_reject(case, path)
    results = statistics_of(inputs, cores=cores, cube=cube, path=path)
    assert_equals_oracle(inputs, results, largest_score(inputs))


@given(
    case=random_cases(for_kernel=True).filter(lambda case: not case.paged and not case.starts),
    share=st.floats(0, 1),
    cores=st.sampled_from([48, 20, 3]),
)
def test_parts_of_the_keys_merge_to_the_whole(case: Case, share: float, cores: int) -> None:
    """Two calls over the two halves of a cut cache, as in context parallelism: views, neither of them a copy."""
    inputs = inputs_or_reject(replace(case, lengths_as="int32"))
    rows, post = inputs.rows, case.placement == "post_softmax"
    axis = 2 if case.layout == "BNSD" else 1
    capacity = inputs.arguments["key"].shape[axis]
    cut = min(max(1, round(share * capacity)), capacity - 1)
    parts, lengths = [], []
    for first, last in ((0, cut), (cut, capacity)):
        arguments = {name: value for name, value in inputs.arguments.items() if name not in _OF_MERGE}
        arguments |= {name: arguments[name].narrow(axis, first, last - first) for name in ("key", "value")}
        lengths.append((rows.lengths - first).clamp(0, last - first))
        arguments["actual_seq_lengths"] = lengths[-1].int()
        result = call(arguments, cores=cores, partial=True, row_lse=inputs.expected.lse.float() if post else None)
        result.run.require_clean()
        parts.append(part(result))
    assert_parts_merge(inputs, parts, lengths, largest_score(inputs))
