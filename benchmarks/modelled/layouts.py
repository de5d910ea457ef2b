"""How the kernel divides the Unified Buffer, from its own header."""

from __future__ import annotations

import ctypes
from pathlib import Path

from benchmarks.tables import Table
from emulator.cann import build_library

_HERE = Path(__file__).resolve().parent
#: Name, head_dim, heads of a block, bfloat16, post-softmax, with the cube.
_VARIANTS = (
    ("float16", 128, 1, False, False, False),
    ("float16, with the cube", 128, 4, False, False, True),
    ("float16, with the cube", 128, 8, False, False, True),
    ("float16", 64, 1, False, False, False),
    ("float16", 512, 4, False, False, False),
    ("bfloat16", 128, 1, True, False, False),
    ("float16, post-softmax", 128, 1, False, True, False),
)


def layout_table() -> Table:
    """Tabulate ring, chunk and V buffer of some variants."""
    library = ctypes.CDLL(str(build_library("ub_sizes", [_HERE / "layouts.cpp"], [_HERE.parents[1] / "op_kernel"])))
    rows = []
    for name, *variant in _VARIANTS:
        sizes = (ctypes.c_uint32 * 5)()
        library.SizesOf(*variant, sizes)
        slots, tile_rows, chunk_rows, list_rows, total = sizes
        head_dim, heads = variant[:2]
        ring = f"{slots} \u00d7 {tile_rows} rows"
        rows.append([name, str(head_dim), str(heads), ring, str(chunk_rows), f"{list_rows} rows", f"{total:,}"])
    columns = ("variant", "head_dim", "heads", "ring", "chunk", "V buffer", "bytes")
    return Table("The Unified Buffer", columns, rows)
