"""The studies of thresholds on the embedded model: their parts on very little text, and the page against its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.calibration_study import points, selectors
from benchmarks.calibration_study.__main__ import PAGE, all_tables
from benchmarks.calibration_study.calibrations import TableKey, Watcher
from benchmarks.calibration_study.figures import save_figures
from benchmarks.calibration_study.measure import calibrate_all, measure_all, steps
from benchmarks.calibration_study.points import Extent
from benchmarks.calibration_study.selectors import as_table
from benchmarks.calibration_study.tables import tables
from benchmarks.calibration_study.texts import windows_of
from tests.tiers import full
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.calibration import Calibrator
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.workers import ModelWorkers
from toptheta_npu.models import calibrate


def test_a_row_of_the_table_of_selectors() -> None:
    reads = {"value_rows_mean": 90.4, "value_rows_p95": 190, "value_rows_max": 500, "empty_share": 0.037}
    row = {"method": "Top-θ", "placement": "pre_softmax", "k": 32, "change_percent": 0.331, "standard_error": 0.2,
           "kept_over_k": 0.97, "reads": reads}  # fmt: skip
    assert as_table([row]).rows == [["pre-softmax", "32", "Top-θ", "+0.33 ± 0.20 %", "0.97", "90 / 190 / 500", "3.7 %"]]


@full
@pytest.mark.filterwarnings("ignore::toptheta_npu.thresholds.ThresholdExtrapolationWarning")
def test_every_point_is_measured_on_a_table_of_its_own_calibration(tmp_path: Path) -> None:
    plan = Extent(long=300, short=280, long_sizes=(1, 2), short_sizes=(1,), prose=1, windows=1, positions=8)
    model, tokenizer = load_tiny_llama()
    done: list[None] = []
    with ModelWorkers(model, count=1) as workers:
        made = calibrate_all(workers, tokenizer, plan, lambda: done.append(None))
        rows = measure_all(workers, tokenizer, made, plan, lambda: done.append(None))
    assert len(done) == steps(plan)
    assert len(rows) == 3 + len(list(points.points(plan)))
    assert set(tables(rows)) <= set(all_tables())
    for table in tables(rows).values():
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    for picture in save_figures(rows, tmp_path):
        assert picture.stat().st_size > 10_000
    watcher = Watcher("pooled", "post_softmax")
    windows = points_windows(tokenizer, plan)
    alone = calibrate(
        model, windows, k=watcher.ks, placement="post_softmax", estimator="pooled", layer_k=(256, 256, 0, 0, 0, 0),
        row_fraction=0.25, top_k_at_calibration=False,
    )  # fmt: skip
    assert torch.equal(made[TableKey("python", 300, 2, watcher)].theta, alone.theta)


def points_windows(tokenizer: object, plan: Extent) -> torch.Tensor:
    from toptheta_npu.evaluation.corpus import token_windows

    return token_windows(tokenizer, "calibration", plan.long, plan.long_sizes[-1])  # type: ignore[arg-type]


@full
def test_selectors_are_measured_in_the_order_of_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LENGTH": 300, "KS": (32,), "FIRST_AND_LAST": ((4, 16),)}.items():
        monkeypatch.setattr(selectors, name, value)
    results = selectors.measure(Console(quiet=True), windows=2, positions=8)["results"]
    assert [row["method"] for row in results[:4]] == [
        "Top-θ", "capped, recent", "capped, first_and_last", "first 4 and last 16"
    ]  # fmt: skip
    top_theta, capped, _, with_ends, matched = (row["reads"]["value_rows_mean"] for row in results[:5])
    assert capped < top_theta < matched < with_ends


def test_prose_from_files_is_split_into_what_is_calibrated_on_and_what_is_held_out(tmp_path: Path) -> None:
    _, tokenizer = load_tiny_llama()
    for name in "ab":
        (tmp_path / name).write_text("".join(f"The {name} and the {number} agree.\n" for number in range(200)))
    files = (tmp_path / "a", tmp_path / "b")
    calibration = windows_of(tokenizer, "prose", "calibration", 64, 8, files)
    held_out = windows_of(tokenizer, "prose", "evaluation", 64, 8, files)
    assert calibration.shape == held_out.shape == (8, 64)
    assert "The a and" in tokenizer.decode(calibration[0])
    assert "The b and" in tokenizer.decode(held_out[0])
    with pytest.raises(TopThetaValueError, match="--prose: expected 64000 tokens of the evaluation part, got"):
        windows_of(tokenizer, "prose", "evaluation", 64, 1000, files)


def test_a_unified_threshold_is_the_mean_over_all_rows() -> None:
    calibrator = Calibrator(1, 2, k=[8], longest=64, layer_k=[0], alpha=0.0, placement="pre_softmax")
    generator = torch.Generator().manual_seed(0)
    thresholds = []
    for length in (16, 40, 64):
        scores = torch.randn(2, 5, length, generator=generator)
        calibrator.observe(0, scores, torch.full((5,), length))
        thresholds.append(scores.sort(descending=True).values[..., 8])
    table = points.unified(calibrator.finish(fingerprint="demo", provenance={}))
    expected = torch.cat(thresholds, dim=1).mean(1)
    assert torch.allclose(table.at(8).theta[0][[9, 30, 64]], expected.expand(3, 2), atol=1e-6)


def test_the_page_shows_what_was_measured() -> None:
    text = PAGE.read_text()
    for name, table in all_tables().items():
        assert f"<!-- table {name} -->\n{table.as_markdown()}<!-- end -->" in text, name
