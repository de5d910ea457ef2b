"""Sums over the rows of a run against the rows themselves."""

from __future__ import annotations

import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from tests.models.tiny import K, left_padded, model_of, table_of, tokens
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.evaluation.methods.top_k import select_top_k as top_k
from toptheta_npu.models import LayerStatistics, LayerSummary, apply_selection, calibrate, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.sparse.histogram import Histogram
from toptheta_npu.models.sparse.summaries import SummaryRecorder

pytestmark = pytest.mark.usefixtures("no_grad")

FIGURES = (
    "rows", "keys", "kept", "empty", "value_rows", "most_value_rows", "sparse_rows", "sparse_aims", "sparse_kept",
)  # fmt: skip


def agree(ours: LayerSummary, theirs: LayerSummary) -> bool:
    same = ours.value_rows_histogram.items() == theirs.value_rows_histogram.items()
    return same and all(
        torch.equal(*(torch.as_tensor(getattr(each, name)) for each in (ours, theirs))) for name in FIGURES
    )


def check_against_rows(summary: LayerSummary, rows: LayerStatistics, aims: int) -> None:
    kept, value_rows, sparse = rows.kept.long(), rows.value_rows.long(), rows.keys > aims
    assert (summary.rows, summary.keys) == (len(rows.keys), int(rows.keys.sum()))
    for name, expected in {
        "kept": kept.sum(0), "empty": rows.empty.sum(0), "value_rows": value_rows.sum(0),
        "most_value_rows": value_rows.amax(0), "sparse_kept": kept[sparse].sum(0),
    }.items():  # fmt: skip
        assert getattr(summary, name).tolist() == expected.tolist(), name
    numbers, times = value_rows.unique(return_counts=True)
    assert summary.value_rows_histogram.items() == [*zip(numbers.tolist(), times.tolist(), strict=True)]
    assert summary.sparse_rows.tolist() == [int(sparse.sum())] * kept.shape[1]
    assert summary.sparse_aims.tolist() == [aims * int(sparse.sum())] * kept.shape[1]


@pytest.mark.parametrize("prefill", ["dense", "thresholded"])
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_summaries_add_up_the_rows_of_prompts_and_decode_steps(prefill, placement):
    model, table = model_of(), table_of(placement=placement)
    batch = left_padded([tokens(1, length, seed=length) for length in (30, 12, 19)])
    found = {}
    for kind in ("rows", "summary"):
        with sparsify(model, table, k=K, prefill=prefill, statistics=kind) as run:
            model.generate(**batch, max_new_tokens=8, min_new_tokens=8, do_sample=False)
            found[kind] = run.statistics() if kind == "rows" else run.summaries()
    for rows, summary in zip(found["rows"], found["summary"], strict=True):
        assert (rows.decode.sum() < len(rows.keys)) == (prefill == "thresholded")
        check_against_rows(summary, rows, K)
        sparse = rows.keys > K
        assert torch.allclose(summary.kept_over_aim.float(), rows.kept[sparse].float().mean(0) / K)


def test_another_rule_has_summaries_too_and_targets_where_they_are_given():
    model, ids = model_of(), tokens(2, 30)
    found = []
    for kind, targets in (("rows", None), ("summary", [5, 6]), ("summary", None)):
        with apply_selection(model, lambda layer: top_k(5 + layer), statistics=kind, targets=targets) as run:
            model(ids)
            found.append(run.statistics() if kind == "rows" else run.summaries())
    for layer, (rows, aiming, plain) in enumerate(zip(*found, strict=True)):
        check_against_rows(aiming, rows, 5 + layer)
        assert (aiming.kept_over_aim == 1).all()
        assert not plain.sparse_rows.any()
        assert plain.kept_over_aim.isnan().all()


