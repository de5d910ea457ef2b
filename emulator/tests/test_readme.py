"""The example of ascendc/README.md works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "ascendc" / "README.md"
MACHINE = README.parent / "machine"


def code(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.S)
    return str(block)


@pytest.mark.full
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "add.cpp").write_text(code("cpp"))
    monkeypatch.chdir(tmp_path)
    exec(compile(code("python"), str(README), "exec"), {})
    assert "0 findings" in capsys.readouterr().out
    assert (tmp_path / "add.json").stat().st_size > 1000


def test_the_table_has_every_check() -> None:
    names = re.findall(r"^    k(\w+),", (MACHINE / "findings.h").read_text(), re.M)
    section = README.read_text().partition("## What is checked")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([A-Z][\w, ]+) \|", section, re.M)
    assert {name for row in rows for name in row.split(", ")} == set(names) - {"Count"}
