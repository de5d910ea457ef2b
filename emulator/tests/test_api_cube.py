"""The cube core of the host model: products against numpy, its flags, and its modelled cycles."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from emulator.ascendc import Kernel, KernelRun, run_kernel

Array = npt.NDArray[Any]
KERNELS = Path(__file__).parent / "kernels"
SOURCE = KERNELS / "api_cube.cpp"
CHECKS = KERNELS / "api_cube_checks.cpp"
BENCH = KERNELS / "api_cube.h"
DTYPES = {"half": torch.float16, "bfloat16": torch.bfloat16}
RNG = np.random.default_rng(3)


@dataclass(frozen=True)
class Product:
    """The tiling data of the kernels, in their order."""

    m: int
    n: int
    k: int
    left_stride: int
    right_stride: int
    result_stride: int
    columns: int
    steps: int

    def tiling(self) -> bytes:
        return np.array(astuple(self), np.uint32).tobytes()


def product_of(m: int, n: int, k: int, *, columns: int = 0, steps: int = 1, gap: int = 0) -> Product:
    return Product(m, n, k, k + gap, k + 2 * gap, n + 3 * gap, columns or n, steps)


def random_matrix(rows: int, stride: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(RNG.standard_normal((rows, stride), dtype=np.float32)).to(dtype)


def exact(left: torch.Tensor, right: torch.Tensor) -> Array:
    return (left.double() @ right.double().T).numpy()


def multiply(product: Product, dtype: str, **options: Any) -> tuple[KernelRun, Array, Array]:
    """The run, its result and what numpy has in float64."""
    left = random_matrix(product.m, product.left_stride, DTYPES[dtype])
    right = random_matrix(product.n, product.right_stride, DTYPES[dtype])
    result = np.full((product.m, product.result_stride), -7, np.float32)
    arguments: list[Any] = [
        ("left", left, "in"),
        ("right", right, "in"),
        ("result", result, "inout"),
        ("tiling", product.tiling(), "in"),
    ]
    run = run_kernel(Kernel(SOURCE, entry=f"multiply_{dtype}"), arguments, **options)
    assert (result[:, product.n :] == -7).all()
    return run, result[:, : product.n], exact(left[:, : product.k], right[:, : product.k])


def assert_close(result: Array, expected: Array, k: int) -> None:
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6 * k)


# ---- products -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [16, 64, 128])
def test_few_rows(k: int, dtype: str) -> None:
    for m in range(1, 17):
        n = 16 * (m % 3) + m
        run, result, expected = multiply(product_of(m, n, k, gap=8 * (m % 4)), dtype)
        run.require_clean()
        assert_close(result, expected, k)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(16, 512, 64), (40, 48, 32), (17, 33, 256), (2, 1, 16), (5, 20, 23), (1, 40, 40), (1, 7, 1000)]
)
def test_other_shapes(m: int, n: int, k: int) -> None:
    run, result, expected = multiply(product_of(m, n, k, gap=3), "half")
    run.require_clean()
    assert_close(result, expected, k)


def test_sum_in_steps_over_k() -> None:
    for m, k in ((1, 512), (5, 128), (16, 128)):
        run, result, expected = multiply(product_of(m, 24, k, steps=2), "bfloat16")
        run.require_clean()
        assert_close(result, expected, k)


def test_tiles_through_one_set_of_buffers() -> None:
    run, result, expected = multiply(product_of(5, 70, 64, columns=32, gap=2), "half")
    run.require_clean()
    assert_close(result, expected, 64)


def test_products_of_16_bits_are_exact() -> None:
    """Sums of 16 products that fit 24 bits come out as they are, tiny and huge ones too."""
    for dtype, scale in (("half", 2.0**-14), ("bfloat16", 2.0**-60), ("bfloat16", 2.0**60)):
        left = torch.full((4, 16), 1.0).to(DTYPES[dtype])
        right = torch.full((16, 16), 3 * scale).to(DTYPES[dtype])
        result = np.zeros((4, 16), np.float32)
        product = product_of(4, 16, 16)
        arguments: list[Any] = [
            ("left", left, "in"),
            ("right", right, "in"),
            ("result", result, "out"),
            ("tiling", product.tiling(), "in"),
        ]
        run_kernel(Kernel(SOURCE, entry=f"multiply_{dtype}"), arguments).require_clean()
        assert (result == np.float32(48 * scale)).all()


def test_fractals_turned_round_on_the_way() -> None:
    left, right = random_matrix(16, 32, torch.float16), random_matrix(32, 48, torch.float16)
    result = np.zeros((16, 48), np.float32)
    kernel = Kernel(SOURCE, entry="multiply_transposed")
    run_kernel(kernel, [("left", left, "in"), ("right", right, "in"), ("result", result, "out")]).require_clean()
    assert_close(result, exact(left, right.T), 32)


def test_copies_into_l1() -> None:
    x, identity = np.arange(1024).astype(np.float16), np.eye(16, dtype=np.float16)
    result = np.zeros((5, 16, 16), np.float32)
    arguments: list[Any] = [("x", x, "in"), ("identity", identity, "in"), ("result", result, "out")]
    run_kernel(Kernel(SOURCE, entry="copies_into_l1"), arguments).require_clean()
    rows = x[:512].reshape(16, 32)
    expected = np.zeros((5, 16, 16), np.float32)
    both = np.concatenate([x[0:256].reshape(8, 32), x[400:656].reshape(8, 32)])
    expected[0], expected[1, :, :7] = both[:, :16], both[:, 16:23]
    expected[2, ::2], expected[2, 1::2] = rows[:8, :16], rows[:8, 8:24]
    expected[3] = x[64:320].reshape(16, 16)
    expected[4] = np.concatenate([x[0:128], x[192:320]]).reshape(16, 16)
    np.testing.assert_array_equal(result, expected)


def test_queues_of_the_cube() -> None:
    left, right = (random_matrix(32, 16, torch.float16) for _ in range(2))
    result = np.zeros((2, 16, 16), np.float32)
    arguments: list[Any] = [("left", left, "in"), ("right", right, "in"), ("result", result, "out")]
    run_kernel(Kernel(SOURCE, entry="queues_of_the_cube"), arguments).require_clean()
    for tile in range(2):
        rows = slice(16 * tile, 16 * tile + 16)
        assert_close(result[tile], exact(left[rows], right[rows]), 16)


def test_what_mmad_left_undefined_comes_along_undefined() -> None:
    """Twenty columns are two fractals; the copy asks for both."""
    x, z = np.ones(2048, np.float16), np.zeros(1024, np.float32)
    run_kernel(
        Kernel(CHECKS, entry="contents_of_whole_fractals_clean"), [("x", x, "in"), ("z", z, "out")]
    ).require_clean()
    rows = z[:160].reshape(5, 32)
    assert (rows[:, :20] == 16).all()
    assert np.isnan(rows[:, 20:]).all()


# ---- mixed kernels ------------------------------------------------------------------------------------------------


def test_a_mixed_kernel_hands_products_to_its_vector_cores() -> None:
    product = product_of(5, 96, 64, columns=16)
    left, right = random_matrix(5, 64, torch.float16), random_matrix(96, 64, torch.float16)
    result = np.zeros((5, 96), np.float32)
    arguments: list[Any] = [
        ("left", left, "in"),
        ("right", right, "in"),
        ("workspace", 3 * 5 * 16 * 4, "workspace"),
        ("result", result, "out"),
        ("tiling", product.tiling(), "in"),
    ]
    run_kernel(Kernel(SOURCE, entry="mixed_product"), arguments, blocks=3).require_clean()
    assert_close(result, 2 * exact(left, right), 64)


def test_places_of_the_cores_of_a_mixed_kernel() -> None:
    """As asc-devkit's pages on GetBlockIdx, GetSubBlockNum and GetTaskRatio have it for KERNEL_TYPE_MIX_AIC_1_2."""
    places = np.zeros((9, 16), np.int32)
    run_kernel(Kernel(SOURCE, entry="mixed_places"), [("places", places, "out")], blocks=3).require_clean()
    cubes = [[block, 0, 1, 1, 3] for block in range(3)]
    vectors = [[2 * block + core, core, 2, 2, 3] for block in range(3) for core in range(2)]
    assert places[:, :5].tolist() == cubes + vectors


