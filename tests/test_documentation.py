"""The Python examples of README and docs run as they stand there."""

import re
from pathlib import Path

import pytest

from toptheta_npu.evaluation import report

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("source", EXAMPLES)
def test_example_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "<example>", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_the_repository_exist(page: Path) -> None:
    text = page.read_text()
    linked = re.findall(r"\]\(([^)#:]+)\)", text)
    named = re.findall(r"`((?:docs|toptheta_npu|fallback|benchmarks|examples|tests)/[\w./-]+)`", text)
    missing = [name for name in linked if not (page.parent / name).exists()] + [
        name for name in named if not (ROOT / name).exists()
    ]
    assert not missing


def test_readme_names_the_make_targets() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^ +)make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)) <= targets


def test_results_page_shows_the_committed_results() -> None:
    results = report.from_json((ROOT / "docs/results/demo/results.json").read_text())
    assert report.as_markdown(results) in (ROOT / "docs/results.md").read_text()
