"""Folders that a command writes into: tried before the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from toptheta_npu._outputs import check_output_folder
from toptheta_npu.errors import TopThetaValueError


def test_a_folder_is_made_and_its_files_are_tried(tmp_path: Path) -> None:
    check_output_folder("--output", tmp_path / "deep" / "out", "results.json")
    assert list((tmp_path / "deep" / "out").iterdir()) == []
    (tmp_path / "deep" / "out" / "results.json").mkdir()
    expected = r"^--output: expected the name of a file, got a folder at .*results\.json"
    with pytest.raises(TopThetaValueError, match=expected):
        check_output_folder("--output", tmp_path / "deep" / "out", "results.json")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TopThetaValueError, match=r"--output: expected a folder that can be made, got .*file"):
        check_output_folder("--output", tmp_path / "file")
