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
    assert len(_TEXT.splitlines()) <= 120
    assert len(_TEXT.split()) <= 900


def test_its_make_commands_are_targets_that_ci_runs() -> None:
    called = [text.split("#")[0].strip() for text in _COMMANDS if text.startswith("make ")]
    assert called == ["make demo", "make test"]
    targets = re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    in_ci = (ROOT / ".ci/run").read_text().splitlines()
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    for command in called:
        target = command.removeprefix("make ")
        assert target in targets
        assert command in in_ci
        assert f"- {target}\n" in workflow
    # the install command of CI is the same one
    assert {text for text in in_ci if text.startswith("make ")} <= {f"make {target}" for target in targets}


def test_the_first_example_prints_what_stands_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, shown = _PYTHON[0].rpartition("# ")
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip() == shown.strip()


def test_its_figures_are_those_of_the_pages() -> None:
    pages = {name: (ROOT / f"docs/{name}.md").read_text() for name in ("performance", "results", "serving")}
    rows = [line for line in _TEXT.splitlines() if re.match(r"\| (CPU|GPU|NPU|SmolLM2|Gemma)", line)]
    assert len(rows) >= 10
    for row in rows:
        page = pages[re.findall(r"\(docs/(\w+)\.md[^)]*\)", row)[0]]
        figures = re.findall(r"[+-]?\d+\.\d+(?=[^\d.]|$)", re.sub(r"\[[^]]*\]\([^)]*\)", "", row).partition("|")[2])
        assert figures
        assert [figure for figure in figures if figure not in page] == [], row


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
    assert {"doctor", "evaluate"} <= called <= set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    (torch,) = re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pip = f"pip install {torch}"
    assert any(text.startswith(f"{pip} --index-url") and f"GPU: {pip}" in text for text in _COMMANDS)
    assert any(text.startswith("vllm serve") for text in _COMMANDS)


def test_the_map_is_that_of_the_tree() -> None:
    (drawn,) = [block.text for block in blocks(_README) if block.text.startswith("op_kernel/")]
    named = re.findall(r"(?<!\S)(\w+)/(?=\s)", drawn)
    made = ("build", "dist")
    top = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in made and "." not in path.name}
    package = {path.parent.name for path in (ROOT / "toptheta_npu").glob("*/__init__.py")}
    assert sorted(named) == sorted(top | package)
