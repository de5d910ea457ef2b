"""The modelled times on the pages are those of the kernel as it is."""

from __future__ import annotations

import pytest
import torch
import typer

from benchmarks.modelled import calls, figures, pages
from benchmarks.modelled.calls import Call, Modelled
from benchmarks.modelled.step import constants, everything, make_step, run, select
from benchmarks.tables import rounded
from emulator.cann import Platform
from tests.tiers import full, sample
from toptheta_host_model import run_operator
from toptheta_npu.timing.shapes import PAPER, Shape

_STORED = figures.load()
#: Less than a digit that the tables show.
_TOLERANCE = 1e-3


def _differences(now: object, then: object, place: str = "") -> list[str]:
    """Where two results differ by more than the tolerance."""
    if isinstance(now, dict) and isinstance(then, dict):
        assert now.keys() == then.keys()
        return [line for name in now for line in _differences(now[name], then[name], f"{place} {name}")]
    if isinstance(now, list) and isinstance(then, list):
        pairs = zip(now, then, strict=True)
        return [line for number, pair in enumerate(pairs) for line in _differences(*pair, f"{place} {number}")]
    same = (
        now == then
        if isinstance(now, str) or now is None
        else now == pytest.approx(then, rel=_TOLERANCE, abs=_TOLERANCE)
    )
    return [] if same else [f"{place}: {now}, stored {then}"]


def _assert_as_stored(call: Call) -> Modelled:
    now = calls.model(call)
    found = _differences(rounded(figures.as_row(now)), rounded(figures.as_row(_STORED.calls[call])))
    assert not found, "\n".join([f"renew the figures: {pages.COMMAND}", *found])
    return now


@pytest.mark.parametrize("call", [calls.PAPER_CALL, calls.grouped_call(2048, 4)], ids=str)
def test_anchors_are_as_stored(call: Call) -> None:
    """One call of each form of the kernel; the full run looks at all."""
    result = _assert_as_stored(call)
    assert result.kept.rows_needed <= result.kept.rows_read <= 1.1 * result.kept.rows_needed


@full
@pytest.mark.parametrize("call", sample(calls.CALLS, 4), ids=str)
def test_figures_are_as_stored(call: Call) -> None:
    _assert_as_stored(call)


@full
def test_constants_are_as_stored() -> None:
    assert not _differences(rounded(figures.differing_constants()), dict(_STORED.constants))


def test_what_is_stored_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    pages.main(stored=True)
    shown = capsys.readouterr().out
    assert f"| gain over θ = -inf | {_STORED.paper.gain('cold'):.2f} | {_STORED.paper.gain('hot'):.2f} |" in shown
    assert f"| {calls.grouped_call(2048, 4)} | 22.6% | 9.9 | " in shown
    with pytest.raises(typer.BadParameter, match="expected one of --stored and --write, got both"):
        pages.main(stored=True, write=True)


def test_every_charge_reaches_the_kernel() -> None:
    step = make_step(Shape(1, 16, 2, n=512, k=32))
    result = run(step, select(step, 1 / 16)).run
    expected = result.timeline().microseconds
    assert result.timeline(workspace_in_l2=0).microseconds > expected
    assert result.timeline(l2_bytes=result.traffic["key"].bytes_read).microseconds > expected
    assert result.timeline(scattered_row_bytes=0).microseconds < expected
    assert result.timeline(same_address_read=0).microseconds < expected
    assert result.timeline().launch_microseconds == constants()["launch_mixed_microseconds"]


def test_caches_past_the_l2_are_never_hot() -> None:
    step = make_step(Shape(1, 4, 4, n=512, k=32))
    tensors = {"query": step.query, "key": step.key, "value": step.value}
    tensors["threshold"] = everything(step).threshold
    inside, past = (
        run_operator(tensors, step.attributes, platform=Platform(l2_bytes=l2_bytes)).run.timeline("hot").microseconds
        for l2_bytes in (2 * step.key.nbytes, step.key.nbytes)
    )
    assert past > 1.3 * inside


def test_measured_steps_keep_exactly_k() -> None:
    step = make_step(PAPER)
    result = run(step, select(step, 1 / 16), with_stats=True)
    assert torch.equal(result.outputs["kept"], torch.full((1, 48), 128, dtype=torch.int32))
    grouped = make_step(Shape(1, 8, 2, n=512, k=32), overlap=0.9)
    chosen = select(grouped, 1 / 16)
    result = run(grouped, chosen, with_stats=True)
    assert torch.equal(result.outputs["kept"], torch.full((1, 8), 32, dtype=torch.int32))
    assert result.outputs["value_rows"].sum() == chosen.rows