# ---- flags --------------------------------------------------------------------------------------------------------


def lines_of(source: Path, *texts: str) -> str:
    """The places of the calls, as `suppress` takes them."""
    lines = source.read_text().splitlines()
    found = [next(i for i, line in enumerate(lines, 1) if text in line) for text in texts]
    return ",".join(f"{source.name}:{line}" for line in found)


@pytest.mark.parametrize(
    ("event", "check"),
    [
        ("MTE2_MTE1", "ReadAfterWrite"),
        ("MTE1_M", "ReadAfterWrite"),
        ("M_FIX", "ReadAfterWrite"),
        ("MTE1_MTE2", "WriteAfterRead"),
        ("M_MTE1", "WriteAfterRead"),
        ("FIX_M", "WriteAfterRead"),
    ],
)
def test_every_flag_of_the_kernel_is_needed(event: str, check: str) -> None:
    sites = lines_of(BENCH, f"SetFlag<HardEvent::{event}>", f"WaitFlag<HardEvent::{event}>")
    run, _, _ = multiply(product_of(5, 64, 32, columns=32), "half", suppress=sites)
    assert check in run.checks, run.summary()
    finding = next(finding for finding in run.findings if finding.check == check)
    assert event in finding.remedy


def test_sums_in_one_place_need_a_barrier() -> None:
    sites = lines_of(BENCH, "PipeBarrier<PIPE_M>")
    run, _, _ = multiply(product_of(16, 144, 64, steps=2), "half", suppress=sites)
    assert "ReadAfterWrite" in run.checks
    assert "PIPE_M" in run.findings[0].remedy


