"""Error curves from the shell: of a calibration, or of a table that is there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
import torch
import yaml

from tests.cli.command import toptheta
from tests.cli.folders import save_model
from tests.cli.test_calibrate import free_port, words
from tests.tiers import full
from toptheta_npu.calibration.error_state import ErrorState
from toptheta_npu.models.calibration.error_watch import ErrorWatch
from toptheta_npu.thresholds import ThresholdTable

BOOKS = Path(unittest.__file__).parent
QUICK = ("--device", "cpu", "--length", "96", "--sequences", "4")
KS = ("--k", "4", "--k", "8", "--k", "16")

pytestmark = pytest.mark.usefixtures("quiet_and_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-random")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two texts."""
    monkeypatch.chdir(tmp_path)
    for name, source in (("book.txt", "case.py"), ("other.txt", "mock.py")):
        (tmp_path / name).write_text((BOOKS / source).read_text())
    return tmp_path


def calibrated(model: Path, *arguments: str) -> int | str | None:
    return toptheta("calibrate", str(model), "--text", "book.txt", *QUICK, "--error-curves", *arguments)


def curves(model: Path, *arguments: str) -> int | str | None:
    return toptheta("curves", str(model), "--table", "plain.theta", *QUICK, *arguments)


def test_every_k_in_every_layer_without_curves(model: Path, folder: Path) -> None:
    arguments = (str(model), "--text", "book.txt", *QUICK, *KS, "--below-layer-k")
    assert toptheta("calibrate", *arguments) == 0
    table = ThresholdTable.load("thresholds.theta")
    assert (table.layer_k, table.calibrated_layer_k, table.curves) == ((16, 16, 0), (0, 0, 0), None)
    assert yaml.safe_load(table.provenance["configuration"])["below_layer_k"] is True


@pytest.fixture
def plain(model: Path, folder: Path) -> ThresholdTable:
    """A table without curves, in plain.theta, whose layers have every k."""
    arguments = (str(model), "--text", "book.txt", *QUICK, *KS, "--layer-k", "0,0,0")
    assert toptheta("calibrate", *arguments, "-o", "plain.theta") == 0
    return ThresholdTable.load("plain.theta")


# --- with the calibration -----------------------------------------------------------------------------


