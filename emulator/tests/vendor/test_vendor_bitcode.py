"""Functions of the vendor's library, as its own compiler made them, over the host model's instructions, against numpy.

The compiler's code packs every operand of an instruction into a 64-bit word. What it means by them is what its function
does: so the host model reads strides, repeats, masks and counts as the vendor's compiler writes them, or a test fails.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from emulator.ascendc import KernelError
from emulator.tests.vendor import replay
from emulator.tests.vendor.bench import Array, Bench, Tensor, needs_library

pytestmark = needs_library
TYPES: dict[str, type[Any]] = {"float": np.float32, "half": np.float16, "int32_t": np.int32, "int16_t": np.int16}
SHORT = {"float": "f32", "half": "f16", "int32_t": "s32", "int16_t": "s16"}
#: How far Exp, Ln and Div may be off, which are the host's functions.
ROUNDED = {"float": 1e-6, "half": 1e-3}
#: One element, a whole repeat, tails of several repeats.
SIZES = (1, 64, 200, 517)
BINARY: dict[str, Callable[..., Any]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vmul": np.multiply,
    "vmax": np.maximum,
    "vmin": np.minimum,
}
SCALAR: dict[str, Callable[..., Any]] = {
    "vadds": np.add,
    "vmuls": np.multiply,
    "vmaxs": np.maximum,
    "vmins": np.minimum,
}


def numbers(dtype: type[Any], *shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).integers(-40, 40, shape).astype(dtype)


def part(tensor: Tensor, size: int) -> Tensor:
    """The first elements of a tensor."""
    return replace(tensor, shape=(size,))


# ---- elementwise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("function", BINARY)
def test_binary(function: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, y = numbers(dtype, size), numbers(dtype, size, seed=2)
    out = bench.empty(dtype, size)
    bench.call(f"{function}_1d_{name}", bench.tensor(x), bench.tensor(y), out, bench.scratch(dtype, 512))
    bench.check([(out, BINARY[function](x, y))])
    assert bench.intrinsics == {f"{function.upper()}.{SHORT[name]}"}


@pytest.mark.parametrize("shape", [(1, 8), (5, 100), (40, 64), (260, 8), (3, 700)])
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", BINARY)
def test_binary_of_rows_with_gaps(function: str, name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    row = -(-shape[1] // 16) * 16
    x, y = numbers(dtype, *shape), numbers(dtype, *shape, seed=2)
    first, second = bench.tensor(x, row), bench.tensor(y, row)
    out = bench.empty(dtype, *shape, row=row + 16)
    bench.call(f"{function}_2d_{name}", first, second, out, bench.scratch(dtype, 16))
    bench.check([(out, BINARY[function](x, y))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("function", SCALAR)
def test_with_scalar(function: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, scalar = numbers(dtype, size), dtype(7)
    out = bench.empty(dtype, size)
    bench.call(f"{function}_vs_1d_{name}", bench.tensor(x), scalar, out, bench.scratch(dtype, 512))
    bench.check([(out, SCALAR[function](x, scalar))])
    assert bench.intrinsics == {f"{function.upper()}.{SHORT[name]}"}


@pytest.mark.parametrize("shape", [(5, 100), (260, 8)])
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", SCALAR)
def test_with_scalar_in_rows_with_gaps(function: str, name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    row = -(-shape[1] // 16) * 16
    x, scalar = numbers(dtype, *shape), dtype(7)
    out = bench.empty(dtype, *shape, row=row + 16)
    bench.call(f"{function}_vs_2d_{name}", bench.tensor(x, row), scalar, out, bench.scratch(dtype, 512))
    bench.check([(out, SCALAR[function](x, scalar))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", ["vexp", "vln", "vabs"])
def test_unary(function: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = np.random.default_rng(3).uniform(0.5, 4, size).astype(dtype)
    out = bench.empty(dtype, size)
    bench.call(f"{function}_1d_{name}", bench.tensor(x), out, bench.scratch(dtype, 512))
    bench.check([(out, {"vexp": np.exp, "vln": np.log, "vabs": np.abs}[function](x))], ROUNDED[name])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["float", "half"])
def test_division(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, y = numbers(dtype, size), numbers(dtype, size, seed=2) * 2 + dtype(1)
    out = bench.empty(dtype, size)
    bench.call(f"vdiv_1d_{name}", bench.tensor(x), bench.tensor(y), out, bench.scratch(dtype, 512))
    bench.check([(out, x / y)], ROUNDED[name])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", ["vand", "vor"])
def test_bits(function: str, size: int) -> None:
    bench = Bench()
    x, y = numbers(np.int16, size), numbers(np.int16, size, seed=2)
    out = bench.empty(np.int16, size)
    bench.call(f"{function}_1d_int16_t", bench.tensor(x), bench.tensor(y), out, bench.scratch(np.int16, 512))
    bench.check([(out, x & y if function == "vand" else x | y)])


# ---- conversions -------------------------------------------------------------------------------------------------

#: As the library numbers them.
MODES: dict[int, Callable[[Array], Array]] = {
    0: np.rint,
    1: lambda x: np.trunc(x + np.copysign(0.5, x)),
    2: np.floor,
    3: np.ceil,
    4: np.trunc,
}
CASTS = [("float", "int32_t"), ("half", "int32_t"), ("half", "int8_t"), ("int32_t", "float"), ("int8_t", "half")]
ALL_TYPES = {**TYPES, "int8_t": np.int8}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("source", "target"), CASTS)
def test_cast(source: str, target: str, mode: int, size: int) -> None:
    bench = Bench()
    x = numbers(np.float32, size) + (np.float32(0.5) if source in ("float", "half") else np.float32(0))
    x = x.astype(ALL_TYPES[source])
    out = bench.empty(ALL_TYPES[target], size)
    bench.call(f"vcast_{source}_to_{target}_1d_with_mode", bench.tensor(x), out, mode)
    bench.check([(out, MODES[mode](x).astype(ALL_TYPES[target]))])


@pytest.mark.parametrize("size", SIZES)
def test_cast_between_floats(size: int) -> None:
    bench = Bench()
    x = np.random.default_rng(3).uniform(-4, 4, size).astype(np.float32)
    half, back = bench.empty(np.float16, size), bench.empty(np.float32, size)
    bench.call("vcast_float_to_half_1d_with_mode", bench.tensor(x), half, 0)
    bench.call("vcast_half_to_float_1d_with_mode", half, back, 0)
    bench.check([(half, x.astype(np.float16)), (back, x.astype(np.float16).astype(np.float32))])


@pytest.mark.parametrize("size", SIZES)
def test_cast_to_bfloat16_and_back(size: int) -> None:
    bench = Bench()
    x = numbers(np.float32, size)  # so few bits that none is rounded
    bits, back = bench.empty(np.uint16, size), bench.empty(np.float32, size)
    bench.call("vcast_float_to_bfloat16_t_1d_with_mode", bench.tensor(x), bits, 0)
    bench.call("vcast_bfloat16_t_to_float_1d_with_mode", bits, back, 0)
    bench.check([(bits, (x.view(np.uint32) >> 16).astype(np.uint16)), (back, x)])


# ---- compare and select ------------------------------------------------------------------------------------------

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt,
    "lt": operator.lt,
    "ge": operator.ge,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("against", ["tensor", "scalar"])
@pytest.mark.parametrize("function", COMPARISONS)
def test_compare(function: str, against: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    whole = -(-size // 128) * 128  # results come for whole repeats
    x, y = numbers(dtype, whole), numbers(dtype, whole, seed=2)
    other: Any = dtype(3) if against == "scalar" else y
    first = bench.tensor(x)
    second = other if against == "scalar" else bench.tensor(y)
    out = bench.empty(np.uint8, whole // 8)
    bench.leave_open(out, -(-size // 8), whole // 8 - -(-size // 8))
    name = f"{'vcmps' if against == 'scalar' else 'vcmp'}_{function}_1d_{name}"
    bench.call(name, part(first, size), second if against == "scalar" else part(second, size), part(out, size))
    bits = np.packbits(COMPARISONS[function](x, other), bitorder="little")[: -(-size // 8)]
    bench.check([(part(out, len(bits)), bits)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("form", ["vv", "vs", "sv", "ss"])
def test_select(form: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    chosen = np.random.default_rng(4).integers(0, 2, size).astype(bool)
    tensors, scalars = [numbers(dtype, size), numbers(dtype, size, seed=2)], [dtype(3), dtype(-5)]
    values: list[Any] = [(tensors if kind == "v" else scalars)[place] for place, kind in enumerate(form)]
    condition = bench.tensor(np.packbits(chosen, bitorder="little"))
    sources = [bench.tensor(value) if isinstance(value, np.ndarray) else value for value in values]
    out = bench.empty(dtype, size)
    function = f"vsel_{form}_1d_{'bool_' if form == 'vv' else ''}{name}"
    bench.call(function, part(condition, size), *sources, out, bench.scratch(np.int64, 24))
    bench.check([(out, np.where(chosen, *values).astype(dtype))])


# ---- reductions --------------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}


@pytest.mark.parametrize("shape", [(4, 8), (300, 8), (4, 16), (5, 40), (4, 64), (4, 128), (7, 200)])
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", REDUCTIONS)
def test_reduction_of_rows(function: str, name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, *shape)
    if name == "half" and shape[1] % 16:
        shape, x = (shape[0], 16), numbers(dtype, shape[0], 16)
    out = bench.empty(dtype, shape[0], 1)
    start = dtype({"sum": 0, "max": -np.inf, "min": np.inf}[function])
    bench.call(f"enablevc_reduce_{function}_ar_{name}", bench.tensor(x), out, bench.scratch(dtype, 4096), start)
    bench.check([(out, REDUCTIONS[function](x, axis=1, keepdims=True).astype(dtype))])


@pytest.mark.parametrize("columns", [8, 40, 64])
@pytest.mark.parametrize("function", ["max", "min"])
def test_extreme_of_rows_and_where_it_stands(function: str, columns: int) -> None:
    bench = Bench()
    x = numbers(np.float32, 5, columns)  # the first one of several counts
    values, places = bench.empty(np.float32, 5, 1), bench.empty(np.int32, 5, 1)
    name = f"reduce_{function}_with_index_left_ar_float"
    bench.call(name, bench.tensor(x), values, places, bench.scratch(np.float32, 512), np.float32(0))
    where = (np.argmax if function == "max" else np.argmin)(x, axis=1, keepdims=True)
    bench.check([(values, np.take_along_axis(x, where, 1)), (places, where.astype(np.int32))])


# no longer rows: for a second level of blocks this version of the library reduces its source once more, not the first level
@pytest.mark.parametrize("size", [64, 128, 512])
@pytest.mark.parametrize("name", ["float", "half"])
@pytest.mark.parametrize("function", ["max", "min"])
def test_extreme_by_blocks(function: str, name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, 4, size)
    x[:, -1] = (100 + np.arange(4)) * (1 if function == "max" else -1)  # one of its own in the last block of each row
    out = bench.empty(dtype, 4, 1)
    start = dtype(-np.inf if function == "max" else np.inf)
    row = -(-size // 16) * 16
    bench.call(f"enablevcg_reduce_{function}_ar_{name}", bench.tensor(x, row), out, bench.scratch(dtype, 2048), start)
    bench.check([(out, REDUCTIONS[function](x, axis=1, keepdims=True))])
    assert (f"VCG{function.upper()}.{SHORT[name]}" in bench.intrinsics) == (size * x.itemsize > 256)


@pytest.mark.parametrize("shape", [(4, 2), (100, 2), (330, 2), (4, 4), (100, 4)])
@pytest.mark.parametrize("name", ["float", "half"])
def test_sum_of_pairs(name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, *shape)
    out = bench.empty(dtype, shape[0], 1)
    bench.call(f"enablevc_reduce_sum_ar_{name}", bench.tensor(x), out, bench.scratch(dtype, 1024), dtype(0))
    bench.check([(out, x.sum(axis=1, keepdims=True))])
    assert bench.intrinsics == {f"VCPADD.{SHORT[name]}"}


@pytest.mark.parametrize("size", [*SIZES, 5000])
@pytest.mark.parametrize("name", ["float", "half"])
def test_sum(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = np.random.default_rng(5).integers(0, 2, size).astype(dtype) * dtype(0.25)
    out = bench.empty(dtype, 1)
    bench.call(f"enablevc_reduce_sum_r_{name}", bench.tensor(x), out, bench.scratch(dtype, 4096), dtype(0))
    bench.check([(out, x.astype(np.float64).sum(keepdims=True).astype(dtype))])


# ---- moves -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
def test_fill(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    out = bench.empty(dtype, size)
    bench.call(f"broadcast_scalar_{name}_to_1d", dtype(9), out)
    bench.check([(out, np.full(size, 9, dtype))])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
def test_indices(name: str, size: int) -> None:
    bench = Bench()
    whole = max(size, 16)  # the first block comes whole
    out = bench.empty(TYPES[name], whole)
    bench.leave_open(out, size, whole - size)
    bench.call(f"arange_1d_{name}", part(out, size), 3, 1)
    bench.check([(part(out, size), np.arange(3, 3 + size).astype(TYPES[name]))])


@pytest.mark.parametrize("columns", [16, 32, 64, 96])
@pytest.mark.parametrize("rows", [8, 16, 40])
@pytest.mark.parametrize("name", TYPES)
def test_one_element_to_a_row(name: str, rows: int, columns: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, rows, 1)
    out = bench.empty(dtype, rows, columns)
    scratch = bench.scratch(dtype, 2048)
    bench.call(f"broadcast_last_axis_align_2d_{name}", bench.tensor(x), out, scratch)
    bench.check([(out, np.repeat(x, columns, axis=1))])


@pytest.mark.parametrize("shape", [(16, 64), (4, 128), (260, 48), (3, 16)])
@pytest.mark.parametrize("name", TYPES)
def test_one_row_to_all(name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, 1, shape[1])
    out = bench.empty(dtype, *shape)
    bench.call(f"broadcast_first_axis_align_2d_{name}", bench.tensor(x), out)
    bench.check([(out, np.repeat(x, shape[0], axis=0))])


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize("size", [2, 64, 200, 518])
@pytest.mark.parametrize("name", TYPES)
def test_every_second_element(name: str, size: int, channel: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, size)
    whole = -(-(size // 2) // 16) * 16  # the instruction may fill its last block
    out = bench.empty(dtype, whole)
    bench.leave_open(out, size // 2, whole - size // 2)
    bench.call(f"deinterleave_channel_{channel}_from_2_channels_1d_{name}", bench.tensor(x), part(out, size // 2))
    bench.check([(part(out, size // 2), x[channel::2])])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
def test_elements_whose_bit_is_set(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, chosen = numbers(dtype, size), np.random.default_rng(4).integers(0, 2, size).astype(bool)
    kept = x[chosen]
    bits = bench.tensor(np.packbits(chosen, bitorder="little"))
    out, count = bench.empty(dtype, size + 16), bench.empty(np.int64, 1)
    bench.leave_open(out, len(kept), -len(kept) % 16)
    bench.call(f"vgathermask_1d_{name}", bench.tensor(x), part(bits, size), part(out, size), count)
    bench.check([(part(out, len(kept)), kept), (count, np.array([len(kept)]))])


@pytest.mark.parametrize("rows", [1, 20, 300])
@pytest.mark.parametrize("name", TYPES)
def test_first_element_of_each_block(name: str, rows: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x = numbers(dtype, rows, 32 // np.dtype(dtype).itemsize)
    whole = -(-rows // 16) * 16
    out = bench.empty(dtype, whole)
    bench.leave_open(out, rows, whole - rows)
    column = replace(bench.tensor(x), shape=(rows,), strides=(x.shape[1],))
    bench.call(f"deinterleave_channel_0_from_n_channels_1d_{name}", column, part(out, rows))
    bench.check([(part(out, rows), x[:, 0])])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TYPES)
def test_gather(name: str, size: int) -> None:
    dtype, bench = TYPES[name], Bench()
    x, index = numbers(dtype, 300), np.random.default_rng(6).integers(0, 300, size).astype(np.int32)
    source, positions, out = bench.tensor(x), bench.tensor(index), bench.empty(dtype, size)
    bench.call(f"gather_1d_{name}", source, positions, out, bench.scratch(np.int32, 1024))
    bench.check([(out, x[index])])


# ---- copies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8), (5, 64), (33, 16)])
@pytest.mark.parametrize("name", TYPES)
def test_copy_inside(name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x, row = numbers(dtype, *shape), -(-shape[1] // 16) * 16
    out = bench.empty(dtype, *shape, row=row + 32)
    if shape[1] % 16:  # whole blocks are copied
        bench.leave_open(out, shape[1], 16 - shape[1] % 16)
    bench.call(f"copy_ubuf_to_ubuf_2d_{name}", bench.tensor(x, row + 16), out)
    bench.check([(out, x)])


@pytest.mark.parametrize("shape", [(1, 1), (5, 60), (33, 17), (7, 64)])
@pytest.mark.parametrize("name", TYPES)
def test_copy_in_and_out(name: str, shape: tuple[int, int]) -> None:
    dtype, bench = TYPES[name], Bench()
    x, row = numbers(dtype, *shape), -(-shape[1] // 16) * 16
    source, target = (
        bench.tensor(x, shape[1] + 3, memory="global"),
        bench.empty(dtype, *shape, row=shape[1] + 5, memory="global"),
    )
    inside = bench.empty(dtype, *shape, row=row + 32)
    for first in range(shape[1], shape[1] + (row + 32) * shape[0], row + 32):
        bench.leave_open(inside, first, row - shape[1])  # up to the end of the block
    bench.call(f"load_gm_to_ubuf_2d_{name}", source, inside, 0, dtype(0), 0)
    bench.call(f"store_ubuf_to_gm_2d_{name}", inside, target, 0)
    bench.check([(inside, x), (target, x)])


# ---- what a wrong reading of an operand does ---------------------------------------------------------------------

DEFECTS: dict[str, Callable[[], None]] = {
    "reversed-mask-bits": lambda: test_compare("gt", "scalar", "float", 200),
    "select-strides-ignored": lambda: test_select("sv", "float", 200),
    "gather-mask-counts-dropped": lambda: test_elements_whose_bit_is_set("float", 200),
    "exp-in-half": lambda: test_unary("vexp", "float", 200),
    "ln-in-half": lambda: test_unary("vln", "float", 200),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_of_the_machine_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "run_kernel", partial(replay.run_kernel, defect=defect))
    with pytest.raises(AssertionError):
        DEFECTS[defect]()


#: Which operand is moved by one bit, and a function that depends on it.
OPERANDS: dict[tuple[str, str], Callable[[], None]] = {
    ("VADD.", "src1_block"): lambda: test_binary("vadd", "float", 200),
    ("VADD.", "dst_repeat"): lambda: test_binary("vadd", "float", 200),
    ("VMULS.", "src0_repeat"): lambda: test_with_scalar("vmuls", "float", 200),
    ("VCONV.", "src0_repeat"): lambda: test_cast("float", "int32_t", 0, 200),
    ("VCMPV.", "src1_repeat"): lambda: test_compare("gt", "tensor", "float", 200),
    ("VSEL.", "src1_repeat"): lambda: test_select("vv", "float", 200),
    ("VBRCB.", "dst_repeat"): lambda: test_one_element_to_a_row("float", 16, 16),
    ("VCOPY.", "dst_repeat"): lambda: test_one_row_to_all("float", (16, 64)),
    ("VCADD.", "dst_repeat"): lambda: test_reduction_of_rows("sum", "float", (4, 64)),
    ("VCGADD.", "src0_block"): lambda: test_reduction_of_rows("sum", "float", (4, 8)),
    ("VCGMAX.", "dst_repeat"): lambda: test_extreme_by_blocks("max", "float", 512),
    ("VREDUCEv2.", "src1"): lambda: test_elements_whose_bit_is_set("float", 200),
    ("VREDUCEv2.", "mode"): lambda: test_every_second_element("float", 200, 0),
    ("VREDUCEv2.", "src0_repeat"): lambda: test_first_element_of_each_block("float", 20),
    ("VCPADD.", "dst_repeat"): lambda: test_sum_of_pairs("float", (100, 2)),
    ("MOV.OUT.TO.UB.", "dst_repeat"): lambda: test_copy_in_and_out("float", (5, 60)),
    ("MOV.UB.TO.OUT.", "src0_repeat"): lambda: test_copy_in_and_out("float", (5, 60)),
    ("MOV.UB.TO.UB.", "src0_repeat"): lambda: test_copy_inside("float", (5, 64)),
    ("MOVEV.", "dst_block"): lambda: test_fill("float", 200),
    ("VGATHER.", "mode"): lambda: test_gather("float", 200),
}


@pytest.mark.parametrize("operand", OPERANDS, ids="".join)
def test_an_operand_that_is_read_elsewhere_is_found(operand: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, field = operand
    real = replay.decode

    def moved(name: str, arguments: list[int]) -> replay.Step:
        step = real(name, arguments)
        return replace(step, **{field: getattr(step, field) * 2 or 4}) if name.startswith(prefix) else step

    monkeypatch.setattr(replay, "decode", moved)
    with pytest.raises((AssertionError, KernelError)):
        OPERANDS[operand]()
