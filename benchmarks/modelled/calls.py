"""Calls of the operator whose time is modelled, and those that the pages show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from emulator.ascendc import Mode
from toptheta_host_model import WITHOUT_TILING_POINTERS, OperatorRun, kernel_for
from toptheta_npu.timing.shapes import PAPER, SHAPES, Shape, check_for_device

from .step import (
    EXPECTED,
    Measurement,
    Selection,
    Step,
    as_int8,
    everything,
    make_step,
    measure,
    paged,
    run,
    select,
)

#: Correlation of the queries of a group that select alike.
_ALIKE = 0.9
#: Beyond so many bytes of K and V, a shape that nobody asked for is left out: it would run for minutes.
MAX_LAYER_BYTES = 1 << 30
#: Sequences of 128 to 8192 keys.
RAGGED_LENGTHS: tuple[int, ...] = tuple(
    torch.randint(128, 8193, (16,), generator=torch.Generator().manual_seed(0)).tolist()
)

Options = dict[str, Any]
#: What differs from the plain call, by name: the step, and options of `run`.
VARIANTS: Mapping[str, Callable[[Step], tuple[Step, Options]]] = {
    "": lambda step: (step, {}),
    "VMC and statistics": lambda step: (
        replace(step, extra={"value_mean": step.value.float().mean(2)}), {"with_stats": True}
    ),
    "sdc='none'": lambda step: (step, {"sdc": "none"}),
    "post-softmax": lambda step: (step, {"placement": "post_softmax"}),
    "sampled-softmax": lambda step: (step, {"placement": "sampled_softmax"}),
    "lengths on the device": lambda step: (
        replace(step, lengths=torch.full((step.key.shape[0],), step.key.shape[2], dtype=torch.int32)), {}
    ),
    "int8": lambda step: (as_int8(step), {}),
    "int8 K": lambda step: (as_int8(step, ("key",)), {}),
    "int8, a scale per token": lambda step: (as_int8(step, by_token=True), {}),
    "tiling data by DMA, as with CANN 8.1": lambda step: (
        step, {"kernel": kernel_for(torch.float16, flags=[WITHOUT_TILING_POINTERS])}
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One call of the operator.

    Attributes:
        alike: the queries of a group are much alike, and so select much the same; otherwise they are independent.
        ragged: the sequences have `RAGGED_LENGTHS` and keep as large a share of them as the shape does.
        variant: a name of `VARIANTS`.
    """

    shape: Shape
    alike: bool = False
    ragged: bool = False
    variant: str = ""

    def __str__(self) -> str:
        of_one = replace(self.shape, query_tokens=1)
        tokens = f"{self.shape.query_tokens} tokens" if self.shape != of_one else ""
        words = ("alike" if self.alike else "", "ragged" if self.ragged else "", self.variant, tokens)
        return ", ".join([str(of_one), *filter(None, words)])

    def add_token_axis(self, tokens: int) -> Call:
        return replace(self, shape=replace(self.shape, query_tokens=tokens))


@dataclass(frozen=True)
class Modelled:
    """The modelled times of one call with k kept and with everything kept.

    Attributes:
        without_cube: cold microseconds of the same call on the vector cores alone, of groups of query heads.
    """

    call: Call
    kept: Measurement
    dense: Measurement
    without_cube: float | None = None

    @property
    def shape(self) -> Shape:
        return self.call.shape

    @property
    def limit(self) -> float:
        """The most that leaving out V rows can gain where bytes set the pace: 2 / (1 + share of the rows read)."""
        return 2 / (1 + self.kept.rows_read / self.kept.of_rows)

    @property
    def gain_over_any_dense(self) -> float:
        """The gain over the time in which K and V can be read at all, cold. No dense kernel can beat that time."""
        return self.dense.bound["cold"] / self.kept.cold

    def gain(self, mode: Mode = "cold", column: int = EXPECTED) -> float:
        """Compute the gain over the same kernel at θ = -inf."""
        return self.dense.times[mode][column] / self.kept.times[mode][column]

    def gain_with_launch(self, mode: Mode = "cold", column: int = EXPECTED) -> float:
        """Compute the same gain with the launch on both sides."""
        launch = self.kept.launch[column]
        return (self.dense.times[mode][column] + launch) / (self.kept.times[mode][column] + launch)


def model(call: Call) -> Modelled:
    """Run the kernel for one call with k kept and with everything kept.

    Raises:
        TopThetaValueError: the kernel does not take the shape.
    """
    check_for_device(call.shape, "npu")
    everything_kept = replace(call, shape=replace(call.shape, k=call.shape.n))
    without_cube = run_call(call, cube=False).run.timeline("cold").microseconds if call in WITHOUT_CUBE else None
    return Modelled(call, _measured(call), _measured(everything_kept), without_cube)


@lru_cache(maxsize=4)
def _measured(call: Call) -> Measurement:
    step, chosen, options = prepare(call)
    return measure(step, chosen, **options)


def run_call(call: Call, **options: Any) -> OperatorRun:
    """Run the kernel once, with k kept."""
    step, chosen, own = prepare(call)
    return run(step, chosen, **own, **options)


