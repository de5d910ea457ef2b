"""Outputs of a command: tried before the work, written whole, and never half."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from toptheta_npu._files import check_writable, write_atomically
from toptheta_npu._outputs import check_output_folder
from toptheta_npu.errors import TopThetaValueError


def test_trying_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "results.json", "--json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc")
def test_a_folder_that_takes_no_files_is_refused() -> None:
    with pytest.raises(TopThetaValueError, match="expected a place where a file can be written"):
        check_writable(Path("/proc/results.json"), "--json")
    with pytest.raises(TopThetaValueError, match="expected a folder that can be made"):
        check_output_folder("--output", Path("/proc/results"))


def test_a_write_protected_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    file.write_text("kept")
    file.chmod(0o444)
    # the superuser may write everywhere, so the question is answered as for anyone else
    monkeypatch.setattr(os, "access", lambda path, mode: bool(Path(path).stat().st_mode & stat.S_IWUSR))
    with pytest.raises(TopThetaValueError, match="the file is write-protected"):
        check_writable(file, "--json")


def test_a_file_of_a_folder_that_is_a_folder_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out" / "results.json").mkdir(parents=True)
    with pytest.raises(
        TopThetaValueError, match=r"^--output: expected the name of a file, got a folder at .*results\.json"
    ):
        check_output_folder("--output", tmp_path / "out", "results.json")


def test_devices_are_refused() -> None:
    expected = (
        "^--json: expected a regular file or the name of a new one, got a device or pipe at /dev/null; name a file$"
    )
    with pytest.raises(TopThetaValueError, match=expected):
        check_writable(Path("/dev/null"), "--json")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    check_writable(path, "--json")
    path.mkdir()  # since the check
    with pytest.raises(TopThetaValueError, match=r"results\.json: expected the name of a file, got a folder"):
        write_atomically(path, "text")
    assert list(tmp_path.iterdir()) == [path]
