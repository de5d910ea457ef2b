"""Blocks of rows side by side: the scores, the selection and the output are those of the fallback, on any threads."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.models.tiny import K, model_of, tokens
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.methods.top_k import select_top_k as top_k
from toptheta_npu.fallback.prefill import Prompt, row_chunks, select_and_attend
from toptheta_npu.models import calibrate
from toptheta_npu.models.calibration import sequence_rows
from toptheta_npu.models.calibration.sequence_rows import BlockThreads, SequenceRows, keep_largest
from toptheta_npu.thresholds import ThresholdTable

TEXTS = tokens(3, 60, seed=1)


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def call_of(sink: Tensor | None = None) -> Any:
    """Four query heads over two KV heads."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 40, 16, generator=generator) for heads in (4, 2, 2))
    rows = {"key": key, "value": value}
    return SimpleNamespace(query=2 * query, **rows, scaling=None, prompt=rows, learnable_sink=sink)


@pytest.mark.parametrize("wanted", [list(range(40)), [0], [39], [3, 4, 5], [0, 2, 3, 17, 38]])
def test_scores_are_those_of_the_fallback(wanted: list[int]) -> None:
    call, rows = call_of(), torch.tensor(wanted)
    (expected,) = row_chunks(Prompt(call.query, call.key, call.value), rows)
    sequence = SequenceRows(call)
    torch.testing.assert_close(sequence.scores(rows), expected.scores[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(sequence.lengths(rows), expected.n[0, 0])


@pytest.mark.parametrize(("sdc", "vmc"), [("exact", True), ("exact", False), ("none", False)])
@pytest.mark.parametrize("sink", [None, torch.tensor([-1.0, 0.5, 3.0, 100.0])])
def test_the_output_is_that_of_the_fallback(sdc: str, vmc: bool, sink: Tensor | None) -> None:
    call, rows, k = call_of(sink=sink), torch.arange(40), 7
    prompt = Prompt(call.query, call.key, call.value, learnable_sink=sink)
    expected, _ = select_and_attend(prompt, top_k(k), sdc=sdc, vmc=vmc)
    sequence = SequenceRows(call, vmc)
    scores = sequence.scores(rows)
    keep, ranked = keep_largest(scores, k)
    assert ranked is not None
    out = sequence.attend(rows, scores, keep, sdc)
    torch.testing.assert_close(out, expected[0], rtol=1e-5, atol=1e-6)
    long = sequence.lengths(rows) > k
    sorted_scores = sequence.scores(rows).sort(dim=-1, descending=True).values
    assert torch.equal(ranked[:, long, 0], sorted_scores[:, long, k])


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, -torch.inf]), min_size=1, max_size=12), st.integers(1, 13))
def test_ties_are_kept_up_to_k(row: list[float], k: int) -> None:
    scores = torch.tensor(row).expand(2, 3, -1).contiguous()
    keep, _ = keep_largest(scores, k)
    visible = sum(each > -torch.inf for each in row)
    assert keep.unique().tolist() in ([0.0], [1.0], [0.0, 1.0])
    assert (keep.sum(-1) == min(k, visible)).all()
    kept, dropped = scores[0, 0][keep[0, 0] == 1], scores[0, 0][keep[0, 0] == 0]
    assert len(kept) == 0 or len(dropped) == 0 or kept.min() >= dropped.max()


def test_blocks_hold_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_rows, "_SCORES_PER_BLOCK", 4 * 40 * 6)
    blocks = SequenceRows(call_of()).blocks(torch.arange(40))
    assert [len(block) for block in blocks] == [6] * 6 + [4]
    assert torch.equal(torch.cat(blocks), torch.arange(40))
    assert SequenceRows(call_of()).blocks(torch.arange(0)) == []