def test_a_calibration_ends_with_error_curves(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrated(model, *KS) == 0
    printed = capsys.readouterr()
    out = words(printed.out)
    table = ThresholdTable.load("thresholds.theta")
    assert table.curves is not None
    assert (table.k.tolist(), table.layer_k, table.calibrated_layer_k) == ([4, 8, 16], (16, 16, 0), (0, 0, 0))
    assert table.curves.lengths.tolist() == [24, 48, 96]
    assert "k = 4, 8, 16, on 4 windows of 96 tokens; 4 for error curves; 1 held out." in out
    assert "mean k n=24: error V rows n=48: error V rows n=96: error V rows" in out
    assert re.search(r"Next: with toptheta_npu\.sparsify\(model, \S+, target_value_rows=\d+\): model", out)
    assert "measuring error curves: 8 of 8 runs over a window\n" in printed.err
    assert "checking on held-out text: 1 of 1 windows\n" in printed.err
    assert [path.name for path in folder.glob("thresholds*")] == ["thresholds.theta"]
    # every budget that is printed can be had
    for rows in table.curves.mean_value_rows()[:, -1].tolist():
        assert table.budget(target_value_rows=rows).value_rows == pytest.approx(rows)


def test_the_windows_of_the_three_purposes_are_others(model: Path, folder: Path) -> None:
    assert calibrated(model, *KS) == 0
    provenance = ThresholdTable.load("thresholds.theta").provenance
    assert provenance["curve_sequences"] == "4"
    assert provenance["curve_windows_sha256"] != provenance["windows_sha256"]
    settings = yaml.safe_load(provenance["configuration"])
    assert (settings["error_curves"], settings["top_k_at_calibration"]) == (True, False)
    # and they are a file for --config
    Path("again.yaml").write_text(provenance["configuration"])
    shutil.copytree(model, folder / "tiny-random")
    assert toptheta("calibrate", "--config", "again.yaml", "--device", "cpu", "-o", "again.theta") == 0
    assert Path("again.theta").read_bytes() == Path("thresholds.theta").read_bytes()


def test_the_k_are_a_power_of_two_apart_by_default(model: Path, folder: Path) -> None:
    assert calibrated(model, "--length", "160", "--sequences", "2", "--curve-sequences", "2") == 0
    table = ThresholdTable.load("thresholds.theta")
    assert (table.k.tolist(), table.layer_k) == ([16, 32], (32, 32, 0))
    assert table.provenance["curve_sequences"] == "2"


def test_a_text_that_is_short_is_split_in_three(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("book.txt").write_text(Path("book.txt").read_text()[:6000])
    for sequences in ("all", "500"):
        assert calibrated(model, *KS, "--sequences", sequences, "--force") == 0
        found = re.search(r"on (\d+) windows of 96 tokens; 4 for error curves; 1 held", words(capsys.readouterr().out))
        assert found
        assert 4 <= int(found[1]) < 16
    Path("book.txt").write_text(Path("book.txt").read_text()[:1500])
    assert calibrated(model, *KS, "--force") == 2
    assert (
        "--text: expected at least 576 tokens for 6 windows of 96, of which one is kept back to judge by and 4 measure "
        "error curves, got " in words(capsys.readouterr().err)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "8", "--top-k-at-calibration"], "--top-k-at-calibration excludes --error-curves, with which heads may "
         "have any k; leave one of them out"),
        (["--k", "8", "--layer-k", "0:16"], "--layer-k: expected at most 8, the largest k, got 16; "
         "add --k 16, or lower it"),
        (["--shards", "0/2"], "--error-curves excludes --shards; make the shards with "
         "--below-layer-k, merge them, then measure with toptheta curves"),
        (["--curve-sequences", "0"], "--curve-sequences: expected an int of at least 1, got 0"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_error_curves(
    options: list[str], message: str, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrated(model, *options) == 2
    assert message in words(capsys.readouterr().err)


def test_windows_for_curves_need_curves(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("calibrate", str(model), "--text", "book.txt", *QUICK, "--curve-sequences", "4") == 2
    said = words(capsys.readouterr().err)
    assert "--curve-sequences needs --error-curves; add --error-curves, or leave it out" in said


def interrupt_at(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt from the keyboard while layer 0 is looked at for the so-many-th time."""
    rule, begun = ErrorWatch.thresholds, []

    def counting(self: ErrorWatch, layer: int, lengths: torch.Tensor) -> torch.Tensor:
        begun.append(layer)
        if begun.count(0) == call:
            raise KeyboardInterrupt
        return rule(self, layer, lengths)

    monkeypatch.setattr(ErrorWatch, "thresholds", counting)


@pytest.mark.parametrize("call", [2, 6])
def test_an_interrupted_measurement_goes_on(
    call: int, model: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calibrated(model, *KS, "-o", "whole.theta") == 0
    with monkeypatch.context() as patch:
        interrupt_at(call, patch)
        assert calibrated(model, *KS, "--checkpoint-every", "1") == 130
    assert "the same command goes on from thresholds.theta.partial." in words(capsys.readouterr().out)
    state = ErrorState.load("thresholds.theta.partial.curves")
    assert (state.first is None, len(state.seen)) == (call == 2, 1)
    assert calibrated(model, *KS) == 0
    out = words(capsys.readouterr().out)
    assert "note: going on from thresholds.theta.partial.curves; --restart begins anew." in out
    assert Path("thresholds.theta").read_bytes() == Path("whole.theta").read_bytes()
    assert sorted(path.name for path in folder.glob("*.theta*")) == ["thresholds.theta", "whole.theta"]


@full
def test_torchrun_gives_the_table_of_one_process(model: Path, folder: Path) -> None:
    assert calibrated(model, *KS, "-o", "whole.theta") == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    arguments = [str(model), "--text", "book.txt", *QUICK, *KS, "--error-curves", "-o", "ranks.theta"]
    done = subprocess.run([*torchrun, "-m", "toptheta_npu", "calibrate", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path("ranks.theta").read_bytes() == Path("whole.theta").read_bytes()
    assert not list(folder.glob("*.partial*"))


# --- added to a table ---------------------------------------------------------------------------------


def test_curves_are_added_to_a_table(
    model: Path, folder: Path, plain: ThresholdTable, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert curves(model, "--text", "other.txt", "-o", "curves.theta") == 0
    out = words(capsys.readouterr().out)
    assert out.startswith("plain.theta, on 4 windows of 96 tokens, on cpu. ")
    assert "mean k n=24: error" in out
    assert "calibrated on" not in out
    table = ThresholdTable.load("curves.theta")
    assert table.curves is not None
    assert torch.equal(table.theta, plain.theta)
    assert table.provenance["curve_sequences"] == "4"
    assert plain.provenance.items() < table.provenance.items()
    assert [path.name for path in folder.glob("curves*")] == ["curves.theta"]
    # a table that has some gets new ones
    assert toptheta(
        "curves", str(model), "--table", "curves.theta", "--text", "other.txt", *QUICK, "-o", "curves.theta", "--force"
    ) == 0  # fmt: skip
    assert "calibrated on" not in words(capsys.readouterr().out)
    assert Path("curves.theta").read_bytes() != Path("plain.theta").read_bytes()


def test_text_that_made_the_thresholds_is_told(
    model: Path, folder: Path, plain: ThresholdTable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert curves(model, "--text", "book.txt", "-o", "curves.theta") == 0
    assert "note: the table was calibrated on book.txt, too: errors may look better than on new text." in words(
        capsys.readouterr().out
    )


def test_shards_of_curves_merge_to_those_of_one_process(
    model: Path, folder: Path, plain: ThresholdTable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert curves(model, "--text", "other.txt", "-o", "whole.theta") == 0
    options = ("--text", "other.txt", "-o", "parts.theta", "--shards")
    assert curves(model, *options, "0/2") == 0
    said = words(capsys.readouterr().out)
    assert "shard 0 of 2 has made the first of its two passes. Next, when all others have: the same command" in said
    assert curves(model, *options, "1/2") == 0
    said = words(capsys.readouterr().out)
    merge = "toptheta merge parts.theta.shard-*-of-2 --table plain.theta -o parts.theta"
    assert f"parts.theta.shard-1-of-2: shard 1 of 2 is done. Next, when all 2 are: {merge}" in said
    shards = [f"parts.theta.shard-{index}-of-2" for index in range(2)]
    assert toptheta("merge", *shards, "--table", "plain.theta", "-o", "parts.theta") == 2
    assert curves(model, *options, "0/2") == 0
    assert toptheta("merge", *shards, "-o", "parts.theta") == 2
    said = words(capsys.readouterr().err)
    assert "expected the state of a calibration, got the state of error curves, such as a shard; add it to its" in said
    assert toptheta("merge", *shards, "--table", "plain.theta", "-o", "parts.theta") == 0
    assert Path("parts.theta").read_bytes() == Path("whole.theta").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", "none.txt"], "none.txt"),
        (["--text", "other.txt", "--length", "9999"], "--length: expected at most 256 tokens"),
        (["--text", "other.txt", "--shards", "2/2"], "--shards: expected INDEX/COUNT"),
        (["--text", "other.txt", "--row-fraction", "1e-6"], "--row-fraction: expected a share that picks rows near"),
        (["--text", "other.txt", "--row-fraction", "2"], "--row-fraction: expected above 0 and at most 1, got 2.0"),
        (["--text", "short.txt"], "--text: expected enough text for a window of 96 tokens, got 4 tokens; name more"),
        (["--text", "other.txt", "--table", "other.txt"], "other.txt: expected a safetensors file"),
    ],
)
def test_wrong_options_are_refused(
    options: list[str], message: str, model: Path, folder: Path, plain: ThresholdTable,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    Path("short.txt").write_text("a b\n")
    assert curves(model, *options, "-o", "curves.theta") == 2
    assert message in words(capsys.readouterr().err)
    assert not list(folder.glob("curves.theta*"))


def test_the_next_command_can_be_pasted(
    model: Path, folder: Path, plain: ThresholdTable, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "the θ").mkdir()
    plain.save("the θ/plain é.theta")
    named = ("--table", "the θ/plain é.theta", "-o", "the θ/new.theta")
    for _ in range(2):
        assert toptheta("curves", str(model), *named, "--text", "other.txt", *QUICK, "--shards", "0/1") == 0
    following = capsys.readouterr().out.rpartition("when all 1 are: ")[2]
    assert shlex.split(following.replace("*", "0")) == [
        "toptheta", "merge", "the θ/new.theta.shard-0-of-1", "--table", "the θ/plain é.theta", "-o", "the θ/new.theta",
    ]  # fmt: skip


def test_the_thresholds_of_another_model_are_refused(
    folder: Path, plain: ThresholdTable, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_model(folder / "other", seed=4)
    assert curves(other, "--text", "other.txt", "-o", "curves.theta") == 2
    assert "differs in weights" in words(capsys.readouterr().err)
