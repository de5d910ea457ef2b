"""Tokens per second of ``generate`` with a model, dense and by thresholds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from ..errors import TopThetaValueError
from .clocks import Timing, summarise

if TYPE_CHECKING:
    from ..thresholds import ThresholdTable

DENSE = "dense"


@dataclass(frozen=True)
class Rate:
    """Seconds per new token over the rounds."""

    name: str
    seconds: Timing

    @property
    def tokens_per_second(self) -> float:
        return 1 / self.seconds.median


def compare(
    model: Any, thresholds: ThresholdTable, ks: list[int], tokens: Tensor, *, new_tokens: tuple[int, int] = (8, 40),
    rounds: int = 5, console: Console | None = None,
) -> list[Rate]:  # fmt: skip
    """Measure dense and sparse decoding in turns.

    A token's time is the slope between two numbers of new tokens, so that the prefill, which is the same in both,
    cancels.

    Args:
        model: a decoder-only transformers model in evaluation mode.
        thresholds: calibrated for it.
        ks: the k to decode with.
        tokens: int64 [B, n], the prompt, on the model's device.
        new_tokens: the two numbers of new tokens.

    Raises:
        TopThetaValueError: the numbers of new tokens do not grow, or a round is so noisy that its slope is not above
            0 in most rounds.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        ...     vocab_size=50, max_position_embeddings=64)).eval()
        >>> texts = torch.randint(50, (4, 40))
        >>> table = models.calibrate(model, texts, k=8, layer_k=[0, 0])
        >>> [rate.name for rate in compare(model, table, [8], texts[:1, :20], new_tokens=(2, 32), rounds=5)]
        ['dense', 'k=8']
    """
    short, long = new_tokens
    if not 1 <= short < long:
        raise TopThetaValueError("new_tokens", "two growing numbers from 1", f"{short} and {long}")
    if rounds < 1:
        raise TopThetaValueError("rounds", "a number from 1", str(rounds))
    variants: dict[str, Callable[[], AbstractContextManager[Any]]] = {DENSE: nullcontext}
    variants |= {f"k={k}": _sparsified(model, thresholds, k) for k in ks}
    slopes: dict[str, list[float]] = {name: [] for name in variants}
    for context in variants.values():  # warms up, and refuses what cannot be before anything is measured
        _seconds(model, tokens, short, context)
    for number in track(range(rounds), "Generating", console=console, transient=True, disable=console is None):
        for name in list(variants)[:: 1 if number % 2 == 0 else -1]:
            times = [_seconds(model, tokens, count, variants[name]) for count in (short, long)]
            slopes[name].append((times[1] - times[0]) / (long - short))
    return [_rate(name, values) for name, values in slopes.items()]


def _sparsified(model: Any, thresholds: ThresholdTable, k: int) -> Callable[[], AbstractContextManager[Any]]:
    from ..models import sparsify

    return lambda: sparsify(model, thresholds, k=k)


def _seconds(model: Any, tokens: Tensor, count: int, context: Callable[[], AbstractContextManager[Any]]) -> float:
    with torch.inference_mode(), context():
        started = time.perf_counter()
        result = model.generate(tokens, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        result.cpu()  # a device has finished when its result is there
        return time.perf_counter() - started


def _rate(name: str, slopes: list[float]) -> Rate:
    seconds = summarise(slopes)
    if seconds.median <= 0:
        raise TopThetaValueError(
            "rounds", "a machine quiet enough that more tokens take longer", f"{seconds.median:.2g} s a token ({name})",
            "use more rounds or more new tokens",
        )  # fmt: skip
    return Rate(name, seconds)


def as_table(rates: list[Rate], title: str) -> Table:
    """Tabulate tokens per second and the ratio to dense."""
    table = Table("", "tokens/s", "ms per token", "p10 to p90", "against dense", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    dense = next(rate for rate in rates if rate.name == DENSE)
    for rate in rates:
        median, low, high = (1e3 * value for value in rate.seconds)
        ratio = dense.seconds.median / rate.seconds.median
        spread = f"{low:.1f} to {high:.1f}"
        table.add_row(rate.name, f"{rate.tokens_per_second:.1f}", f"{median:.1f}", spread, f"{ratio:.2f}")
    return table


def as_json(rates: list[Rate]) -> list[dict[str, Any]]:
    return [{"name": rate.name, "seconds_per_token": rate.seconds._asdict()} for rate in rates]
