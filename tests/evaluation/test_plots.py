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
from toptheta_npu.evaluation.figures import plots
from toptheta_npu.evaluation.figures import reads as read_plots
from toptheta_npu.evaluation.figures import scores as score_plots
from toptheta_npu.evaluation.figures import style as plot_style
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.reads import LayerReads, Reads
from toptheta_npu.evaluation.results import Point

pytest.importorskip("matplotlib")

KS = (16, 64)
LABELS = {
    "top-theta": "Top-θ post + VMC", "top-theta:sdc=none": "Top-θ pre", "top-k": "Top-k + SDC + VMC",
    "top-k:sdc=none": "Top-k",
}  # fmt: skip


def reads(kept: float, value_rows: float, key_rows: float | None = 1000.0) -> Reads:
    return Reads(kept, value_rows, 2 * value_rows, 3 * value_rows, 1000.0, 0.0, key_rows)


def layers_of(kept: int, ratio: float | None) -> tuple[LayerReads, ...]:
    return tuple(LayerReads(reads(kept, 100.0 + layer), (ratio, ratio)) for layer in range(4))


def nats(change: float) -> tuple[float, ...]:
    return tuple(2 + change + 0.001 * number for number in (1, -1, 0))


def perplexity_points() -> dict[Point, Measurement]:
    found = {Point("perplexity", "dense", "dense"): Measurement(
        "nats per token", False, (2.0, 2.0, 2.0), reads(1000, 1000), reads(1000, 1000), layers_of(1000, None)
    )}  # fmt: skip
    for (number, (method, label)), k in itertools.product(enumerate(LABELS.items()), KS):
        table = "web" if method.startswith("top-theta") else None
        found[Point("perplexity", method, label, table, k)] = Measurement(
            "nats per token", False, nats(0.01 * (number + 1) / k), reads(k, 3 * k), reads(k, 3 * k),
            layers_of(k, 0.5 + k / 32),
        )  # fmt: skip
    zero = reads(0, 0, 0.0)
    found[Point("perplexity", "none", "nothing")] = Measurement("nats per token", False, nats(1), zero, zero)
    return found


def needle_points() -> dict[Point, Measurement]:
    details = {"length": [256, 256, 512, 512, 512], "depth": [0.0, 1.0, 0.0, 1.0, 1.0]}
    return {
        Point("needle", method, label, k=k): Measurement(
            "accuracy", True, scores, reads(9, 9), reads(9, 9), details=details
        )
        for method, label, k, scores in (
            ("dense", "dense", None, (1.0,) * 5),
            ("top-k", "Top-k + SDC + VMC", 16, (1.0, 1.0, 0.0, 1.0, 0.0)),
        )
    }


