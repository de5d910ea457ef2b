"""The figures of an evaluation: what they show, what they lack, and that they read without colour."""

from __future__ import annotations

import csv
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiers import full
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.figures import plots, style
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.reads import Reads
from toptheta_npu.evaluation.results import Point

pytest.importorskip("matplotlib")

KS = (16, 64)
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "csv": b"method,"}
LABELS = {
    "top-theta": "Top-θ post + VMC", "top-theta:sdc=none": "Top-θ pre", "top-k": "Top-k + SDC + VMC",
    "top-k:sdc=none": "Top-k",
}  # fmt: skip


def reads(kept: float, value_rows: float, key_rows: float | None = 1000.0) -> Reads:
    return Reads(kept, value_rows, 2 * value_rows, 3 * value_rows, 1000.0, 0.0, key_rows)


def nats(change: float) -> tuple[float, ...]:
    return tuple(2 + change + 0.001 * number for number in (1, -1, 0))


def perplexity_points() -> dict[Point, Measurement]:
    found = {Point("perplexity", "dense", "dense"): Measurement(
        "nats per token", False, (2.0, 2.0, 2.0), reads(1000, 1000), reads(1000, 1000)
    )}  # fmt: skip
    for (number, (method, label)), k in itertools.product(enumerate(LABELS.items()), KS):
        table = "web" if method.startswith("top-theta") else None
        found[Point("perplexity", method, label, table, k)] = Measurement(
            "nats per token", False, nats(0.01 * (number + 1) / k), reads(k, 3 * k), reads(k, 3 * k)
        )  # fmt: skip
    zero = reads(0, 0, 0.0)
    found[Point("perplexity", "none", "nothing")] = Measurement("nats per token", False, nats(1), zero, zero)
    return found


def needle_points() -> dict[Point, Measurement]:
    return {
        Point("needle", method, label, k=k): Measurement("accuracy", True, scores, reads(9, 9), reads(9, 9))
        for method, label, k, scores in (
            ("dense", "dense", None, (1.0,) * 5),
            ("top-k", "Top-k + SDC + VMC", 16, (1.0, 1.0, 0.0, 1.0, 0.0)),
        )
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The figures of two tasks."""
    folder: Path = tmp_path_factory.mktemp("figures")
    written, left_out = plots.save_plots(perplexity_points() | needle_points(), folder)
    assert sorted(written) == sorted(folder.iterdir())
    assert not left_out
    return folder


def test_every_figure_is_a_picture_a_drawing_and_its_data(folder: Path) -> None:
    stems = ["tradeoff_perplexity", "tradeoff_needle"]
    assert {file.name for file in folder.iterdir()} == {f"{stem}.{kind}" for stem in stems for kind in STARTS}
    for file in folder.iterdir():
        assert file.read_bytes().startswith(STARTS[file.suffix[1:]])
        assert file.suffix != ".svg" or b"<dc:date>" not in file.read_bytes()


@full
def test_the_same_points_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    plots.save_plots(perplexity_points(), tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (folder / file.name).read_bytes(), file.name


def test_the_data_has_changes_shares_and_paired_errors(folder: Path) -> None:
    with open(folder / "tradeoff_perplexity.csv", encoding="utf-8") as file:
        rows = {(row["method"], row["k"]): row for row in csv.DictReader(file)}
    assert len(rows) == 9
    row = rows["Top-θ pre", "64"]
    assert [float(row[f"{name}_percent"]) for name in ("kept", "value_rows", "key_and_value_rows")] == (
        pytest.approx([6.4, 19.2, 59.6])
    )
    factor = math.exp(0.02 / 64)
    assert float(row["change"]) == pytest.approx(100 * (factor - 1))
    assert float(row["standard_error"]) == pytest.approx(100 * factor * 0.001 / math.sqrt(3))
    assert (row["thresholds"], row["unit"], float(row["dense_score"])) == ("web", "%", 2.0)
    assert rows["nothing", ""]["value_rows_percent"] == "0.0"


@pytest.mark.parametrize("task", ["short", "the name of a task as people make them, " * 4])
def test_titles_fit_into_their_figures(task: str) -> None:
    from matplotlib import pyplot

    figure = plots.draw_tradeoff(task, list(perplexity_points().items())).figure
    figure.draw_without_rendering()
    (title,) = figure.texts
    extent = title.get_window_extent()
    assert figure.bbox.x0 <= extent.x0 < extent.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= extent.y0 < extent.y1 <= figure.bbox.y1
    pyplot.close(figure)


def test_curves_differ_without_colour_and_axes_say_what_they_measure() -> None:
    styles = [style.style(number) for number in range(32)]
    assert len({(style.marker, style.linestyle) for style in styles}) == 32
    assert len({(style.color, style.marker) for style in styles}) == 32
    figure = plots.draw_tradeoff("perplexity", list(perplexity_points().items())).figure
    looks = {(line.get_marker(), line.get_linestyle()) for line in (bars[0] for bars in figure.axes[1].containers)}
    assert len(looks) == 4
    assert all(axes.get_xlabel() for axes in figure.axes)
    assert figure.axes[0].get_ylabel() == "perplexity against dense (7.389), %; lower is better"


def test_tables_of_one_label_are_told_apart() -> None:
    points = [
        (Point("perplexity", "top-theta", "Top-θ pre", name, 16), next(iter(perplexity_points().values())))
        for name in ("web", "code")
    ]
    assert [plots.curve_name(point, points) for point, _ in points] == ["Top-θ pre (web)", "Top-θ pre (code)"]


def test_what_cannot_be_drawn_is_refused_or_left_out(tmp_path: Path) -> None:
    with pytest.raises(TopThetaValueError, match="FILE: expected at least one finished point, got none"):
        plots.save_plots({}, tmp_path)
    dense = dict([next(iter(perplexity_points().items()))])
    needs = "tradeoff_perplexity.png not drawn: it needs the dense point and another one of perplexity."
    assert plots.save_plots(dense, tmp_path) == ([], [needs])
    assert list(tmp_path.iterdir()) == []


@full
@pytest.mark.parametrize("loss", [math.nan, math.inf, 900.0])
def test_points_without_a_finite_score_are_left_out_by_name(tmp_path: Path, loss: float) -> None:
    points = perplexity_points()
    last = next(reversed(points))
    points[last] = replace(points[last], scores=(1.0, loss, 2000.0))
    files, left_out = plots.save_plots(points, tmp_path)
    assert f"{last.name} not drawn: its score is not finite." in left_out
    assert "tradeoff_perplexity.png" in {file.name for file in files}
    assert last.label not in (tmp_path / "tradeoff_perplexity.csv").read_text()