def prepare(call: Call) -> tuple[Step, Selection, Options]:
    """Make the step, the thresholds that keep k, and the options of `run`."""
    shape = call.shape
    step, options = VARIANTS[call.variant](_step(replace(call, shape=replace(shape, k=shape.n), variant="")))
    step = as_int8(step) if shape.cache else step
    chosen = everything(step) if shape.k == shape.n else select(
        step, shape.k / shape.n, placement=options.get("placement", "pre_softmax")
    )  # fmt: skip
    if shape.block_size:
        return paged(step, shape.block_size), chosen, options | {"block_size": shape.block_size}
    return step, chosen, options


@lru_cache(maxsize=1)
def _step(call: Call) -> Step:
    shape = call.shape
    rows = shape.blocks * shape.block_size or shape.n
    lengths = None if rows == shape.n else torch.full((shape.batch,), shape.n, dtype=torch.int32)
    if call.ragged:
        lengths = torch.tensor(RAGGED_LENGTHS, dtype=torch.int32)
    return make_step(replace(shape, n=rows), overlap=_ALIKE if call.alike else 0.0, lengths=lengths)


def _paper(n: int, k: int, **changes: Any) -> Call:
    return Call(replace(PAPER, n=n, k=k), **changes)


def grouped_call(n: int, group: int, *, k: int | None = None, alike: bool = False, variant: str = "") -> Call:
    """Make a call of 8 KV heads with ``group`` query heads each. Each query head keeps k keys, or a sixteenth."""
    return Call(Shape(1, 8 * group, 8, n=n, k=k or n // 16), alike=alike, variant=variant)


PAPER_CALL = Call(PAPER)
#: 32 heads on 48 cores, which takes a SyncAll; 48 take none.
UNEVEN = Call(replace(PAPER, num_heads=32, num_key_value_heads=32))
LENGTHS = tuple(
    _paper(n, k) for n in (2048, 4096, 8192, 16384, 32768) for k in sorted({n // 16, 256}, reverse=True)
)  # fmt: skip
DENSITIES = tuple(_paper(8192, round(64 * share)) for share in (2, 4, 8, 16, 32, 48, 64, 80, 96, 128))
RAGGED = Call(Shape(16, 32, 8, n=8192, k=512), alike=True, ragged=True)
GROUPED = (
    *(grouped_call(n, 4, alike=alike) for n in (2048, 8192) for alike in (False, True)),
    grouped_call(32768, 1), grouped_call(32768, 2, alike=True),
    *(grouped_call(32768, group, alike=alike) for group in (4, 8) for alike in (False, True)),
    RAGGED,
)  # fmt: skip
#: The same with int8 caches.
GROUPED_INT8 = (
    grouped_call(8192, 4, variant="int8"), grouped_call(32768, 4, k=512, variant="int8"),
    *(grouped_call(32768, group, alike=alike, variant="int8") for group in (4, 8) for alike in (False, True)),
)  # fmt: skip
#: Several query tokens.
TOKENS = tuple(
    call.add_token_axis(tokens)
    for call, tokens in (
        (PAPER_CALL, 4),
        *((grouped_call(32768, 4, k=k, alike=alike), 4) for k in (2048, 512) for alike in (False, True)),
        (grouped_call(32768, 4), 2), (grouped_call(32768, 4), 8), (grouped_call(32768, 4, variant="int8"), 4),
    )
)  # fmt: skip
#: Ways to call the kernel at the paper's point.
MODE_CALLS = (
    PAPER_CALL,
    Call(replace(PAPER, dtype="bfloat16")),
    *(Call(replace(PAPER, block_size=rows)) for rows in (128, 16)),
    *(Call(PAPER, variant=variant) for variant in VARIANTS if variant not in ("", "sampled-softmax")),
    Call(replace(PAPER, dtype="bfloat16"), variant="int8"),
)
#: Calls whose thresholds are probabilities, as with `tau`: of the whole row, or of what a sample tells of it.
PROBABILITIES = tuple(
    replace(call, variant=variant)
    for call in (PAPER_CALL, *(grouped_call(n, 4) for n in (2048, 8192, 32768)))
    for variant in ("post-softmax", "sampled-softmax")
)  # fmt: skip
#: The shapes of the default table that are not too large.
DEFAULT = tuple(Call(shape) for shape in SHAPES if shape.layer_bytes <= MAX_LAYER_BYTES)
#: Calls that are modelled without the cube cores, too.
WITHOUT_CUBE = (*GROUPED, *GROUPED_INT8)
#: All calls of the pages, by what they tell.
GROUPS: Mapping[str, tuple[Call, ...]] = {
    "By length": LENGTHS, "By share kept": DENSITIES, "32 heads over 48 cores": (UNEVEN,), "8 KV heads": WITHOUT_CUBE,
    "Several query tokens": TOKENS, "By mode": MODE_CALLS, "By probabilities": PROBABILITIES,
    "The default shapes": DEFAULT,
}  # fmt: skip
#: The same, those of one cache one behind the other.
CALLS: tuple[Call, ...] = tuple(
    sorted(
        {call for calls in GROUPS.values() for call in calls},
        key=lambda call: (str(replace(call, shape=replace(call.shape, k=1))), call.shape.k),
    )
)
