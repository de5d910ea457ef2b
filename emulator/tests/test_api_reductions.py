"""Reductions of the host model: sums bit for bit in tree order, extremes with their indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulator.ascendc import Kernel, run_kernel

Array = npt.NDArray[Any]
SOURCE = Path(__file__).parent / "kernels" / "api_reductions.cpp"
SIZE = 1024
ROW = 512
TYPES = [("half", np.float16), ("float", np.float32)]


def run_rows(entry: str, dtype: type[Any], rows: int) -> tuple[Array, Array]:
    x = (np.random.default_rng(13).normal(size=SIZE) * 9).astype(dtype)
    x[[9, 20, 50]], x[[8, 30, 41]] = 100, -100  # ties: the first one counts
    z = np.zeros((rows, ROW), dtype)
    run_kernel(Kernel(SOURCE, entry=entry), [("x", x, "in"), ("z", z, "out")]).require_clean()
    return x, z


def tree(values: list[Any]) -> Any:
    """Neighbours in pairs, in the type of the values; None takes no part."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [a if b is None else b if a is None else a + b for a, b in pairs]
    return values[0]


def lanes(x: Array, block: int, start: int) -> Array:
    """The 256 bytes of a repeat from element `start`, with a block stride."""
    per_block = 32 // x.itemsize
    lane = np.arange(8 * per_block)
    at = start + lane // per_block * block * per_block + lane % per_block
    return np.asarray(x[at])


def active(mask: int, width: int) -> list[bool]:
    return [bool(mask >> lane & 1) for lane in range(width)]


def filled(values: dict[int, Any], dtype: type[Any]) -> Array:
    row = np.full(ROW, -9, dtype)
    for at, value in values.items():
        row[at] = value
    return row


@pytest.mark.parametrize(("name", "dtype"), TYPES)
def test_blocks_and_pairs(name: str, dtype: type[Any]) -> None:
    x, z = run_rows(f"block_{name}", dtype, 6)
    per_block, width = 32 // x.itemsize, 256 // x.itemsize

    sums = {r * 8 + b: tree(list(lanes(x, 1, r * width).reshape(8, -1)[b])) for r in range(4) for b in range(8)}
    np.testing.assert_array_equal(z[0], filled(sums, dtype))

    starts = [r * 9 * per_block for r in range(3)]
    top = {r * 16 + b: lanes(x, 1, starts[r]).reshape(8, -1)[b].max() for r in range(3) for b in range(8)}
    np.testing.assert_array_equal(z[1], filled(top, dtype))

    part: dict[int, Any] = {}
    for r in range(2):
        blocks = lanes(x, 2, r * 16 * per_block).astype(np.float64)
        blocks[width - 5 :] = -np.inf
        part |= {r * 8 + b: blocks.reshape(8, -1)[b].max() for b in range(8)}
    np.testing.assert_array_equal(z[2], filled(part, dtype))

    mask = active(0x00FE0000FFFF0103, width)
    masked: dict[int, Any] = {}
    for r in range(2):
        values = [v if on else None for v, on in zip(lanes(x, 1, r * width), mask, strict=True)]
        for b in range(8):
            block = tree(values[b * per_block : (b + 1) * per_block])
            masked |= {} if block is None else {r * 8 + b: block}
    np.testing.assert_array_equal(z[3], filled(masked, dtype))

    pairs = (x[: 2 * width : 2] + x[1 : 2 * width : 2]).reshape(2, -1)
    np.testing.assert_array_equal(z[4], filled(dict(enumerate(pairs.ravel())), dtype))
    some = {r * width // 2 + i: pairs[r, i] if i < 6 else x[r * width + 12] for r in range(2) for i in range(7)}
    np.testing.assert_array_equal(z[5], filled(some, dtype))


@pytest.mark.parametrize(("name", "dtype"), TYPES)
def test_whole_repeats(name: str, dtype: type[Any]) -> None:
    x, z = run_rows(f"whole_{name}", dtype, 6)
    width, per_block = 256 // x.itemsize, 32 // x.itemsize
    index_type = np.uint16 if dtype is np.float16 else np.uint32
    repeats = [lanes(x, 1, r * width) for r in range(6)]
    np.testing.assert_array_equal(z[0], filled({r: tree(list(repeats[r])) for r in range(6)}, dtype))
    part = {r * 5: tree([*lanes(x, 1, r * 11 * per_block)[:-7], *[None] * 7]) for r in range(3)}
    np.testing.assert_array_equal(z[1], filled(part, dtype))

    for r in range(3):
        values = repeats[r]
        assert z[2, 2 * r] == values.max()
        assert z[2].view(index_type)[2 * r + 1] == values.argmax()
        assert z[3].view(index_type)[4 * r] == values.argmax()
        assert z[3, 4 * r + 1] == values.max()
        assert z[4, r] == values.max()
        chosen = np.flatnonzero(active(0xFF00FF0, width))
        assert z[5].view(np.uint32)[r] == chosen[values[chosen].argmax()]
    assert (z[2, 6:] == -9).all()
    assert (z[3, [2, 3, 6, 7]] == -9).all()
    assert (z[4, 3:] == -9).all()
