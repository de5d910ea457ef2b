"""How a call uses the memory beyond its numbers: what goes past the L2, and how scores leave a cube core."""

from __future__ import annotations

import pytest

from emulator.ascendc import KernelRun
from tests.cases import Case
from tests.helpers import assert_equals_oracle, make_inputs
from tests.op_kernel.calls import call, statistics

_CASES = (
    Case("single-heads", dtype="float16", heads=2, kv_heads=2, lengths=(700,), vmc=True),
    Case("cube", dtype="float16", heads=4, kv_heads=1, lengths=(700, 300)),
    Case("pages", dtype="bfloat16", heads=2, kv_heads=2, paged="4d", block_size=16, lengths=(300, 40)),
    Case("cube-pages", dtype="bfloat16", heads=4, kv_heads=1, paged="3d", block_size=32, lengths=(300, 40)),
    Case("stored-scores", dtype="float16", heads=8, kv_heads=2, lengths=(3000,), placement="post_softmax"),
)


def _past_l2(run: KernelRun) -> dict[str, int]:
    return {name: traffic.commands_past_l2 for name, traffic in run.traffic.items() if traffic.commands_past_l2}


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.id)
def test_large_caches_go_past_the_l2_and_nothing_else_does(case: Case) -> None:
    """Rings, parts and stored scores stay where other cores find them soon."""
    inputs = make_inputs(case)
    result = call(inputs.arguments, cores=8, l2_bytes=1024)
    result.run.require_clean()
    assert_equals_oracle(inputs, statistics(result))
    traffic = result.run.traffic
    assert _past_l2(result.run) == {name: traffic[name].read_commands for name in ("key", "value")}
    assert traffic["workspace"].read_commands > 0


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.id)
def test_caches_that_fit_use_the_l2(case: Case) -> None:
    assert _past_l2(call(make_inputs(case).arguments, cores=8).run) == {}


def test_scores_leave_the_cube_core_in_whole_fractals() -> None:
    """100 scores of a head are six fractals of 16 and a part of one; the vector core reads the 100."""
    case = Case("part-of-a-fractal", dtype="float16", heads=4, kv_heads=1, lengths=(100, 100))
    result = call(make_inputs(case).arguments, cores=2)
    result.run.require_clean()
    ring = result.run.traffic["workspace"]
    assert ring.bytes_written == 2 * 4 * 112 * 4
    assert ring.bytes_read == 2 * 4 * 100 * 4
