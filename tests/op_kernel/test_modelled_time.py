"""The modelled times that docs/kernel.md shows are those of the kernel as it is, and keep their goals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.modelled import kernel_page, kernel_tables
from benchmarks.modelled import step as modelled_step
from emulator.ascendc import COLUMNS
from emulator.cann import Platform
from emulator.incremental_attention import run_operator
from tests.op_kernel.test_ub_layout import Variant, layout_of

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = kernel_tables.PAGE.read_text()
_RESULTS = json.loads(kernel_page.RESULTS.read_text())
_TIMES = ("cold", "hot", "cold_conflicts", "hot_conflicts")
_TOLERANCE = 0.01
_LIMITS = {
    "ub_layout.h": {"kMaxHeadDim": 512, "kMinPageRows": 16, "kMaxHeadBlock": 8, "kWideHeadDim": 256},
    "work_split.h": {"kGranuleRows": 128, "kFineGranuleRows": 32, "kMinimumGranules": 2},
    "geometry.h": {"kMaxPageRows": 512, "kMaxCapacity": 262144, "kMaxBatch": 65536, "kMaxHeads": 4096},
    "tiling_math.h": {"kMaxCores": 64},
}


def _assert_same_times(now: modelled_step.Measurement, then: dict[str, Any]) -> None:
    for name in _TIMES:
        assert getattr(now, name) == pytest.approx(then[name], rel=_TOLERANCE), name
    for column in COLUMNS:
        assert now.columns[column] == pytest.approx(then["columns"][column], rel=_TOLERANCE), column


def test_figures_are_for_the_constants_of_the_model() -> None:
    for column in COLUMNS:
        assert _RESULTS["constants"][column] == pytest.approx(modelled_step.constants(column), rel=1e-5)


@pytest.mark.parametrize("form", ["kept", "dense"])
def test_the_papers_point(form: str) -> None:
    step = modelled_step.make_step(48, 48, 2048)
    selection = modelled_step.select(step, 1 / 16) if form == "kept" else modelled_step.everything(step)
    now, then = modelled_step.measure(step, selection), _RESULTS["paper"][form]
    _assert_same_times(now, then)
    assert now.bytes_read == then["bytes_read"]
    assert now.rows_needed == 48 * (128 if form == "kept" else 2048)
    if form == "kept":
        assert now.hot <= 10
        assert now.rows_needed <= now.rows_read <= 1.1 * now.rows_needed
        plain = modelled_step.run(step, selection).run.timeline("cold", scattered_row_bytes=0, same_address_read=0)
        assert plain.microseconds <= 20


def test_every_charge_reaches_the_kernel() -> None:
    step = modelled_step.make_step(16, 2, 512)
    result = modelled_step.run(step, modelled_step.select(step, 1 / 16)).run
    expected = result.timeline().microseconds
    assert result.timeline(workspace_in_l2=0).microseconds > expected
    assert result.timeline(l2_bytes=result.traffic["key"].bytes_read).microseconds > expected
    assert result.timeline(scattered_row_bytes=0).microseconds < expected
    assert result.timeline(same_address_read=0).microseconds < expected
    assert result.timeline().launch_microseconds == modelled_step.constants()["launch_mixed_microseconds"]


def test_caches_past_the_l2_are_never_hot() -> None:
    step = modelled_step.make_step(4, 4, 512)
    tensors = {"query": step.query, "key": step.key, "value": step.value}
    tensors["threshold"] = modelled_step.everything(step).threshold
    inside, past = (
        run_operator(tensors, step.attributes, platform=Platform(l2_bytes=l2_bytes)).run.timeline("hot").microseconds
        for l2_bytes in (2 * step.key.nbytes, step.key.nbytes)
    )
    assert past > 1.3 * inside


def test_measured_steps_keep_exactly_k() -> None:
    step = modelled_step.make_step(48, 48, 2048)
    result = modelled_step.run(step, modelled_step.select(step, 1 / 16), with_stats=True)
    assert torch.equal(result.outputs["kept"], torch.full((1, 48), 128, dtype=torch.int32))
    grouped = modelled_step.make_step(8, 2, 512, overlap=0.9)
    chosen = modelled_step.select(grouped, 1 / 16)
    result = modelled_step.run(grouped, chosen, with_stats=True)
    assert torch.equal(result.outputs["kept"], torch.full((1, 8), 32, dtype=torch.int32))
    assert result.outputs["value_rows"].sum() == chosen.rows


def test_32_heads_over_48_cores() -> None:
    row = next(row for row in kernel_page.uneven_heads() if row["sync_all"] == 1.5)
    then = next(row for row in _RESULTS["uneven_heads"] if row["sync_all"] == 1.5)
    assert row == pytest.approx(then, rel=_TOLERANCE)
    assert row["cold_32"] / row["cold_48"] <= 0.85


def test_gain_at_32768_keys() -> None:
    """Four heads on four cores: whole heads and equal shares of the memory, as with 48, which set the pace cold."""
    row = next(row for row in kernel_page.against_dense(32768, heads=4, cores=4) if row["k"] == 2048)
    then = next(row for row in _RESULTS["lengths"] if (row["n"], row["k"]) == (32768, 2048))
    for form in ("kept", "dense"):
        for name in ("cold", "cold_conflicts"):
            assert row[form][name] == pytest.approx(then[form][name], rel=_TOLERANCE), (form, name)
    assert row["dense"]["cold"] / row["kept"]["cold"] >= 1.8


@pytest.mark.parametrize("place", [0, 3])
def test_grouped_heads(place: int) -> None:
    row = _RESULTS["grouped"][place]
    step = modelled_step.make_step(8 * row["group"], 8, row["n"], overlap=row["overlap"])
    _assert_same_times(modelled_step.measure(step, modelled_step.select(step, 1 / 16)), row["kept"])


def test_goals() -> None:
    missed = [goal.name for goal in kernel_tables.goals(_RESULTS) if not goal.met]
    assert missed == [
        "8 heads per KV head, n = 32768, independent, cold: stretch",
        "8 heads per KV head, n = 32768, alike, cold: stretch",
    ]  # fmt: skip


def test_a_goal_can_be_missed() -> None:
    assert not kernel_tables.Goal("time", 20.1, 20.0).met
    assert not kernel_tables.Goal("gain", 1.79, 1.8, at_most=False).met


def test_the_page_shows_the_figures() -> None:
    for name, table in kernel_tables.tables(_RESULTS).items():
        place = re.search(rf"<!-- table {name} -->\n(.*?)<!-- end -->", _PAGE, re.DOTALL)
        assert place is not None, name
        assert place[1] == table.as_markdown(), "renew it: python -m benchmarks.modelled.kernel_page --write"


def test_figures_in_the_text() -> None:
    paper, kept = _RESULTS["paper"], _RESULTS["paper"]["kept"]
    ledger = list(paper["cold_ledger"].values())
    performance = (_ROOT / "docs" / "performance.md").read_text()
    assert f"{ledger[1]:.1f} of its {kept['cold']:.1f} µs cold" in performance
    assert ledger[2] == 0, "it never waits"
    assert f"it idles, {kept['cold'] - ledger[1]:.1f} µs in all" in _PAGE
    by_dma = next(row for row in _RESULTS["modes"] if "by DMA" in row["name"])["kept"]["cold"]
    later = by_dma - kept["cold"]
    assert f"begins {later:.1f} µs later and [takes {by_dma:.1f} µs](#by-mode)" in _PAGE
    assert (
        f"after {ledger[0] + later:.2f} µs instead of 0.41. As it\n  reads them now, it begins after {ledger[0]:.2f}"
        in _PAGE
    )
    cost = _RESULTS["constants"]["expected"]
    latency = cost["scalar_gm_miss"] + cost["read_latency_cold"] + cost["write_latency"]
    assert 0.62 <= latency / (1e3 * cost["gigahertz"]) / (kept["cold"] - ledger[1]) <= 0.71, "two thirds are latency"
    assert 0.88 <= kept["cold_bound"] / kept["cold"] <= 0.93, "nine tenths"
    assert 1.22 <= kept["hot_conflicts"] / kept["hot"] <= 1.28, "a quarter"
    assert 1.0 <= paper["dense"]["cold"] / 35.3 <= 1.05, "a little slower cold"
    assert 1.0 <= paper["dense"]["hot"] / 16.2 <= 1.05, "and hot"
    lengths = _RESULTS["ragged"]["lengths"]
    assert f"{len(lengths)} sequences of {min(lengths):,} to {max(lengths):,} keys" in _PAGE
    grouped = [*_RESULTS["grouped"], _RESULTS["ragged"]]
    fours = [row for row in grouped if row["group"] == 4 and row.get("n", 32768) == 32768]
    assert all(row["kept"]["cold_busy"]["cube MTE2"] > 0.8 for row in fours), "the cube copies set the pace"
    assert all(row["kept"]["cold"] < row["dense"]["cold_bound"] for row in fours), "in less time than dense traffic"
    eights = {row["overlap"]: row for row in grouped if row["group"] == 8}
    for row in eights.values():
        for pipe in ("V", "cube MTE2"):
            assert 0.67 <= row["kept"]["cold_busy"][pipe] <= 0.84, "seven to eight tenths of the time"
        assert row["kept"]["cold"] < 0.95 * row["dense"]["cold_bound"], "in less time than dense traffic"
        assert 2.45 <= row["dense"]["cold"] / row["dense"]["cold_bound"] <= 2.55, "2.5 times as long as the traffic"
    cube = [row for row in grouped if row["group"] > 2]
    assert all(row["kept"]["cold"] < 0.8 * row["vector"]["cold"] for row in cube), "faster than without the cube"
    pair = next(row for row in grouped if row["group"] == 2)
    assert pair["kept"]["cold"] < 0.7 * pair["dense"]["cold_bound"], "two heads still go with the memory"
    assert all(row["hot_32"] > 0.94 * row["hot_48"] for row in _RESULTS["uneven_heads"]), "hot, nothing is gained"
    assert all(row["kept"]["cold"] <= row["dense"]["cold"] for row in _RESULTS["densities"]), "never slower"


def test_the_launch_in_the_text() -> None:
    paper = _RESULTS["paper"]
    for mode in ("cold", "hot"):
        gains = {column: _gain_with_launch(paper, column, mode) for column in COLUMNS}
        least, most = gains["pessimistic"], gains["optimistic"]
        assert 1.17 < least < gains["expected"] < most
        band = f"({least:.2f} to {most:.2f}"
        assert f"{gains['expected']:.2f} {mode} {band}" in _PAGE
        kept, dense = (paper[form]["columns"]["expected"][mode] for form in ("kept", "dense"))
        assert f"{(dense - 1.17 * kept) / 0.17:.0f} µs {mode}" in _PAGE
        plain = dense / kept
        assert (plain - gains["expected"]) / (plain - 1.17) > 0.47, "half of the way or more"
    assert f"no document names more than {_RESULTS['constants']['pessimistic']['launch_microseconds']:g}" in " ".join(
        _PAGE.split()
    )


def _gain_with_launch(paper: dict[str, Any], column: str, mode: str) -> float:
    kept, dense = (
        paper[form]["columns"][column][mode] + paper[form]["columns"][column]["launch"] for form in ("kept", "dense")
    )
    return float(dense / kept)


def test_the_readme_has_the_same_figures() -> None:
    text = (_ROOT / "README.md").read_text()
    item = next(part for part in text.split("\n* ") if part.startswith("**Ascend C kernel, modelled**"))
    paper = _RESULTS["paper"]
    groups = [
        next(row for row in _RESULTS["grouped"] if (row["n"], row["group"], row["overlap"]) == (32768, *group))
        for group in ((4, 0.0), (8, 0.0), (8, 0.9))
    ]
    launched = [_gain_with_launch(paper, column, "cold") for column in ("expected", "pessimistic", "optimistic")]
    figures = [
        paper["dense"]["cold"] / paper["kept"]["cold"], 2 / (1 + 128 / 2048), *launched,
        *(group["dense"]["cold_bound"] / group["kept"]["cold"] for group in groups),
    ]  # fmt: skip
    assert re.findall(r"\d+\.\d+", item) == [f"{figure:.2f}" for figure in figures]


def test_the_reproduction_page_has_the_same_figures() -> None:
    text = (_ROOT / "docs" / "reproduction.md").read_text().split("## The kernel")[1]
    paper = _RESULTS["paper"]
    launched = [_gain_with_launch(paper, column, "cold") for column in ("expected", "pessimistic", "optimistic")]
    figures = [paper["dense"]["cold"] / paper["kept"]["cold"], *launched, _gain_with_launch(paper, "expected", "hot")]
    assert re.findall(r"\b1\.\d\d", text.replace("1.17", "")) == [f"{figure:.2f}" for figure in figures]


def test_layouts_on_the_page() -> None:
    rows = re.findall(
        r"^\| (b?float16)(, post-softmax)?(, with the cube)? \| (\d+) \| (\d+) \| (.*) \|$", _PAGE, re.MULTILINE
    )
    assert len(rows) == 7
    for dtype, post, cube, head_dim, heads, shown in rows:
        layout = layout_of(Variant(int(head_dim), int(heads), dtype == "bfloat16", bool(post), bool(cube)))
        counts = layout.counts
        assert shown == (
            f"{counts['slots']} \u00d7 {counts['tileRows']} rows | {counts['chunkRows']} | "
            f"{counts['valueListRows']} rows | {layout.total:,}"
        )


@pytest.mark.parametrize("header", _LIMITS)
def test_limits_on_the_page(header: str) -> None:
    folder = "op_host" if header in ("geometry.h", "tiling_math.h") else "op_kernel"
    source = (_ROOT / folder / header).read_text()
    found = {name: re.search(rf"{name} = (\d+);", source) for name in _LIMITS[header]}
    assert {name: int(match[1]) for name, match in found.items() if match} == _LIMITS[header]
    for value in _LIMITS[header].values():
        assert f"{value:,}" in _PAGE or str(value) in _PAGE or value == 2, value


def test_files_on_the_page_exist() -> None:
    named = re.findall(r"`(\w+\.(?:h|cpp))`", _PAGE)
    assert named
    assert not [name for name in named if not (_ROOT / "op_kernel" / name).exists()]
    sources = {path.name for path in (_ROOT / "op_kernel").iterdir()}
    assert sources - set(named) <= {"top_theta_incremental_attention_tiling_data.h"}


def test_flags_on_the_page() -> None:
    sources = "".join(path.read_text() for path in (_ROOT / "op_kernel").glob("*.h"))
    table = "".join(part.split("\n\n")[0] for part in _PAGE.split("| flag | says |")[1:])
    named = set(re.findall(r"(?<![A-Z0-9])[A-Z]+\d?_[A-Z]+\d?(?![A-Z0-9])", table))
    assert named == set(re.findall(r"Flag<HardEvent::(\w+)>", sources))
