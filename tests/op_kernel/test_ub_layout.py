"""The Unified Buffer layout of every variant: inside the budget, disjoint, aligned, and large enough for its uses."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from emulator.cann import build_library

_KERNEL = Path(__file__).resolve().parents[2] / "op_kernel"
_HEADER = _KERNEL / "ub_layout.h"
_BUDGET = 184 * 1024 - 256  # what CANN leaves of the 192 KiB: 8 KiB and 256 bytes are its own
_BLOCK = 32
_COUNTS = ("chunkRows", "scoreRows", "slots", "tileRows", "slotBytes", "valueTileRows", "valueListRows",
           "blockTokens")  # fmt: skip
_FIELDS = tuple(re.findall(r"uint32_t (\w+);", _HEADER.read_text().split("struct UbLayout {")[1].split("};")[0]))
_MAX_CORES = 64
_MAX_HEADS = 4096


class _Layout(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in _FIELDS)


class _Buffer(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_uint32), ("bytes", ctypes.c_uint32))


@dataclass(frozen=True)
class Variant:
    head_dim: int
    head_block: int
    bfloat16: bool
    post_softmax: bool
    cube: bool = False
    key_bytes: int = 2
    value_bytes: int = 2
    query_tokens: int = 0


@dataclass(frozen=True)
class Layout:
    counts: dict[str, int]
    total: int
    buffers: dict[str, range]

    def bytes_of(self, buffer: str) -> int:
        return len(self.buffers[buffer])


@cache
def _library() -> ctypes.CDLL:
    source = Path(__file__).resolve().parent / "probes" / "ub_layout.cpp"
    return ctypes.CDLL(str(build_library("ub_layout", [source], [_KERNEL])))


def head_block_of(group: int, head_dim: int) -> int:
    return int(_library().HeadBlockOf(group, head_dim))


def token_blocks_of(
    rows: int, head_dim: int, bfloat16: bool, key_bytes: int, value_bytes: int, query_tokens: int
) -> int:
    """Blocks of the query rows of a KV head with several tokens: one, or an even number, as few as fit."""
    most = int(_library().TokenBlockOf(rows, head_dim, bfloat16, key_bytes, value_bytes, query_tokens))
    return 1 if rows <= most else 2 * -(-rows // (2 * most))


@cache
def layout_of(variant: Variant) -> Layout:
    layout = _Layout()
    buffers = (_Buffer * _library().BufferCount())()
    _library().LayoutOf(*astuple(variant), ctypes.byref(layout), buffers)
    ranges = {item.name.decode(): range(item.offset, item.offset + item.bytes) for item in buffers}
    return Layout({name: getattr(layout, name) for name in _COUNTS}, layout.total, ranges)


def _variants() -> Iterator[Variant]:
    for head_dim in range(16, 513, 16):
        for head_block in range(1, (8 if head_dim <= 256 else 4) + 1):
            for bfloat16 in (False, True):
                for post_softmax in (False, True):
                    for cube in (False, True):
                        yield Variant(head_dim, head_block, bfloat16, post_softmax, cube)
                    for value_bytes in (1, 2) if head_dim % 32 == 0 else ():
                        yield Variant(head_dim, head_block, bfloat16, post_softmax, False, 1, value_bytes)
        yield from _variants_of_tokens(head_dim)


def _variants_of_tokens(head_dim: int) -> Iterator[Variant]:
    """Blocks of so many query rows as tiling may ask for with several tokens."""
    for key_bytes, value_bytes in ((2, 2), (1, 2), (1, 1)) if head_dim % 32 == 0 else ((2, 2),):
        for bfloat16 in (False, True):
            for tokens in (1, 3, 16):
                most = _library().TokenBlockOf(64, head_dim, bfloat16, key_bytes, value_bytes, tokens)
                for block in range(1, most + 1):
                    yield Variant(head_dim, block, bfloat16, False, True, key_bytes, value_bytes, tokens)


_ALL = tuple(_variants())


@pytest.fixture(scope="module", params=range(16, 513, 16), ids=lambda head_dim: f"d{head_dim}")
def layouts(request: pytest.FixtureRequest) -> list[tuple[Variant, Layout]]:
    """All variants of one head_dim."""
    return [(variant, layout_of(variant)) for variant in _ALL if variant.head_dim == request.param]


def test_head_blocks_hold_8_heads_and_4_above_head_dim_256() -> None:
    for variant in _ALL:
        most = 8 if variant.head_dim <= 256 else 4
        assert [head_block_of(group, variant.head_dim) for group in (1, 3, 4, 7, 8, 9, 64)] == [
            min(group, most) for group in (1, 3, 4, 7, 8, 9, 64)
        ]


def test_every_buffer_of_the_layout_is_tested() -> None:
    assert set(layout_of(_ALL[0]).buffers) == set(_FIELDS) - {*_COUNTS, "total"}


def test_layouts_fit_the_budget(layouts: list[tuple[Variant, Layout]]) -> None:
    assert _library().Budget() == _BUDGET
    for variant, layout in layouts:
        end = max(buffer.stop for buffer in layout.buffers.values())
        assert 0 < end <= layout.total <= _BUDGET, variant


def test_buffers_are_disjoint_and_aligned(layouts: list[tuple[Variant, Layout]]) -> None:
    for variant, layout in layouts:
        used = sorted((buffer for buffer in layout.buffers.values() if buffer), key=lambda buffer: buffer.start)
        for before, after in pairwise(used):
            assert before.stop <= after.start, (variant, layout.buffers)
        assert not any(buffer.start % _BLOCK for buffer in used), variant


def test_counts_suit_the_vector_unit(layouts: list[tuple[Variant, Layout]]) -> None:
    for variant, layout in layouts:
        counts = layout.counts
        assert counts["slots"] >= 2, variant
        assert counts["tileRows"] % 16 == 0, variant
        assert 16 <= counts["tileRows"] <= min(256, counts["chunkRows"]), "a chunk takes whole tiles"
        # a compare takes multiples of 64 float32, and a chunk holds whole granules of the work split
        assert counts["chunkRows"] % 128 == 0, variant
        assert counts["chunkRows"] <= (1536 if variant.key_bytes == 2 else 1792), variant
        assert counts["scoreRows"] % counts["chunkRows"] == 0, variant
        assert variant.post_softmax or counts["scoreRows"] == counts["chunkRows"], variant
        assert counts["valueListRows"] >= 8, variant
        assert counts["valueListRows"] % 8 == 0, variant


def test_buffers_hold_their_second_uses(layouts: list[tuple[Variant, Layout]]) -> None:
    for variant, layout in layouts:
        chunk = layout.counts["chunkRows"]
        # 16 float32 lanes for each row of a step; later the work rows of a chunk, one for each head
        assert layout.bytes_of("partials") >= max(256 * 16, variant.head_block * chunk) * 4, variant
        # an eighth of each of them
        assert layout.bytes_of("spread") >= variant.head_block * chunk // 8 * 4, variant
        # masks of several heads are read as one
        assert variant.head_block == 1 or chunk % 256 == 0, variant
        # four blocks of one head of all parts of a unit, then at least one accumulator
        ring = layout.bytes_of("keyTiles")
        assert ring >= _MAX_CORES * 4 * _BLOCK + variant.head_dim * 4, variant
        # two of every head in post-softmax, of which several tokens have none
        assert variant.query_tokens or ring >= _MAX_CORES * 2 * _BLOCK * variant.head_block, variant
        # one 32-byte block for each head block of the largest group, when nothing else is left in front of them
        most_blocks = -(-_MAX_HEADS // (8 if variant.head_dim <= 256 else 4))
        assert layout.buffers["partials"].stop >= most_blocks * _BLOCK, variant
        # the scores of every other chunk from a cube core, behind those of the first
        second = variant.head_block * chunk * 4
        assert variant.post_softmax or layout.total - layout.buffers["valueRows"].start >= second, variant
        assert variant.post_softmax or layout.buffers["scores"].stop == layout.buffers["valueRows"].start, variant
        # a round of the cube core with several tokens, and a mean V row for each token of a block
        if variant.query_tokens:
            assert chunk >= _library().RoundRowsOf(variant.head_dim, variant.key_bytes), variant
            assert layout.counts["blockTokens"] == min(variant.query_tokens, variant.head_block), variant
        # an output row in the dtype of the query, for each head
        assert layout.bytes_of("weights") >= variant.head_block * variant.head_dim * 2, variant
        cast = variant.bfloat16 or (variant.value_bytes if variant.cube else variant.key_bytes) == 1
        assert layout.bytes_of("castPiece") == (16384 if cast else 0), variant
        # whole pairs of V rows in a tile, which no slot of the ring is too small for
        assert counts_of_values(variant, layout.counts) == 0, variant


def counts_of_values(variant: Variant, counts: dict[str, int]) -> int:
    """Bytes of a V tile past the end of its slot, or 1 if it ends inside of a pair of rows."""
    past = counts["valueTileRows"] * variant.head_dim * variant.value_bytes - counts["slotBytes"]
    return max(past, counts["valueTileRows"] % 2)


def test_one_fp16_head_of_128_gets_a_long_chunk_and_a_deep_ring() -> None:
    """The shape that speed is judged by; a buffer that grows at their cost shows here."""
    counts = layout_of(Variant(128, 1, False, False)).counts
    assert (counts["chunkRows"], counts["tileRows"]) == (1536, 128)
    assert counts["slots"] == 4


def test_a_list_that_toptheta_verify_fetches_ends_at_the_limit() -> None:
    """Its check of the Unified Buffer says nothing about bytes that this layout leaves alone."""
    layout = layout_of(Variant(400, 1, True, False))
    assert layout.counts["valueListRows"] == 32
    assert layout.buffers["valueRows"].stop == layout.total == _BUDGET
