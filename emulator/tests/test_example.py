"""The operator of examples/axpy: right as it stands, and its planted mistake is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.examples.axpy.__main__ import KERNEL, run, run_with_mistake


def test_the_example_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    run(KERNEL).require_clean()
    assert capsys.readouterr().out == "z is right\n"


def test_the_mistake_is_found(tmp_path: Path) -> None:
    found = run_with_mistake(tmp_path).findings
    assert [finding.check for finding in found] == ["Queue", "Queue"]
    assert found[0].what == "the tensor of VECIN is used between EnQue and DeQue"
