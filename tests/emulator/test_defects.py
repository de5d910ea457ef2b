"""Planted defects: off unless asked for, and documented. tests/npu shows what each of them does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from emulator.ascendc.run import LaunchError
from emulator.incremental_attention import OperatorRun, run_operator

_FOLDER = Path(__file__).parents[2] / "emulator" / "ascendc"
_VARIABLE = "TOPTHETA_EMULATOR_DEFECT"
_NAMES = re.findall(r'DefectName\{Defect::\w+, "([\w-]+)"\}', (_FOLDER / "machine" / "defects.h").read_text())


def one_row_each() -> OperatorRun:
    """Four heads with 64 keys, of which head h keeps row 9 h; the V rows hold their numbers."""
    key = torch.zeros(1, 4, 64, 16).half()
    key[0, range(4), [9 * head for head in range(4)]] = 1
    value = torch.arange(64).half().view(1, 1, 64, 1).repeat(1, 4, 1, 16)
    tensors = {"query": torch.ones(1, 4, 1, 16).half(), "key": key, "value": value, "threshold": torch.full((4,), 0.5)}
    return run_operator(tensors, {"num_heads": 4, "num_key_value_heads": 4, "scale_value": 1.0, "sdc": "none"})


def rows_read(run: OperatorRun) -> list[float]:
    rows: list[float] = run.outputs["attention_out"][0, :, 0, 0].tolist()
    return rows


def test_a_defect_is_planted_while_the_variable_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_read(one_row_each()) == [0, 9, 18, 27]
    monkeypatch.setenv(_VARIABLE, "reversed-mask-bits")
    spoilt = one_row_each()
    assert rows_read(spoilt) == [7, 14, 21, 28]
    assert spoilt.run.findings == []
    monkeypatch.delenv(_VARIABLE)
    assert rows_read(one_row_each()) == [0, 9, 18, 27]


def test_a_wrong_name_is_an_error_that_lists_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_VARIABLE, "reversed-bits")
    with pytest.raises(LaunchError) as caught:
        one_row_each()
    expected = f'{_VARIABLE}: expected one of {", ".join(_NAMES)}, got "reversed-bits"; unset it for a machine without'
    assert str(caught.value).startswith(expected)


def test_the_readme_lists_every_defect() -> None:
    section = (_FOLDER / "README.md").read_text().split("## Planted defects\n")[1].split("\n## ")[0]
    listed = [name for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE) for name in row.split(", ")]
    assert listed[1:] == _NAMES
