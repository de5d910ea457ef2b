"""The timeline against times worked out by hand, and its reports; random programs are in test_machine_model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.ascendc import (
    COLUMNS,
    Argument,
    Kernel,
    KernelRun,
    LaunchError,
    Mode,
    Timeline,
    cost_constants,
    run_kernel,
)

SOURCE = Path(__file__).parent / "kernels" / "machine_timeline.cpp"
# round numbers; one cycle is one nanosecond. A tile of 256 bytes: 20 cycles of DMA, 21 of a vector instruction.
ROUND = {
    "gigahertz": 1.0,
    "vector_head": 20.0,
    "cube_head": 20.0,
    "scalar_issue": 1.0,
    "scalar_ub": 10.0,
    "scalar_gm_hit": 10.0,
    "scalar_gm_miss": 300.0,
    "dma_command": 20.0,
    "read_latency_cold": 100.0,
    "read_latency_hot": 40.0,
    "write_latency": 50.0,
    "rate_cold": 16.0,
    "rate_hot": 64.0,
    "cube_rate_cold": 32.0,
    "cube_rate_hot": 128.0,
    "cube_write_rate_hot": 40.0,
    "shared_cold": 1e9,
    "shared_hot": 1e9,
    "sync_all_microseconds": 0.5,
    "cross_core_flag": 30.0,
    "launch_microseconds": 7.0,
    "launch_mixed_microseconds": 9.0,
    "scattered_row_bytes": 64.0,
    "same_address_read": 0.0,
}


def run(entry: str, **options: Any) -> KernelRun:
    x, y = np.arange(1 << 14, dtype=np.uint8), np.zeros(1 << 14, np.uint8)
    return run_kernel(Kernel(SOURCE, entry=entry), [("x", x, "in"), ("y", y, "out")], **options)


def timeline(entry: str, mode: Mode = "cold", *, blocks: int = 1, cores: int = 48, **cost: float) -> Timeline:
    result = run(entry, blocks=blocks, cores=cores)
    return result.require_clean().timeline(mode, **{**ROUND, **cost})


def test_a_vector_instruction_waits_for_the_copy_and_its_latency() -> None:
    # issue 1, copy 1..21, done 121, vector 121..142; hot: done 61
    assert timeline("copy_then_vector").cycles == pytest.approx(142)
    assert timeline("copy_then_vector", "hot").cycles == pytest.approx(82)
    assert timeline("copy_then_vector").microseconds == pytest.approx(0.142)


def test_double_buffering_hides_all_but_the_last_tile() -> None:
    # a tile of 4096 bytes: 256 cycles of DMA, 100 of latency, 36 of vector work
    assert timeline("double_buffer").cycles == pytest.approx(1 + 4 * 256 + 100 + 36)


def test_two_cores_share_the_memory_equally() -> None:
    assert timeline("equal_copies", blocks=2).cycles == pytest.approx(1 + 100 + 100)
    assert timeline("equal_copies", blocks=2, shared_cold=16).cycles == pytest.approx(1 + 200 + 100)
    assert timeline("equal_copies", "hot", blocks=2, shared_hot=64).cycles == pytest.approx(1 + 50 + 40)


def test_the_longer_copy_gets_the_whole_rate_when_the_other_has_ended() -> None:
    # 8 bytes per cycle each for 100 cycles, then 800 bytes at 16
    result = timeline("unequal_copies", blocks=2, shared_cold=16)
    assert ends(result) == pytest.approx([1 + 150 + 100, 1 + 100 + 100])


def test_sync_all_waits_for_the_slowest_core_and_costs_its_parameter() -> None:
    # the slower core has filled at 64 and issues SyncAll until 65; 500 cycles later both go on
    result = timeline("sync_all", blocks=2)
    assert ends(result) == pytest.approx([65 + 500 + 1 + 21] * 2)
    assert timeline("sync_all", blocks=2, sync_all_microseconds=0).cycles == pytest.approx(65 + 22)


def test_more_blocks_than_cores_run_in_waves() -> None:
    result = timeline("one_fill", blocks=5, cores=2)
    assert [(block.core, block.begin_us * 1e3) for block in result.core_times] == [
        (0, 0),
        (1, 0),
        (0, 22),
        (1, 22),
        (0, 44),
    ]
    assert (result.cycles, result.cores) == (66, 2)
    assert result.busy_cycles("V", core=0) == pytest.approx(3 * 21)
    assert result.busy_share("V", core=1) == pytest.approx(2 * 21 / 66)


def ends(result: Timeline) -> list[float]:
    return [times.end_us * 1e3 for times in result.core_times]


def test_vector_cores_wait_for_what_the_cube_core_writes() -> None:
    # multiply 1..22, copy 22..42, done and flag 92; seen 122, copy 123..143, done 243
    result = timeline("cube_to_vectors")
    assert ends(result) == pytest.approx([92, 243, 243])
    assert [times.kind for times in result.core_times] == ["cube", "vector", "vector"]
    assert ends(timeline("cube_to_vectors", cross_core_flag=0)) == pytest.approx([92, 213, 213])


def test_the_cube_core_waits_for_the_slower_of_its_vector_cores() -> None:
    # three fills until 64; seen 94, multiply 95..116
    assert ends(timeline("vectors_to_cube")) == pytest.approx([116, 22, 64])


def test_a_cube_core_reads_at_its_own_rate() -> None:
    assert ends(timeline("cube_and_vector_copies"))[:2] == pytest.approx([1 + 50 + 100, 1 + 100 + 100])
    assert ends(timeline("cube_and_vector_copies", "hot"))[:2] == pytest.approx([1 + 20 + 40, 1 + 25 + 40])


def test_cores_share_the_memory_in_proportion_to_their_rates() -> None:
    # 16 and 8 bytes per cycle for 100 cycles, then the vector core reads its other half at 16
    result = timeline("cube_and_vector_copies", shared_cold=24)
    assert ends(result)[:2] == pytest.approx([1 + 100 + 100, 1 + 150 + 100])


def test_mixed_blocks_take_a_cube_core_and_two_vector_cores_each() -> None:
    result = timeline("one_fill_in_each_core", blocks=3, cores=4)
    begins = [(times.block, times.core, times.begin_us * 1e3) for times in result.core_times if times.kind == "cube"]
    assert begins == [(0, 0, 0), (1, 3, 0), (2, 0, 22)]
    assert (result.cycles, result.cores) == (44, 6)
    assert result.busy_cycles("M", kind="cube") == pytest.approx(3 * 21 / 2)
    assert result.busy_cycles("V") == pytest.approx(6 * 21 / 4)


def test_a_copy_takes_at_least_what_its_command_says() -> None:
    assert timeline("slow_copy").cycles == pytest.approx(1 + 77 + 100)


def test_the_scalar_unit_waits_and_pays_for_its_accesses() -> None:
    # the fill ends at 22, two accesses of 10 each, the next fill is issued after them
    result = timeline("scalar_waits")
    assert result.cycles == pytest.approx(22 + 20 + 1 + 21)
    assert result.busy_cycles("S") == pytest.approx(4 + 20)


def test_a_cached_line_of_global_memory_costs_less() -> None:
    assert timeline("scalar_gm").cycles == pytest.approx(300 + 10 + 300)


def test_bank_conflicts_are_in_the_pessimistic_time_only() -> None:
    result = run("bank_conflicts")
    assert result.timeline(**ROUND).cycles == pytest.approx(1 + 20 + 20)
    assert result.timeline(bank_conflicts=True, **ROUND).cycles == pytest.approx(1 + 20 + 20 + 7)


def workspace_run() -> KernelRun:
    x, y = np.arange(1 << 14, dtype=np.uint8), np.zeros(1 << 14, np.uint8)
    arguments: list[Argument] = [("x", x, "in"), ("y", y, "out"), ("workspace", 1 << 14, "workspace")]
    return run_kernel(Kernel(SOURCE, entry="workspace_and_back"), arguments).require_clean()


def test_the_workspace_stays_in_the_l2() -> None:
    # fill 1..27.25, copy out at 64 bytes per cycle until 52.25, done 102.25, copy in until 127.25, done 167.25
    result = workspace_run()
    assert result.timeline(**ROUND).cycles == pytest.approx(167.25)
    assert result.timeline("hot", **ROUND).cycles == pytest.approx(167.25)


def test_the_workspace_is_in_hbm_where_the_constants_say_so_or_the_l2_is_too_small() -> None:
    # at 16 bytes per cycle: copy out until 127.25, done 177.25, copy in until 277.25, done 377.25
    result = workspace_run()
    assert result.timeline(**{**ROUND, "workspace_in_l2": 0}).cycles == pytest.approx(377.25)
    assert result.timeline(**{**ROUND, "l2_bytes": (1 << 14) - 1}).cycles == pytest.approx(377.25)
    assert result.timeline(**{**ROUND, "l2_bytes": 1 << 14}).cycles == pytest.approx(167.25)


def test_the_workspace_gets_what_a_stream_from_hbm_leaves_of_the_l2() -> None:
    # 48 - 16 bytes per cycle instead of 64: both copies take 50
    assert workspace_run().timeline(**{**ROUND, "shared_hot": 48, "shared_cold": 16}).cycles == pytest.approx(217.25)


def test_a_cube_core_writes_to_the_l2_at_a_rate_of_its_own() -> None:
    # multiply 1..27.25, then 1600 bytes at 40, done 50 later; to HBM at 32
    assert timeline("cube_copy_out", "hot").cycles == pytest.approx(27.25 + 40 + 50)
    assert timeline("cube_copy_out").cycles == pytest.approx(27.25 + 50 + 50)


def test_a_copy_past_the_l2_comes_from_hbm_even_if_the_rest_is_hot() -> None:
    assert timeline("copy_past_the_l2", "hot").cycles == pytest.approx(1 + 100 + 100)
    assert timeline("equal_copies", "hot").cycles == pytest.approx(1 + 25 + 40)


def test_rows_apart_cost_more_than_their_bytes_and_at_most_whole_lines() -> None:
    # 512 bytes at 16 per cycle, and 64, 0, 256 bytes for each of two rows; in the L2 nothing
    assert timeline("two_rows").cycles == pytest.approx(1 + (512 + 128) / 16 + 100)
    assert timeline("two_rows", scattered_row_bytes=0).cycles == pytest.approx(1 + 512 / 16 + 100)
    assert timeline("two_rows", scattered_row_bytes=1000).cycles == pytest.approx(1 + 1024 / 16 + 100)
    assert timeline("two_rows", "hot", scattered_row_bytes=1000).cycles == pytest.approx(1 + 20 + 40)


def test_cores_that_read_the_same_line_are_served_one_by_one() -> None:
    assert ends(timeline("equal_copies", blocks=3, same_address_read=30)) == pytest.approx([201, 231, 261])
    assert ends(timeline("copies_of_own_lines", blocks=3, same_address_read=30)) == pytest.approx([121] * 3)
    # two of three scalar accesses miss
    assert ends(timeline("scalar_gm", blocks=2, same_address_read=30)) == pytest.approx([610, 610 + 2 * 30])


def test_a_launch_takes_longer_with_cube_cores_and_is_no_part_of_the_time() -> None:
    result = timeline("one_fill")
    assert (result.launch_microseconds, result.with_launch) == (7, pytest.approx(7.022))
    assert timeline("sync_all", blocks=2).launch_microseconds == 7, "MIX_AIV_1_0 starts vector cores alone"
    assert timeline("one_fill_in_each_core").launch_microseconds == 9
    assert run("one_fill").timeline().launch_microseconds == 12
    assert run("one_fill_in_each_core").timeline().launch_microseconds == 15


@pytest.mark.parametrize("entry", ["equal_copies", "sync_all", "cube_to_vectors", "bank_conflicts"])
@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_the_columns_are_ordered(entry: str, mode: Mode) -> None:
    result = run(entry, blocks=2)
    times = [result.timeline(mode, column=column) for column in COLUMNS]
    assert times[0].microseconds <= times[1].microseconds <= times[2].microseconds
    assert times[0].launch_microseconds < times[1].launch_microseconds < times[2].launch_microseconds
    assert times[0].with_launch < times[1].with_launch < times[2].with_launch
    assert [time.column for time in times] == list(COLUMNS)


def test_the_expected_column_is_the_default_and_constants_go_on_top_of_a_column() -> None:
    result = run("equal_copies")
    assert result.timeline() == result.timeline(column="expected")
    assert result.timeline(column="optimistic").cycles == pytest.approx(4 + 1600 / 16.8 + 347)
    assert result.timeline(column="optimistic", read_latency_cold=500).cycles == pytest.approx(4 + 1600 / 16.8 + 500)


def test_the_pessimistic_column_has_bank_conflicts_unless_told_otherwise() -> None:
    result = run("bank_conflicts")
    plain, all_of_it = (result.timeline(column="pessimistic", bank_conflicts=is_on) for is_on in (False, None))
    assert (plain.bank_conflicts, all_of_it.bank_conflicts) == (False, True)
    assert all_of_it.cycles - plain.cycles == pytest.approx(7)


def test_the_documented_constants_are_the_default() -> None:
    # 22 + 1 cycles at 1.85 GHz, issued in 4
    assert run("one_fill").timeline().microseconds == pytest.approx((4 + 23) / 1850)
    # 1600 bytes at 16.8 (58.5) bytes per cycle, latency 900 (400)
    assert run("equal_copies").timeline().cycles == pytest.approx(4 + 1600 / 16.8 + 900)
    assert run("equal_copies").timeline("hot").cycles == pytest.approx(4 + 1600 / 58.5 + 400)


def test_the_shared_rate_binds_when_reads_and_writes_exceed_it() -> None:
    result = run("equal_copies", blocks=48)
    free = result.timeline(same_address_read=0)
    assert free.cycles == pytest.approx(4 + 1600 / 16.8 + 900)
    half = result.timeline(shared_cold=24 * 16.8, same_address_read=0)
    assert half.cycles == pytest.approx(4 + 3200 / 16.8 + 900)


def test_every_report_says_that_the_times_are_modelled(tmp_path: Path) -> None:
    result = run("double_buffer")
    result.write_trace(tmp_path / "trace.json")
    trace = (tmp_path / "trace.json").read_text()
    for text in (result.summary(), result.timeline().summary(), result.timeline("hot").summary(), trace):
        assert "modelled, uncalibrated" in text


def test_the_summary_has_a_bar_for_each_pipe() -> None:
    lines = run("double_buffer").timeline(**ROUND).summary().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["S", "V", "MTE2", "MTE3"]
    share = 4 * 256 / 1161
    assert lines[3].count("#") == round(40 * share)
    assert f"{share:.1%}" in lines[3]


def test_the_trace_has_a_thread_per_pipe_and_an_event_per_instruction(tmp_path: Path) -> None:
    run("double_buffer", blocks=2).write_trace(tmp_path / "trace.json", **ROUND)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
    assert names == {(core, pipe) for core in (0, 1) for pipe in ("S", "V", "MTE2", "MTE3")}
    copies = [event for event in events if event["name"] == "CopyIn" and event["pid"] == 0]
    assert [(event["ts"], event["dur"]) for event in copies] == [
        (pytest.approx((1 + 256 * i) / 1e3), pytest.approx(0.256)) for i in range(4)
    ]
    assert {(event["args"]["buffer"], event["args"]["bytes"]) for event in copies} == {("x", 4096)}
    assert len([event for event in events if event["name"] == "Increment"]) == 8


def test_what_has_no_timeline_says_why() -> None:
    with pytest.raises(LaunchError, match="trace off"):
        run("one_fill", trace=False).timeline()
    with pytest.raises(LaunchError, match="did not reach its end"):
        run("faulty").timeline()
    with pytest.raises(LaunchError, match="cold or hot"):
        run("one_fill").timeline("warm")  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="column: expected one of optimistic, expected, pessimistic, got 'kind'"):
        run("one_fill").timeline(column="kind")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="vector_tail: no such constant"):
        run("one_fill").timeline(vector_tail=1.0)
    with pytest.raises(LaunchError, match="cannot write the trace"):
        run("one_fill").write_trace("/nowhere/trace.json")


def test_constants_out_of_range_are_named() -> None:
    with pytest.raises(LaunchError, match="rate_cold: expected a positive number, got 0"):
        run("one_fill").timeline(rate_cold=0)
    with pytest.raises(LaunchError, match="scattered_row_bytes: expected at least 0, got -1"):
        run("one_fill").timeline(scattered_row_bytes=-1)
    with pytest.raises(LaunchError, match="queue_depth: expected at least 1"):
        run("one_fill").timeline(queue_depth=0)


def test_python_knows_the_constants_of_the_header() -> None:
    header = (Path(__file__).parents[1] / "ascendc/machine/cost.h").read_text()
    names = [re.sub("([A-Z])", r"_\1", name).lower() for name in re.findall(r"^    double (\w+) = ", header, re.M)]
    assert tuple(names) == cost_constants()
