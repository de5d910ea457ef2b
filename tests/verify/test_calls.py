"""Made-up calls and their comparison, on the CPU in place of a device."""

from __future__ import annotations

import pytest
import torch

from toptheta_npu.verify.calls import (
    PARTIAL,
    STATS,
    Mismatch,
    check,
    compare,
    make_call,
    require_equal,
    run_on,
    thresholds,
)

FUNCTIONS = ("incremental_attention", STATS, PARTIAL)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 64, 128, 512])
def test_scores_are_exact_and_half_a_step_from_the_thresholds(dtype: torch.dtype, head_dim: int) -> None:
    call = make_call((8, 2), 300, head_dim, dtype=dtype, keep=0.1)
    scale = call.options["scale_value"]
    steps = call["query"].float().view(1, 2, 4, head_dim) @ call["key"].float().mT
    assert torch.equal(steps, steps.round())
    assert torch.equal((call["threshold"] / scale) % 1, torch.full((1, 8), 0.5))
    kept = (steps * scale > call["threshold"].view(1, 2, 4, 1)).sum(-1)
    assert ((kept >= 30) & (kept <= 60)).all()


def test_thresholds_of_several_tokens_are_those_of_each_alone() -> None:
    """The last token of three sees 300 keys, those before it 299 and 298."""
    call = make_call((4, 2), 300, 64, keep=[20, 30, 40, 300], tokens=3)
    assert call["threshold"].shape == (1, 4, 3)
    assert call["threshold"][0, 3].tolist()[:2] == [-torch.inf, -torch.inf]
    for token, seen in enumerate((298, 299, 300)):
        key = call["key"][:, :, :seen]
        alone = call.with_tensors(query=call["query"][:, :, token : token + 1], key=key)
        expected = thresholds(alone, [20, 30, 40, seen])
        assert torch.equal(call["threshold"][:, :3, token], expected[:, :3])
    check(call, "cpu")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_right_answer_passes(function: str) -> None:
    check(make_call((4, 2), 100, 64, lengths=[100, 7]), "cpu", function)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_wrong_output_is_named(function: str) -> None:
    call = make_call((4, 2), 100, 64)
    right = run_on(call, "cpu", function)
    compare(call, right, function)
    for number in range(len(right)):
        spoilt = [tensor.clone() for tensor in right]
        spoilt[number].view(-1)[-1] += 1
        with pytest.raises(Mismatch, match=r"expected .*, got .*; 1 of \d+ elements differ"):
            compare(call, spoilt, function)


@pytest.mark.parametrize(
    ("got", "passes"), [(1.0, True), (1.05, True), (1.2, False), (float("nan"), False), (float("inf"), False)]
)
def test_tolerance(got: float, passes: bool) -> None:
    one = torch.ones(2)
    answer = torch.tensor([1.0, got])
    if passes:
        require_equal("x", answer, one, 0.1 * one)
        return
    with pytest.raises(Mismatch, match=r"^x\[1\]: expected 1, got "):
        require_equal("x", answer, one, 0.1 * one)


def test_infinities_equal_themselves() -> None:
    infinite = torch.tensor([-torch.inf])
    require_equal("lse", infinite, infinite, torch.ones(1))
    with pytest.raises(Mismatch):
        require_equal("lse", torch.tensor([torch.inf]), infinite, torch.ones(1))