@pytest.mark.parametrize(
    "options",
    [
        {"k": K},
        {"k": K, "placement": "post_softmax", "row_fraction": 0.4},
        {"k": [4, K], "top_k_at_calibration": False, "row_fraction": 0.4},
        {"k": K, "estimator": "pooled"},
        {"k": [4, K], "estimator": "pooled", "placement": "post_softmax", "top_k_at_calibration": False},
    ],
    ids=str,
)
def test_the_file_is_the_same_on_any_number_of_threads(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_rows, "_SCORES_PER_BLOCK", 4 * 60 * 5)
    files = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        calibrate(model_of(), TEXTS, layer_k=[12, 0], **options).save(tmp_path / "table")
        files.append((tmp_path / "table").read_bytes())
        assert torch.get_num_threads() == threads
    assert files[0] == files[1] == files[2]


def test_blocks_run_on_one_core_each_and_come_back_in_order() -> None:
    torch.set_num_threads(3)
    with BlockThreads() as threads:
        found = threads.map(lambda block: (block, torch.get_num_threads()), list(range(20)))
        assert found == [(block, 1) for block in range(20)]
        assert threads.map(lambda block: torch.get_num_threads(), [0]) == [1]
        with pytest.raises(ZeroDivisionError):
            threads.map(lambda block: 1 // block, [0, 1, 2])
        assert torch.get_num_threads() == 3
        assert threads.map(lambda block: block, []) == []


def threads_of_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as new:
        return new.submit(torch.get_num_threads).result()


def test_who_begins_while_another_works_on_blocks_gets_all_cores_afterwards() -> None:
    torch.set_num_threads(3)
    began, found = Event(), []

    def other() -> None:
        torch.ones(1).add(1)  # from now on this thread has the number of threads of this moment
        began.set()
        with BlockThreads() as threads:
            found.extend(threads.map(lambda block: torch.get_num_threads(), [0, 1]))
            found.append(torch.get_num_threads())

    def work(_: int) -> None:
        second.start()
        assert began.wait(60)
        second.join(0.2)  # time to do harm

    second = Thread(target=other)
    with BlockThreads() as threads:
        threads.map(work, [0])
        second.join(60)
        assert found == [1, 1, 3]
        assert (torch.get_num_threads(), threads_of_a_new_thread()) == (3, 3)


def test_two_calibrations_in_one_process_make_the_tables_of_one_after_the_other() -> None:
    torch.set_num_threads(2)
    options = [
        {"k": K, "top_k_at_calibration": False, "estimator": "pooled"},
        {"k": K, "top_k_at_calibration": True, "estimator": "algorithm1"},
    ]  # fmt: skip

    def table(option: dict[str, Any]) -> ThresholdTable:
        return calibrate(copy.deepcopy(model_of()), TEXTS, layer_k=[0, 0], **option)

    alone = list(map(table, options))
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(table, options * 3))
    for one, other in zip(alone * 3, together, strict=True):
        torch.testing.assert_close(one.theta, other.theta, rtol=1e-5, atol=1e-5)
        assert torch.equal(one.counts, other.counts)
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == (2, 2)


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_threads_compute_as_the_caller_does(mode: Any) -> None:
    tables = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with mode():
            tables.append(calibrate(model_of(), TEXTS, k=K, layer_k=[0, 0]))
    assert torch.equal(tables[0].theta, tables[1].theta)


@pytest.mark.parametrize("option", [{}, {"top_k_at_calibration": False}])
def test_an_overflow_is_reported_from_every_thread(option: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    original = SequenceRows.scores

    def broken(self: SequenceRows, rows: Tensor) -> Tensor:
        scores = original(self, rows)
        scores[1, -1, 0] = torch.nan
        return scores

    monkeypatch.setattr(SequenceRows, "scores", broken)
    with pytest.raises(TopThetaValueError, match=r"scores of layer 0: expected finite elements or -inf, got NaN"):
        calibrate(model_of(), TEXTS, k=K, layer_k=[0, 0], **option)
    assert torch.get_num_threads() == 2
