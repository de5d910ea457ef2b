"""What a call of the kernel takes on the host model, as the cells of a table."""

from __future__ import annotations

from emulator.ascendc import COLUMNS as COLUMNS_OF_CONSTANTS
from emulator.ascendc import Mode
from toptheta_npu.timing.shapes import Shape

from .calls import Modelled
from .step import EXPECTED

SHAPE_COLUMNS = ("heads", "batch", "n", "k", "dtype", "block")
TIME_COLUMNS = (
    "cold", "band", "of bound", "θ=-inf", "gain", "limit", "over any dense", "launch", "gain with it", "hot",
    "gain, hot",
)  # fmt: skip


def shape_cells(shape: Shape) -> list[str]:
    """Format the cells below `SHAPE_COLUMNS`."""
    block = str(shape.block_size or "")
    return [_heads(shape), str(shape.batch), str(shape.n), str(shape.k), shape.dtype, block]


def _heads(shape: Shape) -> str:
    return shape.heads + (f", {shape.query_tokens} tokens" if shape.query_tokens > 1 else "")


def time_cells(result: Modelled) -> list[str]:
    """Format the cells below `TIME_COLUMNS`."""
    kept, dense = result.kept, result.dense
    return [
        f"{kept.cold:.1f}", band_cell(result, "cold"), f"{kept.bound['cold'] / kept.cold:.0%}", f"{dense.cold:.1f}",
        f"{result.gain('cold'):.2f}", f"{result.limit:.2f}", f"{result.gain_over_any_dense:.2f}",
        f"{kept.launch[EXPECTED]:g}", launch_cell(result, "cold"), f"{kept.hot:.1f}", f"{result.gain('hot'):.2f}",
    ]  # fmt: skip


def band_cell(result: Modelled, mode: Mode) -> str:
    """Format the time with the optimistic and with the pessimistic constants."""
    best, _, worst = result.kept.times[mode]
    return f"{best:.1f} to {worst:.1f}"


def launch_cell(result: Modelled, mode: Mode) -> str:
    """Format the gain with the launch on both sides: expected, and least and most over the columns of constants."""
    gains = [result.gain_with_launch(mode, column) for column in range(len(COLUMNS_OF_CONSTANTS))]
    return f"{gains[EXPECTED]:.2f} ({min(gains):.2f} to {max(gains):.2f})"
