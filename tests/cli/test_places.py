"""Whatever a user names as an input or output of a command: it is used, or refused in one sentence."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import toptheta
from toptheta_npu.assets import TINY_LLAMA

TABLE = str(TINY_LLAMA / "thresholds_pre_softmax.theta")
#: A command, and where OUTPUT stands in it; nothing that takes long comes before it is looked at.
WRITERS = {
    "calibrate": ("calibrate", "-o", "OUTPUT"),
    "calibrate --shards": ("calibrate", "-o", "model", "--shards", "0/2"),
    "evaluate": ("evaluate", "--text", "book.txt", "-o", "OUTPUT"),
    "convert": ("convert", TABLE, "--k", "64", "--to", "th", "-o", "OUTPUT"),
    "merge": ("merge", "shard", "-o", "OUTPUT"),
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
    "merge": ("merge", "INPUT", "-o", "other.theta"),
    "plot": ("plot", "INPUT", "-o", "figures"),
    "benchmark --config": ("benchmark", "--device", "cpu", "--config", "INPUT"),
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


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null"])
@pytest.mark.parametrize("command", [name for name in WRITERS if name != "calibrate --shards"])
def test_a_device_is_no_output(command: str, path: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(WRITERS[command], "OUTPUT", path, capsys)
    assert f"a regular file or the name of a new one, got a device or pipe at {path}; name a file" in said


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("command", WRITERS)
def test_neither_a_pipe_nor_a_folder_is_an_output(
    command: str, kind: str, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("model.shard-0-of-2" if command.endswith("--shards") else "output")
    try:
        path.mkdir() if kind == "folder" else os.mkfifo(path)
        said = refusal(WRITERS[command], "OUTPUT", str(path), capsys)
        assert f"got a {'folder' if kind == 'folder' else 'device or pipe'} at {path.name}" in said.replace(
            f"{tmp_path}/", ""
        )
    finally:
        path.rmdir() if kind == "folder" else path.unlink()


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


@pytest.mark.parametrize("command", WRITERS)
def test_an_output_with_a_long_name(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tuple("n" * 300 if each == "model" else each for each in WRITERS[command])
    assert "File name too long" in refusal(given, "OUTPUT", "n" * 300, capsys)


def test_an_output_whose_state_would_have_a_long_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "File name too long" in refusal(("calibrate", "-o", "n" * 250), "", "", capsys)


@pytest.mark.parametrize("command", READERS)
def test_an_input_with_a_long_name(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(READERS[command], "INPUT", "n" * 300, capsys)
    assert "nnnn" in said


def drop_rights() -> None:
    """Let permissions hold for this process, also if it is root's."""
    version, pid = 0x20080522, 0
    ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(version, pid), (ctypes.c_uint32 * 6)())


def without_rights(command: tuple[str, ...]) -> tuple[int, str]:
    """Exit status and errors of a command to which permissions apply."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        sys.stderr = os.fdopen(writing, "w", buffering=1)
        status: int | str | None = 9
        try:
            drop_rights()
            status = toptheta(*command)
        except BaseException as error:
            print(f"Traceback: {error!r}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 9)
    os.close(writing)
    with open(reading) as stream:
        text = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), " ".join(text.split())


@pytest.fixture
def home(folder: Path) -> Iterator[Path]:
    """A folder that nobody may look into."""
    home = folder / "home"
    home.mkdir(mode=0)
    yield home
    home.rmdir()


@pytest.mark.parametrize("command", [name for name in WRITERS if name != "calibrate --shards"])
def test_an_output_inside_the_home_of_another(command: str, home: Path) -> None:
    status, said = without_rights(tuple("home/x" if each == "OUTPUT" else each for each in WRITERS[command]))
    assert (status, said.count("error:"), said.count("Traceback")) == (2, 1, 0), said
    assert "Permission denied" in said


@pytest.mark.parametrize("command", READERS)
def test_an_input_inside_the_home_of_another(command: str, home: Path) -> None:
    given = tuple("./home/table" if each == "INPUT" else each for each in READERS[command])
    status, said = without_rights(given)
    assert (status, said.count("error:"), said.count("Traceback")) == (2, 1, 0), said
    assert "ermission" in said