def test_threads_add_up_to_their_single_runs():
    model, table = model_of(), table_of()

    def work(number: int) -> None:
        with torch.no_grad():
            cache, ids = DynamicCache(), tokens(1, 26, seed=number)
            for part in ids.split([20, *[1] * 6], dim=1):
                model(part, **{CACHE_ARGUMENT: cache})

    with sparsify(model, table, k=K, prefill="thresholded", statistics="summary") as run:
        alone = []
        for number in range(4):
            work(number)
            alone.append(run.summaries())
            run.clear()
        for _ in range(3):
            barrier = threading.Barrier(4)
            with ThreadPoolExecutor(4, initializer=barrier.wait) as pool:
                list(pool.map(work, range(4)))
            for layer, summary in enumerate(run.summaries()):
                assert agree(reduce(operator.add, (each[layer] for each in alone)), summary)
            run.clear()


def test_recording_looks_at_no_value_so_that_no_step_waits_for_a_device():
    recorder = SummaryRecorder(4, 2, 3)
    meta = torch.device("meta")  # where a look at a value is an error
    call = SimpleNamespace(rows=SimpleNamespace(counts=torch.empty(1, 2, dtype=torch.long, device=meta), span=9001))
    counts = torch.empty(1, 2, 2, dtype=torch.int32, device=meta)
    kept = counts.repeat(1, 2, 1)
    for _ in range(2):
        recorder.record(call, kept, counts, kept > 0, decode=False)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        recorder.result()


def test_aims_follow_k_and_dense_rows_have_none():
    model, ids = model_of(), tokens(1, 40)
    table = calibrate(model, tokens(6, 80, seed=1), k=(4, 16), layer_k=[0, 0], top_k_at_calibration=False)
    with sparsify(model, table, k=16, prefill="thresholded", statistics="summary", dense_below=21) as run:
        model(ids)
        run.set_k(4)
        model(ids)
        with pytest.raises(TopThetaValueError):
            run.set_k(400)
        first = run.summaries()[0]
    assert (first.sparse_rows == 40).all()
    assert (first.sparse_aims == 20 * 16 + 20 * 4).all()


def test_what_was_not_collected_is_refused_with_the_way_to_it():
    def enter(kind):
        return apply_selection(model_of(), lambda layer: top_k(5), statistics=kind)

    with enter("summary") as run, pytest.raises(TopThetaValueError, match=r"sums over the rows; enter.*=True"):
        run.statistics()
    with enter("rows") as run, pytest.raises(TopThetaValueError, match=r"every row; enter it with.*='summary'"):
        run.summaries()
    with enter(False) as run:
        for ask in (run.clear, run.statistics, run.summaries):
            with pytest.raises(TopThetaValueError, match="a context that collects them, got one that does not"):
                ask()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"statistics": 1}, TopThetaTypeError, "statistics: expected True, False, 'rows' or 'summary', got 1"),
        ({"statistics": "sums"}, TopThetaValueError, "statistics: expected one of rows, summary, got 'sums'"),
        ({"targets": 5}, TopThetaTypeError, "targets: expected one int from 1 on for each of the 2 layers, got 5"),
        ({"targets": [5]}, TopThetaValueError, r"got \[5\]"),
        ({"targets": [5, 0]}, TopThetaValueError, r"got \[5, 0\]"),
        ({"targets": [5, 1.0]}, TopThetaTypeError, r"ThresholdTable.layer_targets\(k\) gives them"),
    ],
)
def test_unusable_arguments_are_refused(wrong, error, message):
    with pytest.raises(error, match=message), apply_selection(model_of(), lambda layer: top_k(5), **wrong):
        pass


@given(st.lists(st.integers(0, 4095), min_size=1, max_size=60), st.integers(0, 60))
def test_percentiles_are_those_of_the_numbers_by_rank(numbers, cut):
    histogram = Histogram.of(torch.tensor(numbers[:cut])) + Histogram.of(torch.tensor(numbers[cut:]))
    for share in (0.0, 0.5, 0.95, 1.0):
        expected = sorted(numbers)[max(1, round(share * len(numbers))) - 1]
        assert histogram.percentile(share) == expected
    assert histogram.total == len(numbers)
    assert Histogram.of(torch.tensor([])).percentile(0.5) == 0
