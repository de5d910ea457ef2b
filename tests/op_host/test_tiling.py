"""The tiling function over random shapes: struct, key, launch, workspace; tests/ut/op_host has calls one by one."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from emulator.cann import Platform, TensorSpec, TilingResult, build_library
from tests.cases import PER_HEAD
from tests.op_host.operator_calls import Call, Shape, per_head, value_mean
from toptheta_host_model import OPERATOR, tiling_fields

_ROOT = Path(__file__).resolve().parents[2]
_SYSTEM = 16 * 1024 * 1024
_WHOLE, _SPLIT, _CUBE = 1, 2, 3
_POST_SOFTMAX = 10  # added to the form's key
_MAX_SCORES = 256 * 1024 * 1024
#: Of a call without int8 caches.
_NO_SCALES = {"outer": 0, "head": 0, "perToken": 0, "unused": 0}


@cache
def _library() -> ctypes.CDLL:
    source = Path(__file__).resolve().parent / "probes" / "tiling_math.cpp"
    return ctypes.CDLL(str(build_library("tiling_math", [source], [_ROOT / "op_host", _ROOT / "op_kernel"])))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    paged = draw(st.sampled_from(("", "", "4d", "3d")))
    return Shape(
        layout=draw(st.sampled_from(("BNSD", "BSND", "BSH"))),
        batch=draw(st.integers(1, 50)),
        kv_heads=draw(st.sampled_from((1, 2, 3, 4, 8, 48))),
        group=draw(st.sampled_from((1, 2, 4, 5, 7, 8, 9, 16, 80))),
        head_dim=draw(st.integers(1, 32)) * 16,
        rows=draw(st.integers(1, 512) if paged else st.one_of(st.integers(1, 5000), st.just(262144))),
        dtype=draw(st.sampled_from(("float16", "bfloat16"))),
        paged=paged,
        block_size=draw(st.integers(1, 32)) * 16 if paged else 0,
    )


@st.composite
def calls(draw: st.DrawFn) -> tuple[Shape, Call]:
    """A valid call with any mode, and its sizes."""
    shape = draw(shapes())
    integers = draw(st.sampled_from(("int32", "int64")))
    lengths = draw(st.sampled_from((None, integers)))
    starts = None if shape.paged else draw(st.sampled_from((None, None, integers)))
    placement = draw(st.sampled_from(("pre_softmax", "post_softmax")))
    kind = draw(st.sampled_from(("plain", "stats", "part")))
    call = shape.call(lengths=lengths, starts=starts, placement=placement, with_stats=kind == "stats",
                      partial=kind == "part")  # fmt: skip
    if kind == "part" and placement == "post_softmax":
        call = call.with_inputs(row_lse=per_head(shape))
    if draw(st.booleans()):
        call = call.with_inputs(threshold=TensorSpec((shape.heads,), "float32"))
    if kind != "part":
        call = _with_compensation(draw, shape, call, placement)
    cores = draw(st.sampled_from((1, 20, 24, 40, 48, 64, 70)))
    cube_cores = draw(st.sampled_from((cores // 2, cores // 2, 0, cores)))
    l2_bytes = draw(st.sampled_from((0, 1 << 20, 192 << 20)))
    return shape, replace(call, platform=Platform(vector_cores=cores, cube_cores=cube_cores, l2_bytes=l2_bytes))


def _with_compensation(draw: st.DrawFn, shape: Shape, call: Call, placement: str) -> Call:
    modes = ("exact",) if placement == "post_softmax" else ("none", "exact", "exp_threshold", "offline")
    sdc = draw(st.sampled_from(modes))
    call = call.with_attrs(sdc=sdc)
    if sdc == "offline":
        call = call.with_inputs(discarded_mass=per_head(shape))
    for name in PER_HEAD:
        if draw(st.booleans()):
            call = call.with_inputs(**{name: TensorSpec((shape.heads,), "float32")})
    if sdc != "none" and draw(st.booleans()):
        call = call.with_inputs(value_mean=value_mean(shape))
    return call


def head_blocks_of(shape: Shape) -> tuple[int, int]:
    """Query heads handled together, and how many such blocks a group has."""
    most = 8 if shape.head_dim <= 256 else 4
    block = min(shape.group, most)
    return block, -(-shape.group // block)


def score_bytes_of(shape: Shape, call: Call) -> int:
    """What post-softmax has to keep in the workspace."""
    if call.attrs["placement"] == "pre_softmax" or "row_lse" in call.inputs:
        return 0
    in_ub = _library().ScoreRowsOf(shape.group, shape.head_dim, shape.dtype == "bfloat16")
    if units_stay_whole(shape, call) and shape.capacity + 64 <= in_ub:
        return 0
    return shape.batch * shape.heads * shape.capacity * 4


def units_stay_whole(shape: Shape, call: Call) -> bool:
    """The rule in the words of the documentation."""
    cores = min(call.platform.vector_cores, 64)
    _, blocks = head_blocks_of(shape)
    units = shape.batch * shape.kv_heads * blocks
    # a core works on two granules of 128 rows or more, so few short units keep fewer cores busy
    even = units % min(cores, max(units * -(-shape.capacity // 128) // 2, 1)) == 0
    same_rows = "actual_seq_lengths" not in call.inputs and "key_start" not in call.inputs
    return even and same_rows and not (call.attrs["with_stats"] and blocks > 1)


def cores_with_work(shape: Shape, call: Call) -> int:
    """Vector cores of the launch: as many as get two granules of 128 rows when every sequence fills the cache."""
    granules = shape.batch * shape.kv_heads * head_blocks_of(shape)[1] * -(-shape.capacity // 128)
    active = min(call.platform.vector_cores, 64, max(granules // 2, 1))
    return active + active % 2 if uses_cube(shape, call) else active


def integer_bytes(tensor: TensorSpec | None) -> int:
    return 0 if tensor is None else 8 if tensor.dtype == "int64" else 4


def goes_past_l2(shape: Shape, call: Call) -> bool:
    """K and V together are 1.2 times the L2 or more, and one head block alone reads them."""
    rows = shape.batch * shape.capacity
    rows = min(rows, shape.blocks * shape.block_size) if shape.paged else rows
    cache = 2 * 2 * rows * shape.kv_heads * shape.head_dim
    return call.platform.l2_bytes > 0 and head_blocks_of(shape)[1] == 1 and 10 * cache >= 12 * call.platform.l2_bytes


def uses_cube(shape: Shape, call: Call) -> bool:
    """Three or more heads for each K row, two in bfloat16, and a cube core for every two vector cores."""
    enough = head_blocks_of(shape)[0] >= (2 if shape.dtype == "bfloat16" else 3)
    return enough and min(call.platform.vector_cores, 64) == 2 * call.platform.cube_cores


def key_of(shape: Shape, call: Call) -> int:
    form = _CUBE if uses_cube(shape, call) else _WHOLE if units_stay_whole(shape, call) else _SPLIT
    return form + (_POST_SOFTMAX if call.attrs["placement"] == "post_softmax" else 0)


def fits(shape: Shape, call: Call) -> bool:
    return score_bytes_of(shape, call) <= _MAX_SCORES


@given(calls())
def test_struct_holds_the_call(drawn: tuple[Shape, Call]) -> None:
    shape, call = drawn
    assume(fits(shape, call))
    fields, attrs, inputs = call.fields(), call.attrs, call.inputs
    block, blocks = head_blocks_of(shape)
    strides = dict(zip(("outer", "head", "row"), shape.strides, strict=True))
    threshold = inputs["threshold"]
    assert threshold is not None
    expected: dict[str, Any] = {
        "key": strides, "value": strides, "batch": shape.batch, "numHeads": shape.heads,
        "numKeyValueHeads": shape.kv_heads, "headDim": shape.head_dim, "capacity": shape.capacity,
        "blockSize": shape.block_size, "blockTableWidth": shape.rows if shape.paged else 0,
        "blocks": shape.blocks if shape.paged else 0,
        "integerBytes": integer_bytes(inputs.get("actual_seq_lengths") or inputs.get("key_start")),
        "pastL2": goes_past_l2(shape, call), "queryTokens": 0, "tokensFirst": 0,
        "thresholdAxes": len(threshold.shape), "headBlock": block, "headBlocks": blocks,
        "cores": cores_with_work(shape, call), "placement": attrs["placement"] == "post_softmax",
        "sdc": ("none", "exact", "exp_threshold", "offline").index(attrs.get("sdc", "exact")), "path": 0,
        "givenInputs": sum(1 << index for index, item in enumerate(OPERATOR.describe()["inputs"])
                           if inputs.get(item["name"]) is not None),
        "withStats": attrs["with_stats"], "partial": attrs["partial"], "scaleValue": 0.125,
        "sdcGamma": ctypes.c_float(0.05).value, "keyScales": _NO_SCALES, "valueScales": _NO_SCALES,
    }  # fmt: skip
    chosen = ("ringOffset", "valueRowsOffset", "scoresOffset", "slots", "chunkRows")
    assert {name: value for name, value in fields.items() if name not in chosen} == expected
    two_phases = attrs["placement"] == "post_softmax" and "row_lse" not in inputs
    layout = (ctypes.c_uint32 * 2)()
    cube = uses_cube(shape, call)
    _library().ChoiceOf(shape.head_dim, block, shape.dtype == "bfloat16", two_phases, cube, layout)
    assert (fields["slots"], fields["chunkRows"]) == tuple(layout)


@given(calls())
def test_key_and_launch(drawn: tuple[Shape, Call]) -> None:
    shape, call = drawn
    assume(fits(shape, call))
    result = call.run()
    assert result.key == key_of(shape, call)
    cores = cores_with_work(shape, call)
    assert result.block_dim == (cores // 2 if uses_cube(shape, call) else cores)
    assert result.schedule_mode == (0 if units_stay_whole(shape, call) else 1)


def split_of(shape: Shape, rows: int, cores: int) -> tuple[bool, list[int], list[int], int]:
    """The kernel's own split: whether cores meet, segments that are all of a unit or a part of it, cores at work."""
    blocks = head_blocks_of(shape)[1]
    units = shape.batch * blocks
    whole, parts, at_work = (ctypes.c_uint32 * units)(), (ctypes.c_uint32 * units)(), ctypes.c_uint32()
    meet = _library().SegmentsOfUnits(shape.batch, 1, blocks, rows, cores, whole, parts, ctypes.byref(at_work))
    return bool(meet), list(whole), list(parts), at_work.value


