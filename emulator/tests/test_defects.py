"""Planted defects: off unless a launch names one, and documented."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from emulator.ascendc import Kernel, LaunchError, run_kernel

_FOLDER = Path(__file__).parents[1] / "ascendc"
_NAMES = re.findall(r'DefectName\{Defect::\w+, "([\w-]+)"\}', (_FOLDER / "machine" / "defects.h").read_text())


def test_a_wrong_name_is_an_error_that_lists_the_others() -> None:
    kernel = Kernel(Path(__file__).parent / "kernels" / "machine_run.cpp", entry="copy_64_bytes")
    x, y = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, [("x", x, "in"), ("y", y, "out")], defect="reversed-bits")
    assert str(caught.value) == (
        f'defect: expected one of {", ".join(_NAMES)}, got "reversed-bits"; leave it out for a machine without defects'
    )


def test_the_readme_lists_every_defect() -> None:
    section = (_FOLDER / "README.md").read_text().split("## Planted defects\n")[1].split("\n## ")[0]
    listed = [name for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE) for name in row.split(", ")]
    assert listed[1:] == _NAMES
