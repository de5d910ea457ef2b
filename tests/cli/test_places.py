"""Whatever a user names as an input or output of a command: it is used, or refused in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import toptheta
from toptheta_npu.assets import TINY_LLAMA

TABLE = str(TINY_LLAMA / "thresholds_pre_softmax.theta")
#: A command, and where OUTPUT stands in it; nothing that takes long comes before it is looked at.
WRITERS = {
    "calibrate": ("calibrate", "-o", "OUTPUT"),
    "evaluate": ("evaluate", "--text", "book.txt", "-o", "OUTPUT"),
    "convert": ("convert", TABLE, "--k", "64", "--to", "th", "-o", "OUTPUT"),
    "benchmark": ("benchmark", "--device", "cpu", "--json", "OUTPUT"),
    "benchmark-generate": ("benchmark-generate", "--device", "cpu", "--json", "OUTPUT"),
}
#: A command, and where INPUT stands in it.
READERS = {
    "calibrate": ("calibrate", "INPUT", "--text", "book.txt"),
    "calibrate --text": ("calibrate", "--text", "INPUT"),
    "calibrate --config": ("calibrate", "--config", "INPUT"),
    "evaluate": ("evaluate", "INPUT", "--text", "book.txt"),
    "evaluate TABLE": ("evaluate", str(TINY_LLAMA), "INPUT", "--text", "book.txt"),
    "inspect": ("inspect", "INPUT"),
    "convert": ("convert", "INPUT", "--from", "theta", "-o", "other.theta"),
    "convert --fingerprint-of": ("convert", "th.txt", "--fingerprint-of", "INPUT", "-o", "other.theta"),
    "plot": ("plot", "INPUT", "-o", "figures"),
    "benchmark --constants": ("benchmark", "--device", "host-model", "--constants", "INPUT"),
}

pytestmark = pytest.mark.usefixtures("quiet_and_one_thread")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("import os\n" * 9)
    assert toptheta("convert", TABLE, "--k", "64", "-o", "th.txt") == 0
    before = sorted(tmp_path.iterdir())
    yield tmp_path
    left = [path for path in tmp_path.iterdir() if path not in before and path.name != "figures"]
    assert not left, "something was left behind"


def refusal(command: tuple[str, ...], name: str, path: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert toptheta(*(path if each == name else each for each in command)) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("error:") == 1
    return said


@pytest.mark.parametrize("command", WRITERS)
def test_a_folder_is_no_output(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "output"
    path.mkdir()
    try:
        said = refusal(WRITERS[command], "OUTPUT", path.name, capsys)
        assert f"got a folder at {path.name}; name a file in it" in said
    finally:
        path.rmdir()


@pytest.mark.parametrize("state", ["partial", "toptheta"])
def test_a_state_to_go_on_from_is_a_file(state: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / f"model.theta.{state}"
    os.mkfifo(path)
    try:
        if state == "partial":
            assert f"a device or pipe at {path.name}" in refusal(("calibrate", "-o", "model.theta"), "", "", capsys)
        else:
            assert "a device or pipe" in refusal(("calibrate", "-o", str(path)), "", "", capsys)
    finally:
        path.unlink()


def test_an_output_whose_state_would_have_a_long_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "File name too long" in refusal(("calibrate", "-o", "n" * 250), "", "", capsys)


@pytest.mark.parametrize("command", READERS)
def test_an_input_with_a_long_name(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(READERS[command], "INPUT", "n" * 300, capsys)
    assert "nnnn" in said
