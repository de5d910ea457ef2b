"""An installation has every source that the emulator compiles or runs."""

from __future__ import annotations

from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")

_ROOT = Path(__file__).parents[1]


def test_the_package_data_has_every_source() -> None:
    tool = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = [_ROOT.joinpath(*name.split(".")[1:]) for name in tool["packages"]]
    installed = {path for folder in folders for path in folder.glob("*.py")}
    installed |= {path for pattern in tool["package-data"]["emulator"] for path in _ROOT.glob(pattern)}
    sources = {
        path for path in _ROOT.rglob("*")
        if path.suffix in (".py", ".cpp", ".h") and path.relative_to(_ROOT).parts[0] not in ("tests", "build")
    }  # fmt: skip
    assert len(sources) > 150
    assert sources <= installed