def test_from_ten_fractals_on_the_cube_orders_sums_itself() -> None:
    sites = lines_of(BENCH, "PipeBarrier<PIPE_M>")
    run, result, expected = multiply(product_of(16, 160, 64, steps=2), "half", suppress=sites)
    run.require_clean()
    assert_close(result, expected, 64)


# ---- fields of the parameter structures -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A kernel of api_cube_parameters.cpp: the fields that it reads, in order, with a good value and the range."""

    entry: str
    fields: dict[str, tuple[int, int, int]]


CALLS = [
    Call(
        "fields_of_nd2nz",
        {
            "ndNum": (1, 0, 4095),
            "nValue": (16, 0, 16384),
            "dValue": (16, 0, 65535),
            "srcNdMatrixStride": (0, 0, 65535),
            "srcDValue": (16, 1, 65535),
            "dstNzC0Stride": (16, 1, 16384),
            "dstNzNStride": (1, 1, 16384),
            "dstNzMatrixStride": (0, 0, 16384),
        },
    ),
    Call(
        "fields_of_load_data",
        {
            "startIndex": (0, 0, 65535),
            "repeatTimes": (1, 1, 255),
            "srcStride": (1, 0, 65535),
            "dstGap": (0, 0, 65535),
            "addrMode": (0, 0, 0),
        },
    ),
    Call("fields_of_mmad", {"m": (16, 0, 4095), "n": (16, 0, 4095), "k": (16, 0, 4095)}),
    Call(
        "fields_of_fixpipe",
        {
            "nSize": (16, 0, 4095),
            "mSize": (1, 0, 8192),
            "srcStride": (16, 0, 65535),
            "dstStride": (16, 1, 2**32 - 1),
            "ndNum": (1, 0, 1),
        },
    ),
]


def run_fields(call: Call, **changed: int) -> KernelRun:
    values = {name: good for name, (good, _, _) in call.fields.items()} | changed
    tiling = np.array([*values.values(), *[0] * (8 - len(values))], np.uint32).tobytes()
    x, z = np.ones(2048, np.float16), np.zeros(1024, np.float32)
    kernel = Kernel(KERNELS / "api_cube_parameters.cpp", entry=call.entry)
    return run_kernel(kernel, [("x", x, "in"), ("z", z, "inout"), ("tiling", tiling, "in")])


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.entry)
def test_ranges_of_fields(call: Call) -> None:
    run_fields(call).require_clean()
    for name, (_, least, most) in call.fields.items():
        for value in (least, most):
            assert not {"Parameter", "Unsupported"} & set(run_fields(call, **{name: value}).checks), (name, value)
        for value in {max(least - 1, 0), most + 1} - {least, 2**32}:
            found = run_fields(call, **{name: value}).findings
            assert {finding.check for finding in found} <= {"Parameter", "Unsupported"}, (name, value)
            assert any(name in finding.what for finding in found), (name, value)