@pytest.fixture(scope="module")
def at_64(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All figures of one task at k = 64."""
    folder: Path = tmp_path_factory.mktemp("figures")
    plots.save_plots(perplexity_points(), 64, folder)
    return folder


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with open(folder / f"{name}.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_figure_is_a_picture_a_drawing_and_its_data(tmp_path: Path) -> None:
    points = perplexity_points() | needle_points()
    written, left_out = plots.save_plots(points, None, tmp_path)
    stems = ["tradeoff_perplexity", "traffic_perplexity_k16", "tradeoff_needle", "prompts_needle_k16"]
    assert sorted(written) == sorted(tmp_path / f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "csv"))
    for file in written:
        start = {".png": b"\x89PNG", ".svg": b"<?xml", ".csv": b"method,"}[file.suffix]
        assert file.read_bytes().startswith(start)
        assert file.suffix != ".svg" or b"<dc:date>" not in file.read_bytes()
    assert left_out == [
        "prompts_perplexity_k16.png not drawn: it needs points of perplexity whose details have length and depth.",
        "traffic_needle_k16.png not drawn: it needs points of needle with figures per layer.",
    ]


@full
def test_the_same_points_give_the_same_files(at_64: Path, tmp_path: Path) -> None:
    plots.save_plots(perplexity_points(), 64, tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    for file in files:
        assert file.read_bytes() == (at_64 / file.name).read_bytes(), file.name


def test_the_trade_off_has_changes_shares_and_paired_errors(at_64: Path) -> None:
    rows = {(row["method"], row["k"]): row for row in table(at_64, "tradeoff_perplexity")}
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


def points_of(points: dict[Point, Measurement]) -> list[tuple[Point, Measurement]]:
    return list(points.items())


def test_titles_say_what_follows() -> None:
    points = points_of(perplexity_points())
    figure = score_plots.draw_tradeoff("perplexity", points).figure
    assert figure.get_suptitle() == (
        "perplexity: of those certain (95 %) to lose at most 1 %, Top-θ post + VMC at k = 16 reads the fewest V rows, "
        "4.8 %"
    )
    title = score_plots.draw_prompts("needle", points_of(needle_points()), 16).figure.get_suptitle()
    assert title == "needle at k = 16: least right is Top-k + SDC + VMC with 0 %, length 512 and depth 0"
    title = read_plots.draw_traffic("perplexity", points, 16).figure.get_suptitle()
    assert title.endswith("with Top-θ post + VMC, layer 3 reads the most V rows, 103; the layers from 2 on 102 to 103")


def scattered(change: float, spread: float) -> tuple[float, ...]:
    """Scores of four samples: their mean, and deviations of them."""
    return tuple(2 + change + spread * sign for sign in (1, -1, 1, -1))


def measured(scores: tuple[float, ...], value_rows: float = 90) -> Measurement:
    return Measurement("nats per token", False, scores, reads(30, value_rows), reads(30, value_rows))


def title_of(spreads: dict[str, tuple[float, float]]) -> str:
    """The title of the trade-off of methods with a mean change in nats and a spread of the samples."""
    points = [(Point("perplexity", "dense", "dense"), measured(scattered(0, 0), 1000))]
    for number, (method, each) in enumerate(spreads.items()):
        points.append((Point("perplexity", method, method, k=16), measured(scattered(*each), 90 + number)))
    title: str = score_plots.draw_tradeoff("perplexity", points).figure.get_suptitle()
    return title.replace("\n", " ")


def test_titles_claim_nothing_within_the_errors() -> None:
    """95 % intervals of these are 1.96 * spread / sqrt(3) * 100 % to both sides."""
    clear = {"top-k:sdc=none": (0.008, 0.003), "top-k:vmc=false": (0.02, 0.004), "top-k": (0.004, 0.004)}
    assert title_of(clear) == (
        "perplexity: of those certain (95 %) to lose at most 1 %, top-k at k = 16 reads the fewest V rows, 9.2 %"
    )
    vague = {method: (change, 0.02) for method, (change, _) in clear.items()}
    assert title_of(vague) == "perplexity: no method is certain (95 %) to lose at most 1 %"


def test_one_sample_proves_nothing() -> None:
    points = [(point, replace(each, scores=each.scores[:1])) for point, each in points_of(perplexity_points())]
    title = score_plots.draw_tradeoff("perplexity", points).figure.get_suptitle()
    assert title == "perplexity: no method is certain (95 %) to lose at most 1 %"


@pytest.mark.parametrize("name", ["short", "a file name of thresholds as people make them, " * 2])
def test_titles_fit_into_their_figures(name: str) -> None:
    points = [
        (replace(point, table=point.table and name, label=point.label + ((point.table and name) or "")), measurement)
        for point, measurement in points_of(perplexity_points())
        if point.method in ("dense", "top-theta", "top-theta:sdc=none")
    ]
    from matplotlib import pyplot

    for drawing in (
        score_plots.draw_tradeoff("perplexity", points),
        read_plots.draw_traffic("perplexity", points, 16),
    ):
        figure = drawing.figure
        figure.draw_without_rendering()
        (title,) = figure.texts
        extent = title.get_window_extent()
        assert figure.bbox.x0 <= extent.x0 < extent.x1 <= figure.bbox.x1, drawing.file
        assert figure.bbox.y0 <= extent.y0 < extent.y1 <= figure.bbox.y1, drawing.file
        pyplot.close(figure)


def test_a_method_that_loses_by_falling_is_told_by_falling() -> None:
    found = needle_points()
    figure = score_plots.draw_tradeoff("needle", points_of(found)).figure
    assert figure.get_suptitle() == "needle: no method is certain (95 %) to lose at most 1 point"
    better = {point: replace(each, scores=(1.0,) * 1000) for point, each in found.items()}
    assert (
        "Top-k + SDC + VMC at k = 16 reads"
        in score_plots.draw_tradeoff("needle", points_of(better)).figure.get_suptitle()
    )


def test_prompts_are_averaged_by_length_and_depth() -> None:
    _, *rows = score_plots.draw_prompts("needle", points_of(needle_points()), 16).data
    found = {(length, depth): share for method, length, depth, share in rows if method != "dense"}
    assert found == {(256, 0.0): 1, (256, 1.0): 1, (512, 0.0): 0, (512, 1.0): 0.5}


def test_layers_are_in_the_data(at_64: Path) -> None:
    traffic = [row for row in table(at_64, "traffic_perplexity_k64") if row["method"] == "Top-k"]
    assert [float(row["value_rows_mean"]) for row in traffic] == [100, 101, 102, 103]
    assert {row["key_rows_mean"] for row in traffic} == {"1000.0"}


def test_curves_differ_without_colour() -> None:
    styles = [plot_style.style(number) for number in range(32)]
    assert len({(style.marker, style.linestyle) for style in styles}) == 32
    assert len({(style.color, style.marker) for style in styles}) == 32
    axes = score_plots.draw_tradeoff("perplexity", points_of(perplexity_points())).figure.axes[1]
    looks = {(line.get_marker(), line.get_linestyle()) for line in (bars[0] for bars in axes.containers)}
    assert len(looks) == 4


def test_axes_say_what_they_measure() -> None:
    points = points_of(perplexity_points())
    for figure in (
        score_plots.draw_tradeoff("perplexity", points).figure,
        score_plots.draw_prompts("needle", points_of(needle_points()), 16).figure,
        read_plots.draw_traffic("perplexity", points, 16).figure,
    ):
        assert all(axes.get_xlabel() for axes in figure.axes if axes.get_label() != "<colorbar>")
        assert any(axes.get_ylabel() for axes in figure.axes)


def test_tables_of_one_label_are_told_apart() -> None:
    points = [
        (Point("perplexity", "top-theta", "Top-θ pre", name, 16), next(iter(perplexity_points().values())))
        for name in ("web", "code")
    ]
    assert list(plot_style.curves(points)) == ["Top-θ pre (web)", "Top-θ pre (code)"]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopThetaValueError, match="--k: expected one of 16, 64, which were measured, got 32"):
        plots.save_plots(perplexity_points(), 32, tmp_path)
    with pytest.raises(TopThetaValueError, match="FILE: expected at least one finished point, got none"):
        plots.save_plots({}, None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_dense_alone_draws_what_it_has(tmp_path: Path) -> None:
    point, measurement = next(iter(perplexity_points().items()))
    written, left_out = plots.save_plots({point: measurement}, None, tmp_path)
    assert {file.stem for file in written} == {"traffic_perplexity"}
    assert len(left_out) == 2


@full
@pytest.mark.parametrize("loss", [math.nan, math.inf, 900.0])
def test_points_without_a_finite_score_are_left_out_by_name(tmp_path: Path, loss: float) -> None:
    points = perplexity_points()
    last = next(reversed(points))
    points[last] = replace(points[last], scores=(1.0, loss, 2000.0))
    files, left_out = plots.save_plots(points, None, tmp_path)
    assert f"{last.name} not drawn: its score is not finite." in left_out
    assert "tradeoff_perplexity.png" in {file.name for file in files}
    assert last.label not in (tmp_path / "tradeoff_perplexity.csv").read_text()
