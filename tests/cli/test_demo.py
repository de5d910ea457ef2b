"""The command line as a user types it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import demo_tables
from tests.tiers import full, only
from toptheta_npu.cli.evaluate.demo import DemoOptions, preset
from toptheta_npu.evaluation.results import Results, read_results
from toptheta_npu.evaluation.summary import change


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toptheta_npu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=None)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("demo")
    result = run("demo", "--output", str(output), "--windows", "1", "--calibration", "2", "--new-tokens", "4")
    assert result.returncode == 0, result.stderr
    return output, result.stdout


@pytest.fixture(scope="module")
def results(demo: tuple[Path, str]) -> Results:
    return read_results(demo[0] / "results.jsonl")


@full
def test_demo_writes_what_it_says(demo: tuple[Path, str], results: Results) -> None:
    output, text = demo
    assert (output / "tradeoff_perplexity.png").read_bytes().startswith(b"\x89PNG")
    assert [(point.label, point.table) for point in results.measurements] == [
        ("dense", None), ("τ + SDC + VMC, 0.0005", None), ("Top-k + SDC + VMC", None),
        ("Top-θ pre + SDC + VMC", "pre_softmax"), ("Top-θ post + VMC", "post_softmax"), ("last-k", None),
        ("Top-θ post + VMC", "live"),
    ]  # fmt: skip
    assert list(results.header.tables) == ["pre_softmax", "post_softmax", "live"]
    assert "Live: Algorithm 1 calibrated k=64 on 2 sequences" in text
    assert "of 4 tokens agree" in text


@full
def test_demo_says_first_what_it_does_and_then_a_line_per_method(demo: tuple[Path, str]) -> None:
    lines = demo[1].splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith("Now: 7 ways to attend ")]
    followed = [line for line in lines[start + 1 :] if " of 2304 V rows" in line]
    assert len(followed) == 7
    assert re.match(r"perplexity: dense: perplexity \d+\.\d{3}, 2304 of 2304 V rows", followed[0])
    assert "\x1b" not in demo[1]


@full
def test_demo_shows_the_trade(results: Results) -> None:
    found = {point.label: measurement for point, measurement in results.measurements.items() if point.table != "live"}
    dense, sparse, last = (found[label] for label in ("dense", "Top-θ post + VMC", "last-k"))
    assert change(sparse, dense).value < 0.1 * change(last, dense).value


@full
@pytest.mark.parametrize("every_k", [False, True])
def test_the_preset_has_the_points_of_the_committed_results(every_k: bool, tmp_path: Path) -> None:
    plan = preset(DemoOptions(output=tmp_path, full=every_k, windows=1)).plan
    committed = [point for point, _ in demo_tables.committed() if point.table != "live"]
    wanted = [point for point in committed if every_k or point.k in (None, 64)]
    planned = [point for point, _ in plan.points("perplexity")]
    assert {point.name for point in planned} == {point.name for point in wanted}
    assert len(planned) == (22 if every_k else 6)


@pytest.mark.parametrize("option", only({"--windows"}, ["--windows", "--calibration"]))
def test_more_windows_than_there_are_is_an_error_of_the_option(option: str, tmp_path: Path) -> None:
    result = run("demo", "--output", str(tmp_path), option, "999")
    assert result.returncode == 2
    assert f"error: {option}: expected at most " in result.stderr
    assert "Traceback" not in result.stderr


def test_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("")
    result = run("demo", "--output", str(file))
    assert result.returncode == 2
    assert "error: --output: expected a folder that can be made" in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.stderr


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "demo" in result.stdout
