"""The kernel on the host model in modes that meet: scales of K and of V, placements, pages, tokens, sinks, dtypes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from emulator.cann import OperatorError
from tests.cases import SAMPLED_CASES, Case
from tests.helpers import make_inputs
from tests.modes import AXES, Modes, case_of, covering, legal_modes
from tests.op_kernel.calls import assert_kernel_equals_oracle, call, statistics
from tests.op_kernel.operator_build import edited_kernel
from tests.tiers import full
from toptheta_host_model import kernel_for

_PAIRS = covering(2, for_kernel=True)
_TRIPLES = covering(3, for_kernel=True)[len(_PAIRS) :]
_OF_TOKENS: dict[str, Any] = {"int8": "both", "value_scales": "token", "paged": "4d", "kv_heads": 1}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size", "rows", "cores"),
    [
        (3, 32, 16, 2100, 2),
        (3, 32, 128, 17_000, 2),
        (1, 256, 16, 5000, 1),
        pytest.param(1, 256, 128, 40_000, 1, marks=full),
    ],
)
def test_a_sample_takes_no_scales_of_v_rows(
    heads: int, head_dim: int, block_size: int, rows: int, cores: int, dtype: str
) -> None:
    """Its numbers are no rows: the pages that they would name may not have arrived, or no longer be there."""
    case = Case(
        "sample", dtype=dtype, heads=heads, head_dim=head_dim, block_size=block_size, lengths=(rows,), keep=0.02,
        placement="sampled_softmax", **_OF_TOKENS,
    )  # fmt: skip
    inputs = make_inputs(case, for_kernel=True)
    result = call(inputs.arguments, cores=cores)
    result.run.require_clean()
    assert_kernel_equals_oracle(inputs, statistics(result))


def _assert_equals_the_oracle(modes: Modes) -> None:
    """With K rows for the cube cores, and for a vector core through more pages than its ring of the table holds."""
    for heads, head_dim, rows, keep in ((3, 32, 2100, 0.05), (1, 256, 5000, 0.01)):
        case = case_of(modes, heads=heads, head_dim=head_dim, lengths=(rows, 70), keep=keep)
        inputs = make_inputs(case, poison=("outside",), for_kernel=True)
        result = call(inputs.arguments, cores=1 if heads == case.query_tokens == 1 else 2)
        result.run.require_clean()
        assert_kernel_equals_oracle(inputs, statistics(result))


@pytest.mark.parametrize("scales", AXES["scales of K"])
def test_every_pair_of_modes_equals_the_oracle(scales: str) -> None:
    for modes in _PAIRS:
        if modes[1] == scales:
            _assert_equals_the_oracle(modes)


@full
@pytest.mark.parametrize("modes", _TRIPLES, ids="-".join)
def test_every_triple_of_modes_equals_the_oracle(modes: Modes) -> None:
    _assert_equals_the_oracle(modes)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=full)])
def test_what_the_kernel_is_said_to_refuse_is_refused(size: int) -> None:
    refused = 0
    for modes in covering(size, for_kernel=False):
        case = case_of(modes, heads=3, head_dim=32, lengths=(300, 70))
        if case.dtype != "float32" and modes not in legal_modes(for_kernel=True):
            with pytest.raises(OperatorError, match=r": (placement|key_antiquant_mode): expected"):
                call(make_inputs(case).arguments)
            refused += 1
    assert refused


@full
@pytest.mark.parametrize(
    ("place", "instead"),
    [
        (r"return rows_ - kKeys \+ number;", "return rows_ - kKeys + number - 1;"),
        (r"passed / kStrided\)", "(passed + kStrided - 1) / kStrided)"),
        (r"number < kStridedBegin\) \{\s+return number;", "number < kStridedBegin) { return number + 1;"),
    ],
    ids=["newest", "rounded up", "first"],
)
def test_a_sample_that_is_off_by_one_key_is_seen(place: str, instead: str, tmp_path: Path) -> None:
    """By cube cores and by vector cores: the threshold lies beside a score."""
    inputs = make_inputs(next(case for case in SAMPLED_CASES if case.id == "sampled-beside-g4"))
    kernel = replace(kernel_for(torch.float16), source=edited_kernel(tmp_path, place, instead))
    for cube in (True, False):
        assert torch.equal(call(inputs.arguments, cube=cube).outputs["kept"].long(), inputs.expected.kept)
        planted = call(inputs.arguments, cube=cube, kernel=kernel).outputs["kept"]
        assert not torch.equal(planted.long(), inputs.expected.kept)