def assert_kernel_and_host_agree(shape: Shape, result: TilingResult, cores: int) -> None:
    """Key and launch are what the split over `cores` vector cores asks for, where no lengths are given."""
    meet, whole, parts, at_work = split_of(shape, shape.rows, cores)
    assert result.block_dim == at_work, "a core without work, or work without a core"
    assert result.key == (_SPLIT if meet else _WHOLE)
    # a unit is written by one core, or by the cores that meet after they have worked on its parts
    assert all((one, several > 1) in ((1, False), (0, True)) for one, several in zip(whole, parts, strict=True))
    assert meet or not any(parts)


@pytest.mark.parametrize("cores", range(1, 65))
def test_key_and_launch_for_every_number_of_cores(cores: int) -> None:
    """Few short units are where the cores with work are fewer, and odd numbers do not divide."""
    for units in sorted({1, 2, 3, max(cores // 2, 1), cores, 2 * cores}):
        for rows in (1, 128, 129, 256, 300, 1000):
            for group in (1, 9):  # heads of one block, and of two
                shape = Shape(batch=units, kv_heads=1, group=group, rows=rows)
                result = replace(shape.call(), platform=Platform(vector_cores=cores, cube_cores=0)).run()
                assert_kernel_and_host_agree(shape, result, cores)


def test_cores_left_out_had_no_work_at_any_length() -> None:
    """The host counts the rows of the cache, while sequences may be shorter; the kernel knows the launch alone."""
    shape = Shape(batch=3, kv_heads=1, rows=700)
    call = replace(shape.call(lengths="int32"), platform=Platform(cube_cores=0))
    assert call.fields()["cores"] == 9  # 18 granules of 128 rows
    for rows in range(1, 701, 50):
        assert split_of(shape, rows, 9) == split_of(shape, rows, 48)


@given(calls())
def test_workspace_holds_what_the_kernel_exchanges(drawn: tuple[Shape, Call]) -> None:
    """Sections one after another, 512-byte aligned, and each as large as its use."""
    shape, call = drawn
    assume(fits(shape, call))
    result = call.run()
    fields = tiling_fields(result.tiling)
    block, blocks = head_blocks_of(shape)
    split = not units_stay_whole(shape, call)
    units = shape.batch * shape.kv_heads * blocks
    # two slots for each core, and two more in post-softmax, whose cores meet once to find the log-sum-exp
    meets_twice = call.attrs["placement"] == "post_softmax" and "row_lse" not in call.inputs
    slots = (4 if meets_twice else 2) * fields["cores"]
    parts = slots * block * (4 * 32 + 4 * shape.head_dim) if split else 0
    round_rows = min(256, 65536 // 4 // shape.head_dim // 16 * 32)
    ring = 4 * block * round_rows * 4 * fields["cores"]  # four rounds of float32 scores for each vector core
    sections = [
        (0, parts),
        (fields["ringOffset"], ring if uses_cube(shape, call) else 0),
        (fields["valueRowsOffset"], units * 32 if call.attrs["with_stats"] and blocks > 1 else 0),
        (fields["scoresOffset"], score_bytes_of(shape, call)),
    ]
    end = 0
    for offset, size in sections:
        assert offset % 512 == 0
        assert offset == end
        end = offset + -(-size // 512) * 512
    assert result.workspace == _SYSTEM + end
    assert not split or end > 0, "a launch that synchronises needs a workspace"


@given(shapes(), st.booleans(), st.sampled_from(("pre_softmax", "post_softmax")))
def test_workspace_depends_on_shapes_alone(shape: Shape, stats: bool, placement: str) -> None:
    """Tiling never sees a length; not even the integer type that lengths come in changes the workspace."""
    short, long = (
        shape.call(lengths=integers, with_stats=stats, partial=False, placement=placement)
        for integers in ("int32", "int64")
    )
    assume(fits(shape, short))
    results = [short.run(), short.run(), long.run()]
    assert len({(result.workspace, result.key, result.block_dim) for result in results}) == 1
    fields = [tiling_fields(result.tiling) for result in results]
    assert fields[0] == fields[1] == fields[2] | {"integerBytes": 4}


@given(shapes(), st.integers(1, 4), st.integers(1, 4))
def test_given_strides_reach_the_kernel_where_there_is_something_to_step_along(
    shape: Shape, wider: int, extra: int
) -> None:
    outer, head, row = (stride * wider + 16 * extra for stride in shape.strides)
    call = shape.call(key_strides=[outer, head, row])
    fields = call.fields()
    sizes = (shape.blocks if shape.paged else shape.batch, shape.kv_heads, shape.block_size or shape.rows)
    expected = [given if size > 1 else contiguous
                for given, size, contiguous in zip((outer, head, row), sizes, shape.strides, strict=True)]  # fmt: skip
    assert list(fields["key"].values()) == expected
    assert tuple(fields["value"].values()) == shape.strides


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("group", [1, 4, 9])
@pytest.mark.parametrize("head_dim", [64, 128, 512])
def test_scores_of_whole_units_stay_in_ub_up_to_its_room(dtype: str, group: int, head_dim: int) -> None:
    # a chunk is padded to 64 lanes from wherever it begins
    room = _library().ScoreRowsOf(group, head_dim, dtype == "bfloat16") - 64
    shape = Shape(batch=48, kv_heads=1, group=group, head_dim=head_dim, dtype=dtype)
    inside, outside = (
        replace(replace(shape, rows=rows).call(placement="post_softmax"), platform=Platform(cube_cores=0)).run()
        for rows in (room, room + 1)
    )
    assert (inside.key, inside.workspace) == (_WHOLE + _POST_SOFTMAX, _SYSTEM)
    size = shape.batch * shape.heads * (room + 1) * 4
    assert (outside.key, outside.workspace) == (_WHOLE + _POST_SOFTMAX, _SYSTEM + -(-size // 512) * 512)
    cut = replace(shape, rows=room).call(placement="post_softmax", lengths="int32").run()
    assert cut.workspace > _SYSTEM + shape.batch * shape.heads * room * 4, "a core leaves the scores of a part"
