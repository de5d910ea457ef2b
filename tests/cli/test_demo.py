"""The command line as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from toptheta_npu.evaluation.comparison import FAMILIES


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toptheta_npu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=None)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    output = tmp_path_factory.mktemp("demo")
    result = run("demo", "--output", str(output), "--windows", "1", "--calibration", "2", "--new-tokens", "4")
    assert result.returncode == 0, result.stderr
    return output, result.stdout


def test_demo_writes_what_it_says(demo: tuple[Path, str]) -> None:
    output, text = demo
    assert (output / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((output / "results.json").read_text())["results"]
    assert [row["family"] for row in results] == list(FAMILIES)
    assert "Live: Algorithm 1 calibrated k=64 on 2 sequences" in text
    assert "of 4 tokens agree" in text


def test_demo_says_first_what_it_does_and_then_a_line_per_method(demo: tuple[Path, str]) -> None:
    lines = demo[1].splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith("About 1 minute on ")]
    assert lines[start].endswith(", the first figure after about 10 seconds.")
    assert lines[start - 1].startswith("Now: 10 ways to attend are compared on 1 held-out windows of 2560 tokens, ")
    assert lines[start + 1].startswith("dense    ")
    followed = [line for line in lines[start + 2 : start + 12] if " of 2304 V rows" in line]
    assert len(followed) == 9
    assert "\x1b" not in demo[1]


def test_demo_shows_the_trade(demo: tuple[Path, str]) -> None:
    rows = json.loads((demo[0] / "results.json").read_text())["results"]
    at_64 = {row["family"]: row for row in rows if row["k"] == 64}
    sparse, last = at_64["Top-θ post + VMC"], at_64["last-k"]
    assert sparse["reads"]["value_rows_mean"] == pytest.approx(last["reads"]["value_rows_mean"], abs=1)
    assert sparse["change_percent"] < 0.1 * last["change_percent"]


@pytest.mark.parametrize("option", ["--windows", "--calibration"])
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
