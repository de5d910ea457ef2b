"""The tables of the native CPU backend: parts in processes of their own, all or one by one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks import cpu_tables, decode_step_1b
from toptheta_npu.timing.clocks import Timing
from toptheta_npu.timing.inputs import make_traffic
from toptheta_npu.timing.measure import Row, ShapeResult
from toptheta_npu.timing.report import as_json
from toptheta_npu.timing.shapes import PAPER

ENVIRONMENT = {"name": "a CPU", "threads": 2, "operators": "native", "cache_bytes": 32 << 20, "torch": "2.13"}
FORMS = (
    "SPARSE", "DENSE", "SPARSE_INT8", "DENSE_INT8", "SPARSE_CHANNELS", "SDPA", "REST",
)  # fmt: skip


def compared(k: int, seconds: float, cache: str = "") -> ShapeResult:
    shape = replace(PAPER, k=k, cache=cache)
    roles = {"own dense": 3.0, "sparse": seconds, "own dense int8": 2.5, "sparse int8": 1.5}
    rows = [Row(role, role, calls={"cold": Timing(time, time, time)}) for role, time in roles.items()]  # type: ignore[arg-type]
    return ShapeResult(shape, traffic=make_traffic(shape, 48 * k), rows=rows, pages="small pages")


def step() -> dict[str, Any]:
    return {
        "environment": ENVIRONMENT, "settings": {"batch": 4, "keys": 32768, "k": 128}, "pages": "small pages",
        "weight_bytes": 4e9, "key_bytes": 2e9, "value_bytes": 1e9,
        "kept": {"mean": 130.0, "p10": 40.0, "p90": 280.0, "density": 0.2},
        "seconds": {getattr(decode_step_1b, name): {"median": 2.0, "p10": 1.0, "p90": 3.0} for name in FORMS},
    }  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Module and pages of each process, which writes figures that are made up."""
    seen: list[tuple[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> None:
        file = Path(command[-1])
        seen.append((command[2], env["THP_MEM_ALLOC_ENABLE"]))
        results = [compared(128, 2.0, "int8" if file.stem == "int8" else "")]
        of_step = "benchmarks.decode_step_1b" in command
        file.write_text(json.dumps(step()) if of_step else as_json(results, ENVIRONMENT, {}))

    monkeypatch.setattr(cpu_tables.subprocess, "run", run)
    return seen


def test_all_parts(calls: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    cpu_tables.main()
    comparison, decode = "toptheta_npu", "benchmarks.decode_step_1b"
    assert calls == [
        (comparison, "0"), (comparison, "1"), (comparison, "0"), (comparison, "0"), (decode, "0"), (decode, "1"),
    ]  # fmt: skip
    shown = capsys.readouterr().out
    assert shown.count("| a CPU | 2 | native | 32 MiB | 2.13 | small pages |") == len(cpu_tables.PARTS)
    assert shown.count("| --- |") == 1 + 4 + 2 * 2


def test_one_part_keeps_its_figures(calls: list[tuple[str, str]], tmp_path: Path) -> None:
    cpu_tables.main(part=["densities"], folder=tmp_path / "new")
    assert len(calls) == 1
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["densities.json"]


def test_an_unknown_part() -> None:
    with pytest.raises(typer.BadParameter, match=r"expected one of small_pages, .* got depths"):
        cpu_tables.main(part=["depths"])


def test_density_table_by_hand() -> None:
    table = cpu_tables.density_table([compared(128, 2.0), compared(1024, 3.0)])
    assert table.columns == ("", "k=128", "k=1024")
    assert table.rows == [["48/48 n=2048 float16", "1.50 (1.88)", "1.00 (1.33)"]]
