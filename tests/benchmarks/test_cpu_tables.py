"""The tables of the native CPU backend: parts in processes of their own, kept together or one by one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks import cpu_tables
from toptheta_npu.timing.clocks import Timing
from toptheta_npu.timing.inputs import make_traffic
from toptheta_npu.timing.measure import Row, ShapeResult
from toptheta_npu.timing.shapes import PAPER


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, Path]]:
    """Module, pages and folder of each process; each writes what the page holds now. The page is another."""
    seen: list[tuple[str, str, Path]] = []
    kept = cpu_tables.RESULTS

    def run(command: list[str], *, env: dict[str, str], cwd: Path, **_: Any) -> None:
        file = Path(command[-1])
        seen.append((command[2], env["THP_MEM_ALLOC_ENABLE"], cwd))
        stored = json.loads((kept / file.name).read_text())
        stored["environment"]["name"] = "another CPU"
        file.write_text(json.dumps(stored))

    monkeypatch.setattr(cpu_tables.subprocess, "run", run)
    shutil.copy(cpu_tables.PAGE, tmp_path / "PAGE")
    monkeypatch.setattr(cpu_tables, "PAGE", tmp_path / "PAGE")
    shutil.copytree(kept, tmp_path / "results")
    monkeypatch.setattr(cpu_tables, "RESULTS", tmp_path / "results")
    return seen


def cpus(text: str) -> dict[str, str]:
    """The CPU of each part, by the table of machines."""
    lines = text.partition("<!-- table cpu machine -->\n")[2].partition("<!-- end -->")[0].splitlines()[2:]
    return {cells[1].strip(): cells[2].strip() for cells in (line.split("|") for line in lines)}


def test_all_parts(calls: list[tuple[str, str, Path]]) -> None:
    cpu_tables.main(write=True)
    assert [(module, pages) for module, pages, _ in calls] == [
        ("toptheta_npu", "0"), ("toptheta_npu", "1"), ("toptheta_npu", "0"), ("toptheta_npu", "0"),
        ("benchmarks.decode_step_1b", "0"), ("benchmarks.decode_step_1b", "1"),
    ]  # fmt: skip
    assert set(cpus(cpu_tables.PAGE.read_text()).values()) == {"another CPU"}


def test_one_part_leaves_the_others(calls: list[tuple[str, str, Path]]) -> None:
    cpu_tables.main(write=True, part=["densities"])
    assert len(calls) == 1
    names = cpus(cpu_tables.PAGE.read_text())
    assert [part for part, name in names.items() if name == "another CPU"] == ["densities"]
    assert len(names) == len(cpu_tables.PARTS)


def test_nothing_is_written_unasked(calls: list[tuple[str, str, Path]]) -> None:
    before = cpu_tables.PAGE.read_text()
    cpu_tables.main()
    assert len(calls) == len(cpu_tables.PARTS)
    assert cpu_tables.PAGE.read_text() == before
    assert "another CPU" not in (cpu_tables.RESULTS / "densities.json").read_text()


def test_an_unknown_part() -> None:
    with pytest.raises(typer.BadParameter, match=r"expected one of small_pages, .* got depths"):
        cpu_tables.main(part=["depths"])


def test_density_table_by_hand() -> None:
    def result(k: int, seconds: float) -> ShapeResult:
        shape = replace(PAPER, k=k)
        rows = [
            Row(role, role, calls={"cold": Timing(time, time, time)})
            for role, time in (("own dense", 3.0), ("sparse", seconds))
        ]
        return ShapeResult(shape, traffic=make_traffic(shape, 48 * k), rows=rows)

    table = cpu_tables.density_table([result(128, 2.0), result(1024, 3.0)])
    assert table.columns == ("", "k=128", "k=1024")
    assert table.rows == [["48/48 n=2048 float16", "1.50 (1.88)", "1.00 (1.33)"]]
