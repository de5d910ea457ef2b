"""README.md keeps to what a first page is for."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import tomllib
import typer

from benchmarks import pictures
from tests.markdown import ROOT, blocks, commands, links
from tests.tiers import full
from toptheta_npu.cli import app

_README = ROOT / "README.md"
_TEXT = _README.read_text()
_PYTHON = [block.text for block in blocks(_README) if block.language == "python"]
_COMMANDS = [command.text for command in commands(_README)]


@full
def test_the_pictures_are_there_and_can_be_drawn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = pictures.row_of_the_embedded_model()
    assert f"{pictures.KEYS} tokens; {row.kept.sum()} of them" in _TEXT
    assert row.kept_weight == pytest.approx(0.9, abs=0.02)
    kept = pictures.PICTURES
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    pictures.main()
    for name in ("method.png", "loss.png"):
        assert (tmp_path / name).stat().st_size == pytest.approx((kept / name).stat().st_size, rel=0.2)
        assert (kept / name).relative_to(ROOT).as_posix() in links(_README)


def test_it_is_short() -> None:
    assert len(_TEXT.splitlines()) <= 150


@pytest.mark.parametrize("column", ["gain with launch", "over any dense"])
def test_what_npus_gain_is_the_range_of_the_table(column: str) -> None:
    page = (ROOT / "docs/performance.md").read_text()
    (table,) = re.findall(r"^\| heads \| batch \|(?:.*\n)+?(?=\n)", page, re.MULTILINE)
    header, _, *rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines())
    values = [float(row[header.index(column)].split()[0]) for row in rows]
    assert len(values) > 5
    assert f"{min(values):.2f} to {max(values):.2f} times as fast" in _TEXT


@pytest.mark.parametrize("source", _PYTHON)
def test_an_example_imports_from_two_levels_at_most(source: str) -> None:
    tree = ast.parse(source)
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert max(module.count(".") for module in modules) <= 1


def test_what_it_installs_and_calls_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = {name for found in re.findall(r"'\.\[([\w,]+)\]'", _TEXT) for name in found.split(",")}
    assert {"hf"} <= installed <= set(extras)
    called = {shlex.split(text)[1] for text in _COMMANDS if text.startswith("toptheta ")}
    assert called == {"calibrate", "doctor", "evaluate", "verify"}
    assert called <= set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    (torch,) = re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pip = f"pip install {torch}"
    for start in (f"{pip} --index-url", f"{pip}  ", "PYTHON=python op_host/build", "vllm serve"):
        assert any(text.startswith(start) for text in _COMMANDS)


def test_the_map_names_folders_that_are_there() -> None:
    (drawn,) = [block.text for block in blocks(_README) if block.text.startswith("cli ")]
    boxes = ("cli", "calibration", "thresholds", "ops", "backends", "models", "serving", "evaluation")
    assert [box for box in boxes if not re.search(rf"\b{box}\b", drawn)] == []
    folders = {"serving": "vllm", "backends": "cpu"}
    assert [box for box in boxes if not (ROOT / "toptheta_npu" / folders.get(box, box)).is_dir()] == []
