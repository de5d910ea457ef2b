"""The modelled times on the pages: they keep their goals, and are those of the kernel as it is."""

from __future__ import annotations

import pytest
import torch
import typer

from benchmarks.modelled import calls, figures, pages, timeline
from benchmarks.modelled.calls import Call, Modelled
from benchmarks.modelled.step import constants, everything, make_step, run, select, trace_of
from benchmarks.tables import Goal, rounded
from emulator.cann import Platform
from tests.tiers import full, sample
from toptheta_host_model import run_operator

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
    same = now == then if isinstance(now, str) else now == pytest.approx(then, rel=_TOLERANCE, abs=_TOLERANCE)
    return [] if same else [f"{place}: {now}, stored {then}"]


def _assert_as_stored(call: Call) -> Modelled:
    now = calls.model(call)
    found = _differences(rounded(figures.as_row(now)), rounded(figures.as_row(_STORED.calls[call])))
    assert not found, "\n".join([f"renew the figures: {pages.COMMAND}", *found])
    return now


def test_goals() -> None:
    missed = [goal.name for goals in _STORED.goals().values() for goal in goals if not goal.met]
    assert missed == [
        "8 heads per KV head, n = 32768, independent, cold: stretch",
        "8 heads per KV head, n = 32768, alike, cold: stretch",
        "4 query tokens, 4 heads per KV head, n = 32768, k = 2048, independent: stretch, cold",
        "4 query tokens, 4 heads per KV head, n = 32768, k = 2048, alike: stretch, cold",
    ]  # fmt: skip


def test_a_goal_can_be_missed() -> None:
    assert not Goal("time", 20.1, 20.0).met
    assert not Goal("gain", 1.79, 1.8, at_most=False).met


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
def test_trace_and_constants_are_as_stored() -> None:
    assert not _differences(rounded(figures.differing_constants()), dict(_STORED.constants))
    events = trace_of(calls.run_call(calls.PAPER_CALL).run, "cold")
    assert not _differences(rounded(timeline.ledger(events)), dict(_STORED.ledger))
    assert not _differences(rounded(timeline.vector_work(events)), dict(_STORED.vector_work))


def test_what_is_stored_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    pages.main(stored=True)
    shown = capsys.readouterr().out
    assert f"| gain over θ = -inf | {_STORED.paper.gain('cold'):.2f} | {_STORED.paper.gain('hot'):.2f} |" in shown
    assert "| the same, hot | 9.14 µs | ≤ 9.5 µs | met |" in shown
    with pytest.raises(typer.BadParameter, match="expected one of --stored and --write, got both"):
        pages.main(stored=True, write=True)


def test_every_charge_reaches_the_kernel() -> None:
    step = make_step(16, 2, 512)
    result = run(step, select(step, 1 / 16)).run
    expected = result.timeline().microseconds
    assert result.timeline(workspace_in_l2=0).microseconds > expected
    assert result.timeline(l2_bytes=result.traffic["key"].bytes_read).microseconds > expected
    assert result.timeline(scattered_row_bytes=0).microseconds < expected
    assert result.timeline(same_address_read=0).microseconds < expected
    assert result.timeline().launch_microseconds == constants()["launch_mixed_microseconds"]


def test_caches_past_the_l2_are_never_hot() -> None:
    step = make_step(4, 4, 512)
    tensors = {"query": step.query, "key": step.key, "value": step.value}
    tensors["threshold"] = everything(step).threshold
    inside, past = (
        run_operator(tensors, step.attributes, platform=Platform(l2_bytes=l2_bytes)).run.timeline("hot").microseconds
        for l2_bytes in (2 * step.key.nbytes, step.key.nbytes)
    )
    assert past > 1.3 * inside


def test_measured_steps_keep_exactly_k() -> None:
    step = make_step(48, 48, 2048)
    result = run(step, select(step, 1 / 16), with_stats=True)
    assert torch.equal(result.outputs["kept"], torch.full((1, 48), 128, dtype=torch.int32))
    grouped = make_step(8, 2, 512, overlap=0.9)
    chosen = select(grouped, 1 / 16)
    result = run(grouped, chosen, with_stats=True)
    assert torch.equal(result.outputs["kept"], torch.full((1, 8), 32, dtype=torch.int32))
    assert result.outputs["value_rows"].sum() == chosen.rows