@pytest.mark.parametrize(
    ("call", "fields", "name"),
    [
        (CALLS[2], {"unitFlag": 2, "cmatrixSource": 0}, "unitFlag"),
        (CALLS[2], {"unitFlag": 0, "cmatrixSource": 1}, "cmatrixSource"),
        (CALLS[3], {"reluEn": 1}, "reluEn"),
        (CALLS[3], {"reluEn": 0, "unitFlag": 3}, "unitFlag"),
        (CALLS[3], {"reluEn": 0, "unitFlag": 0, "quantPre": 1}, "quantPre"),
    ],
)
def test_what_the_model_does_not_have(call: Call, fields: dict[str, int], name: str) -> None:
    (finding,) = run_fields(call, **fields).findings
    assert finding.check == "Unsupported"
    assert name in finding.what


def test_a_wrong_memory_is_named() -> None:
    x, z = np.ones(2048, np.float16), np.zeros(1024, np.float32)
    kernel = Kernel(KERNELS / "api_cube_checks.cpp", entry="place_mmad_left")
    (finding,) = run_kernel(kernel, [("x", x, "in"), ("z", z, "inout")]).findings
    assert "fmLocal lies in L1 (A1 or B1)" in finding.what
    assert "L0A (A2)" in finding.remedy


# ---- modelled cycles ------------------------------------------------------------------------------------------------


def busy_cycles(product: Product, pipe: str) -> float:
    run, _, _ = multiply(product, "half")
    return run.require_clean().timeline("hot").busy_cycles(pipe, kind="cube")


def test_cycles_of_a_product() -> None:
    """One Mmad more, of the size given: a fractal of each side in a cycle."""
    for m, n, k in ((16, 160, 128), (5, 40, 32)):
        one, two = (busy_cycles(product_of(m, steps * n, k, columns=n), "M") for steps in (1, 2))
        head = one - -(-m // 16) * -(-n // 16) * (k // 16)
        assert two - 2 * head == 2 * (one - head)
        assert head == busy_cycles(product_of(1, 1, 16), "M") - 1


def test_cycles_of_fractals_into_l0() -> None:
    """512 bytes in 2 cycles to L0A and in 4 to L0B."""
    base = busy_cycles(product_of(16, 16, 16), "MTE1")
    assert busy_cycles(product_of(16, 32, 16), "MTE1") - base == pytest.approx(4)
    assert busy_cycles(product_of(16, 16, 64), "MTE1") - base == pytest.approx(3 * 2 + 3 * 4)


@pytest.mark.parametrize(("columns", "rows", "published"), [(64, 512, 24.0), (256, 64, 31.7)])
def test_cycles_of_rows_into_l1(columns: int, rows: int, published: float) -> None:
    """What asc-devkit publishes for rows of 128 and 512 bytes, in bytes per cycle and core; also in the L2."""
    one, many = (busy_cycles(product_of(16, each, columns), "MTE2") for each in (1, rows))
    assert (rows - 1) * 2 * columns / (many - one) == pytest.approx(published, rel=0.01)


def test_narrow_rows_into_l1_that_lie_apart_cost_more_than_their_bytes() -> None:
    def busy(gap: int, scattered: float) -> float:
        run, _, _ = multiply(product_of(16, 48, 64, gap=gap), "half")
        cold = run.require_clean().timeline("cold", scattered_row_bytes=scattered, cube_rate_cold=16, dma_command=0)
        return cold.busy_cycles("MTE2", kind="cube")

    assert busy(16, 64) - busy(16, 0) == pytest.approx((16 + 48) * 64 / 16)
    assert busy(0, 64) == pytest.approx(busy(0, 0))
