"""Points of the launch with cube cores: which core is which, flags between them, and what a product looks like."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..fallback.antiquant import PER_CHANNEL, PER_TOKEN_AND_HEAD
from .calls import STATS, Call, Mismatch, check, make_call, run_on
from .launch_checks import ROWS_FOR_EVERY_CORE

#: The whole numbers of `make_call` times these are int8 numbers whose products need more than 16 bits.
_INT8_UNITS, _INT8_SCALE = 60, 2.0**-6


def cube_block_index(device: str) -> None:
    """Run sixteen vector cores with one round of scores each. The second call finds no right scores of the first."""
    for seed in range(2):
        check(make_call((32, 8), 512, 64, seed=seed), device)


def cube_flags(device: str) -> None:
    """Run more rounds than a ring holds, on cores of which some keep every row and others hardly any."""
    for seed in range(2):
        call = make_call((8, 2), 8192, 512, keep=[8192] * 4 + [64] * 4, seed=seed)
        check(call, device)


def cube_fractals(device: str) -> None:
    """Check K of three fractals of keys and four of columns: any other order multiplies other numbers.

    And K rows that are copied in pairs, in segments that are long enough for that: a KV head for every vector core.
    """
    check(make_call((4, 1), 48, 64), device)
    check(make_call((96, 48), 600, 128, dtype=torch.bfloat16), device)


def ragged_fixpipe(device: str) -> None:
    """Check three heads and rounds that end inside a fractal. Writes beyond it would hit other rounds in the rings."""
    check(make_call((12, 4), 1000, 512), device)


def cube_nan(device: str) -> None:
    """Check that a NaN in a K row reaches the scores of its group, and no other, on cube and on vector cores."""
    for where, group in (("vector cores", 2), ("cube cores", 4)):
        call = _with_nan(make_call((2 * group, 2), 128, 64))
        found = run_on(call, device, STATS)[1][0].isnan().tolist()
        wanted = [True] * group + [False] * group
        if found != wanted:
            raise Mismatch(f"on {where} the heads whose lse is NaN should be {wanted}, but are {found}")


def _with_nan(call: Call) -> Call:
    key = call["key"].clone()
    key[0, 0, 5, 3] = torch.nan
    return call.with_tensors(key=key)


def cube_integers(device: str) -> None:
    """Check int8 K of large numbers: V in int8 too, with scales of channels, and K alone, with scales of its rows."""
    check(_in_int8(make_call((8, 2), 600, 128), ("key", "value"), by_token=False), device)
    check(_in_int8(make_call((8, 2), 600, 128, dtype=torch.bfloat16), ("key",), by_token=True), device)


def _in_int8(call: Call, caches: Sequence[str], *, by_token: bool) -> Call:
    """Put caches into int8 with scales that are powers of two, and let the thresholds follow the new K."""
    for name in caches:
        numbers = (call[name] * _INT8_UNITS).clamp(-127, 127).round().to(torch.int8)
        size = (numbers.shape[0], *numbers.shape[1:3]) if by_token else (numbers.shape[1], numbers.shape[3])
        scale = torch.full(size, _INT8_SCALE, dtype=torch.float32, device="cpu")
        call = call.with_tensors(**{name: numbers, f"{name}_antiquant_scale": scale})
        call = call.with_options(**{f"{name}_antiquant_mode": PER_TOKEN_AND_HEAD if by_token else PER_CHANNEL})
    return call.with_tensors(threshold=call["threshold"] * (_INT8_UNITS * _INT8_SCALE))


def sync_all_cube(device: str) -> None:
    """Repeat `sync_all` in a launch with cube cores."""
    for seed in range(3):
        call = make_call((4, 1), ROWS_FOR_EVERY_CORE, 16, keep=0.01, lengths=[ROWS_FOR_EVERY_CORE - 5], seed=seed)
        check(call, device)
