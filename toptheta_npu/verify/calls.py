"""Calls of the operator with made-up inputs, on a device and in the PyTorch fallback on the CPU, and their comparison.

Queries and keys are small whole numbers and the scale is a power of two, so that every order of summation gives the
same scores, and no score lies beside its threshold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import toptheta_npu

from ..fallback.layout import drop_token_axis, row_lengths

STATS = "incremental_attention_with_stats"
PARTIAL = "incremental_attention_partial"
_OUTPUTS = {
    "incremental_attention": ("out",), STATS: ("out", "lse", "kept", "value_rows"),
    PARTIAL: ("out", "maximum", "kept mass", "discarded mass", "kept"),
}  # fmt: skip
#: Relative, of statistics in float32 where their accuracy is not the point.
CLOSE = 1e-4


class Mismatch(Exception):
    """The device did something else than expected; the text says what."""


@dataclass(frozen=True)
class Call:
    """Arguments of a call.

    Attributes:
        tensors: by name, on the CPU.
        options: the other arguments.
    """

    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def with_tensors(self, **tensors: Tensor) -> Call:
        return replace(self, tensors={**self.tensors, **tensors})

    def with_options(self, **options: Any) -> Call:
        return replace(self, options={**self.options, **options})

    def on(self, device: str) -> dict[str, Any]:
        """Build the keyword arguments, with tensors on the device."""
        return {name: tensor.to(device) for name, tensor in self.tensors.items()} | dict(self.options)

    def expected(self, function: str) -> tuple[Tensor, ...]:
        """Compute what the PyTorch fallback gives on the CPU, in float32."""
        wide = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in self.tensors.items()}
        with toptheta_npu.use_backend("fallback", device="cpu"):
            return as_tuple(getattr(toptheta_npu, function)(**wide, **self.options))


def as_tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Put the outputs of any of the functions into a tuple."""
    return (result,) if isinstance(result, Tensor) else tuple(result)


def make_call(
    heads: tuple[int, int], n: int, head_dim: int, *, dtype: torch.dtype = torch.float16,
    keep: float | Sequence[int] = 0.1, lengths: Sequence[int] | None = None, seed: int = 0, tokens: int = 1,
) -> Call:  # fmt: skip
    """Make a call in the layout BNSD.

    Args:
        heads: of the query, and of K and V.
        keep: share of the keys that each row keeps, or how many, head by head; about, where scores are equal.
        lengths: actual_seq_lengths, one for each sequence; without them there is one, and the host knows that no row is
            shared between cores.
        tokens: query tokens of each sequence.
    """
    generator = torch.Generator().manual_seed(seed)
    batch = 1 if lengths is None else len(lengths)

    def whole(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=generator, device="cpu").to(dtype)

    query, key = whole(batch, heads[0], tokens, head_dim), whole(batch, heads[1], n, head_dim)
    value = torch.randn(batch, heads[1], n, head_dim, generator=generator, dtype=torch.float32, device="cpu").to(dtype)
    scale = 2.0 ** -round(math.log2(2 * math.sqrt(head_dim)))
    call = Call({"query": query, "key": key, "value": value}, {"scale_value": scale})
    call = call.with_tensors(threshold=thresholds(call, keep))
    if lengths is None:
        return call
    return call.with_tensors(actual_seq_lengths=torch.tensor(lengths, dtype=torch.int32, device="cpu"))


def thresholds(call: Call, keep: float | Sequence[int]) -> Tensor:
    """Compute thresholds, float32 [B, Hq] or [B, Hq, Sq]: half a step below the score that is the last to be kept."""
    query, key, scale = call["query"].float(), call["key"].float(), call.options["scale_value"]
    heads, tokens, n = query.shape[1], query.shape[2], key.shape[2]
    scores = query @ key.repeat_interleave(heads // key.shape[1], 1).transpose(-1, -2) * scale
    seen = row_lengths(torch.tensor([n], dtype=torch.int64, device="cpu"), None, tokens)[0]
    scores = scores.masked_fill(torch.arange(n, device="cpu") >= seen[:, None], -torch.inf)
    counts = [max(1, round(keep * n))] * heads if isinstance(keep, float) else list(keep)
    ranked = scores.sort(-1, descending=True).values
    last = torch.stack([ranked[:, head, :, count - 1] for head, count in enumerate(counts)], 1)
    return drop_token_axis(last - scale / 2)


def run_on(
    call: Call, device: str, function: str = STATS, placed: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, ...]:
    """Run a call on the device and bring its outputs to the CPU. The tensors ``placed`` are on the device already."""
    result = as_tuple(getattr(toptheta_npu, function)(**call.on(device) | dict(placed or {})))
    return tuple(tensor.cpu() for tensor in result)


def check(
    call: Call,
    device: str,
    function: str = STATS,
    *,
    placed: Mapping[str, Tensor] | None = None,
    close: float = CLOSE,
) -> None:
    """Compare a call on the device with the fallback on the CPU.

    Raises:
        Mismatch: an output differs by more than the rounding of its dtype, or of ``close`` for statistics.
    """
    compare(call, run_on(call, device, function, placed), function, close)


def check_tokens(call: Call, device: str) -> None:
    """Compare a call of several query tokens with the fallback on the CPU, as `check` does one of a single token.

    Of `value_rows` the bounds, since each block of query rows counts what it needs.
    """
    out, lse, kept, value_rows = run_on(call, device)
    union = call.expected(STATS)[3]
    compare(call, (out, lse, kept, union))
    most = kept.view(*union.shape, -1).sum(-1)
    if not ((union <= value_rows) & (value_rows <= most)).all():
        raise Mismatch(f"value_rows: expected {union.tolist()} to {most.tolist()}, got {value_rows.tolist()}")


def compare(call: Call, got: Sequence[Tensor], function: str = STATS, close: float = CLOSE) -> None:
    """Compare outputs with those of the fallback on the CPU; raises as `check` does."""
    largest = float(call["value"].float().abs().nan_to_num(0.0).max())
    rounding = torch.finfo(call["query"].dtype).eps * largest
    for name, one, wanted in zip(_OUTPUTS[function], got, call.expected(function), strict=True):
        if name == "out":
            require_equal(name, one, wanted, torch.full_like(wanted, rounding))
        elif wanted.is_floating_point():
            require_equal(name, one, wanted, close * (1 + wanted.abs()))
        else:
            require_equal(name, one, wanted, torch.zeros_like(wanted))


def require_equal(name: str, got: Tensor, expected: Tensor, tolerance: Tensor) -> None:
    """Raise unless every element is within its tolerance; NaN equals nothing, an infinity itself."""
    wide, wanted = got.double(), expected.double()
    wrong = ~((wide == wanted) | ((wide - wanted).abs() <= tolerance.double()))
    if not wrong.any():
        return
    place = wrong.nonzero()[0].tolist()
    raise Mismatch(
        f"{name}{place}: expected {wanted[tuple(place)].item():.7g}, got {wide[tuple(place)].item():.7g}; "
        f"{int(wrong.sum())} of {wrong.numel()} elements differ"
    )
