"""``toptheta plot`` as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import toptheta
from tests.evaluation.test_plots import needle_points, perplexity_points
from tests.tiers import full
from toptheta_npu.evaluation.results import Header, ResultsFile

pytest.importorskip("matplotlib")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with ResultsFile(Path("one.jsonl"), Header("tiny", "llama:0")) as file:
        for point, measurement in (perplexity_points() | needle_points()).items():
            file.add(point, measurement)
    return "one.jsonl"


@full
def test_draws_the_points_into_a_new_folder(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("plot", results, "-o", "deep/figures") == 0
    lines = capsys.readouterr().out.splitlines()
    written = [line.removesuffix(" written.") for line in lines if line.endswith(" written.")]
    assert sorted(written) == sorted(f"deep/figures/{name}" for name in os.listdir("deep/figures"))
    assert "deep/figures/tradeoff_perplexity.svg" in written
    assert "deep/figures/tradeoff_needle.csv" in written


def test_a_file_of_something_else_is_refused(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.jsonl").write_text("{}\n")
    for name, message in (("none.jsonl", "no such file"), ("other.jsonl", "results of toptheta evaluate")):
        assert toptheta("plot", name, "-o", "figures") == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("figures").exists()


def test_drawing_leaves_the_caller_s_backend_and_figures_alone(tmp_path: Path) -> None:
    code = (
        "from toptheta_npu.evaluation.figures.plots import save_plots\n"
        "from tests.evaluation.test_plots import perplexity_points\n"
        "from pathlib import Path\nimport os, sys\n"
        "save_plots(perplexity_points(), Path(sys.argv[1]))\n"
        "assert os.environ['MPLBACKEND'] == 'svg' and 'matplotlib.pyplot' not in sys.modules\n"
        "import matplotlib\nassert matplotlib.get_backend() == 'svg'\n"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "MPLBACKEND": "svg", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, cwd=root, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
