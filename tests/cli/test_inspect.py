"""``toptheta inspect`` as a user types it."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.calibration.parts import make as make_state
from tests.cli.command import toptheta
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.thresholds.summary import told_dense

LENGTHS, K = (9, 20, 33, 50, 128, 400), (8, 32)


def make(**changes: Any) -> ThresholdTable:
    """Three layers, two heads; the last layer has no thresholds, head 1 of the first no rows at 33 and 50."""
    n, k = torch.tensor(LENGTHS), torch.tensor(K)
    shape = (2, 3, 2, len(LENGTHS))
    head = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
    theta = (head + n.log() - k.view(2, 1, 1, 1).log()).expand(shape).clone()
    theta[:, 2] = -math.inf
    counts = torch.full(shape[1:], 4)
    counts[0, 1, 2:4], counts[2] = 0, 0
    fields: dict[str, Any] = {
        "theta": theta, "k": k, "lengths": n, "counts": counts, "std": torch.zeros(shape),
        "placement": "pre_softmax", "estimator": "pooled", "alpha": 0.0, "layer_k": (0, 40, 0),
        "fingerprint": "llama:" + 60 * "0", "provenance": {"text": "the standard [library]"},
    }  # fmt: skip
    return ThresholdTable(**{**fields, **changes})


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for whole tables; a pipe has none of its own, and pytest-xdist names one for its workers."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(folder: Path) -> str:
    make().save("table.theta")
    return "table.theta"


def inspect(*arguments: str) -> int | str | None:
    return toptheta("inspect", *arguments)


def cells(text: str, title: str) -> dict[str, list[str]]:
    """The rows of one printed table by their first cell."""
    lines = re.split("─+", text.split(title)[1], maxsplit=1)[1].splitlines()[1:]
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    end = next((index for index, row in enumerate(rows) if row == [""]), len(rows))
    return {row[0]: row[1:] for row in rows[:end]}


def test_tells_what_the_file_holds(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(file) == 0
    text = capsys.readouterr().out
    for line in (
        "placement +pre_softmax, theta in units of the scaled score",
        "estimator +pooled *$",
        "size +3 layers x 2 heads",
        "k +8, 32",
        "layer_k +0, 40, 0",
        "row lengths +9 to 400, stored at 6 of them",
        "discarded mass +no",
        r"fingerprint +llama:0{60}",
        "dense +layer 2: no row of it was calibrated *$",
        r"text +the standard \[library\]",
    ):
        assert re.search(rf"^ +{line}", text, re.MULTILINE), line
    theta = cells(text, "theta at k = 32")
    at_400 = f"{math.log(400 / 32) + 0.5:.2f} ({math.log(400 / 32):.2f} to {math.log(400 / 32) + 1:.2f})"
    assert theta["0"] == ["32", *theta["0"][1:4], at_400, "2 of 8: n = 33, 50"]
    assert theta["1"][:2] == ["40", "dense"]
    assert set(theta) == {"0", "1"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"provenance": told_dense([2], "a sliding window of 32 tokens")}, "a sliding window of 32 tokens"),
        ({"layer_k": (0, 40, 400)}, "keeps at least 400, and no calibrated row is longer"),
        ({"provenance": {"dense layers": "the last"}}, "no row of it was calibrated"),
    ],
)
def test_a_layer_without_thresholds_says_why_in_one_line(
    changes: dict[str, Any], why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(**changes).save("table.theta")
    assert inspect("table.theta") == 0
    text = capsys.readouterr().out
    assert re.search(rf"^ +dense +layer 2: {why} *$", text, re.MULTILINE)
    assert not re.search(r"^ *2 ", text, re.MULTILINE)
    assert inspect("table.theta", "--layer", "2") == 0
    text = capsys.readouterr().out
    assert f"layer 2 is dense: {why}.\n" in text
    assert "theta at" not in text
    assert inspect("table.theta", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["header"]["dense_layers"] == [{"layers": [2], "why": why}]


@pytest.mark.parametrize("columns", [80, None])
def test_a_terminal_of_80_columns_and_a_file_see_whole_tables(
    columns: int | None, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inspect(file) == 0
    whole = capsys.readouterr().out
    monkeypatch.delenv("COLUMNS") if columns is None else monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in ([], ["--layer", "0"]):
        assert inspect(file, *arguments) == 0
        text = capsys.readouterr().out
        tables = [line for line in text.splitlines() if line.startswith(" ")]
        assert max(map(len, tables)) <= (columns or 100)
    assert inspect(file) == 0
    folded = capsys.readouterr().out
    assert folded.count(" layer ") > whole.count(" layer ")
    every = re.compile(r"-?\d+\.\d\d")
    assert sorted(every.findall(folded)) == sorted(every.findall(whole))


def test_looks_closer_at_a_layer_and_a_k(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(file, "--layer", "0", "--k", "16") == 0
    text = capsys.readouterr().out
    theta = cells(text, "layer 0: theta at k = 16")
    assert [row[-1] for row in theta.values()] == ["24", "16"]
    assert theta["1"][-2] == f"{1 + math.log(400 / 16):.2f}"


def test_the_estimator_and_the_discarded_mass_are_told(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    mass = torch.zeros(2, 3, 2, len(LENGTHS))
    make(estimator="algorithm1", alpha=0.1, discarded_mass=mass, discarded_statistic="mean").save(file)
    assert inspect(file) == 0
    text = capsys.readouterr().out
    assert re.search(r"estimator +algorithm1, alpha 0\.1", text)
    assert re.search(r"discarded mass +yes \(mean\)", text)


def test_json_has_all_of_it(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(file, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["shown_k"]) == ("table.theta", 32)
    assert found["header"]["fingerprint"] == "llama:" + 60 * "0"
    assert found["header"]["lengths"] == list(LENGTHS)
    first, second, third = found["layers"]
    assert first["gaps"] == {"filled": 2, "of": 8, "lengths": [33, 50]}
    assert first["theta"][-1] == pytest.approx(
        {"mean": math.log(400 / 32) + 0.5, "min": math.log(400 / 32), "max": math.log(400 / 32) + 1, "dense_heads": 0},
        rel=1e-6,
    )
    assert (second["target"], second["gaps"]["of"]) == (40, 6)
    assert third["theta"] == [None] * 4
    assert inspect(file, "--json", "--layer", "1") == 0
    heads = json.loads(capsys.readouterr().out)["heads"]
    assert [head["rows"] for head in heads] == [24, 24]


def test_theta_is_drawn_over_the_length(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert inspect(file, "--plot", "plots") == 0
    assert "plots/theta_length.png written." in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["theta_length.png"]
    assert (tmp_path / "plots" / "theta_length.png").read_bytes().startswith(b"\x89PNG")
    assert inspect(file, "--plot", "dense", "--layer", "2") == 2
    assert "--layer: expected a layer with thresholds at k=32, got none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none: expected a threshold table, got no such file"),
        (["text"], "text: expected a safetensors file, got something else"),
        (["state"], "state: expected a threshold table, got the state of a calibration; calibrate again with the same"),
        (
            ["th"],
            "th: expected a threshold table, got a th.txt of the paper's authors; make a table of it: toptheta "
            "convert th.txt --fingerprint-of MODEL_FOLDER -o thresholds.theta",
        ),
        (["sdc"], "got a sdc.txt of the paper's authors; make a table of it: toptheta convert th.txt --sdc sdc.txt"),
        (["table.theta", "--layer", "3"], "--layer: expected 0 to 2, got 3"),
        (["table.theta", "--k", "7"], "--k: expected 8 to 32, the calibrated range, got 7"),
        (["table.theta", "--plot", "text"], "--plot: expected a folder that can be made, got text"),
    ],
)
def test_wrong_use(file: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").write_text("no table")
    make_state().save(Path("state"))
    mass = torch.zeros(1, 3, 2, len(LENGTHS))
    one_k = {name: getattr(make(), name)[:1] for name in ("theta", "k", "std")}
    table = make(**one_k, discarded_mass=mass)
    table.export_text("th", 8)
    table.export_sdc_text("sdc", 8)
    assert inspect(*arguments) == 2
    assert message in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_an_output_that_knows_no_greek_gets_what_it_knows(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    make(provenance={"text": "θ of a model"}).save(file)
    assert inspect(file) == 0
    sys.stdout.flush()
    text = written.getvalue().decode("ascii")
    assert "theta at k = 32" in text
    assert "? of a model" in text
