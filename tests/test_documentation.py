"""What the Markdown pages say holds: links, examples, commands, tables and names."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import yaml

from tests.markdown import PAGES, ROOT, Block, Command, anchors, blocks, code_spans, commands, links, name_of
from tests.tiers import full

README = ROOT / "README.md"
DOCS = [page for page in PAGES if page.parent == ROOT / "docs"]
EXAMPLES = [
    pytest.param(block, id=f"{name_of(page)}:{block.line}")
    for page in PAGES
    for block in blocks(page)
    if block.language == "python" and block.runs
]
COMMANDS = [
    pytest.param(command, id=f"{name_of(page)}:{command.block.line}: {' '.join(command.text.split('#')[0].split())}")
    for page in PAGES
    for command in commands(page)
    if command.block.runs
]
#: `make docs` sets it: blocks labelled slow run too.
SLOW = os.environ.get("TOPTHETA_SLOW_COMMANDS") == "1"
SECONDS = 120
SLOW_SECONDS = 1800

#: What an example may import: the standard library and what `make` or the page's own subject installs.
INSTALLED = {"emulator", "numpy", "toptheta_host_model", "toptheta_npu", "torch", "transformers"}


@pytest.mark.parametrize("block", EXAMPLES)
def test_example_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert imported(block.text) <= INSTALLED
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, name_of(block.page), "exec"), {"__name__": "__main__"})


def imported(source: str) -> set[str]:
    """Top-level packages that a source imports, the standard library left out."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)


def test_what_examples_import_is_there_in_any_folder(tmp_path: Path) -> None:
    run_in_shell(f"python -c 'import {', '.join(sorted(INSTALLED))}'", tmp_path, tmp_path, SECONDS)


@full
@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command: Command, tmp_path: Path) -> None:
    if command.block.slow and not SLOW:
        pytest.skip("slow: make docs runs it")
    run_in_shell(command.script, ROOT, tmp_path, SLOW_SECONDS if command.block.slow else SECONDS)


def run_in_shell(script: str, folder: Path, home: Path, seconds: int) -> None:
    """What a reader types, with an activated virtual environment and nothing else set."""
    environment = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    process = subprocess.Popen(
        ["bash", "-ec", script], cwd=folder, env=environment, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"not done after {seconds} s: {process.communicate()[0]}")
    assert process.returncode == 0, output


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_on_a_page_exist(page: Path) -> None:
    top = r"(?:docs|toptheta_npu|fallback|benchmarks|examples|tests|emulator|toptheta_host_model|op_host|op_kernel)"
    named = [span for span in code_spans(page) if re.fullmatch(rf"{top}/[\w./-]+", span)]
    assert not [name for name in named if not (ROOT / name).exists()]


def test_readme_links_are_absolute_once_the_repository_has_an_address() -> None:
    # a package page shows README alone: without an address its links lead into the source distribution
    # (test_packaging looks there), with one they can lead to the web
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    relative = [link for link in links(README) if not re.match(r"[a-z]+:|#", link)]
    assert not ("Repository" in project.get("urls", {}) and relative)
    assert not [link for link in relative if link.startswith(("/", ".."))]


def test_the_method_that_contributing_shows_is_the_one_in_the_package() -> None:
    (shown,) = [block.text for block in blocks(ROOT / "CONTRIBUTING.md") if block.language == "python"]
    assert shown in (ROOT / "toptheta_npu/evaluation/methods/last_k.py").read_text()


def test_index_leads_to_every_page() -> None:
    index = ROOT / "docs/index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index) if ":" not in link}
    assert {page for page in PAGES if page != index} <= linked


def _make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_workflow_makes_what_the_script_makes() -> None:
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["make"]
    made = set(re.findall(r"^make ([\w-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE))
    # each job has a machine of its own, so what takes long runs there too
    wanted = made - {"clean-vllm"} | {"test-long"}
    assert set(job["strategy"]["matrix"]["target"]) == wanted <= _make_targets()
    assert job["steps"][-1] == {"run": "make ${{ matrix.target }}"}


def test_pages_name_make_targets_that_exist() -> None:
    targets = _make_targets()
    shown = [text for page in PAGES for text in (*code_spans(page), *(command.text for command in commands(page)))]
    named = {name for text in shown for name in re.findall(r"^make ([\w-]+)", text)}
    assert named
    assert named <= targets


def test_functions_named_by_the_method_page_exist() -> None:
    files = [*(ROOT / "fallback").glob("*.py"), *(ROOT / "toptheta_npu").rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(file.read_text() for file in files)))
    spans = [span for span in code_spans(ROOT / "docs/method.md") if re.fullmatch(r"[A-Za-z_][\w.]*\w", span)]
    named = {part for span in spans if not span.endswith((".md", ".txt")) for part in span.split(".")}
    assert len(named) > 20
    assert not named - words
