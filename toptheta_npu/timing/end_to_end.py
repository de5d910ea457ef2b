"""Tokens per second of ``generate`` with a model, dense and by thresholds."""

from __future__ import annotations

import copy
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor

from ..errors import TopThetaValueError
from .clocks import Timing, summarise

if TYPE_CHECKING:
    from transformers import DynamicCache
    from transformers.cache_utils import Cache

    from ..thresholds import ThresholdTable

Clock = Callable[[], float]
DENSE, GROWING, INFINITE = "dense", "dense, GrowingCache", "θ=-inf"
#: Behind the names of what runs over an `Int8Cache`.
IN_INT8 = ", Int8Cache"


@dataclass(frozen=True)
class Rate:
    """Seconds per new token over the rounds."""

    name: str
    seconds: Timing

    @property
    def tokens_per_second(self) -> float:
        return 1 / self.seconds.median


@dataclass(frozen=True)
class Variant:
    """A way of generating.

    Attributes:
        context: that the model runs in.
        cache_of: makes its cache from a copy of the prompt's; None: it is that copy.
    """

    context: Callable[[], AbstractContextManager[Any]]
    cache_of: Callable[[DynamicCache], Cache] | None = None


def growing(prompt: DynamicCache) -> Cache:
    """Make a cache with the prompt's tokens that grows in place."""
    from ..models import GrowingCache

    return GrowingCache.from_dynamic(prompt)


def compare(
    model: Any, chosen: Mapping[str, Variant], tokens: Tensor, *,
    new_tokens: int = 32, rounds: int = 5, clock: Clock = time.perf_counter,
) -> list[Rate]:  # fmt: skip
    """Measure the decode steps of ``generate`` by each variant, in turns.

    The prompt is run once. In every round each variant gets a copy of its cache and generates from there, and the time
    from token to token counts, the first left out.

    Args:
        model: a decoder-only transformers model in evaluation mode.
        chosen: what `variants` gives of it.
        tokens: int64 [B, n], the prompt, on the model's device.
        new_tokens: tokens that each variant generates in a round.
        clock: tells seconds.

    Raises:
        TopThetaValueError: ``new_tokens``, ``rounds`` or the prompt are too few.
        TopThetaNotImplementedError: the model has layers that an `Int8Cache` does not take.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        ...     vocab_size=50, max_position_embeddings=64)).eval()
        >>> chosen = variants(model, None, taus=[0.01])
        >>> [rate.name for rate in compare(model, chosen, torch.randint(50, (1, 20)), new_tokens=4, rounds=2)]
        ['dense', 'dense, GrowingCache', 'tau=0.01']
    """
    for name, value, least in (("new_tokens", new_tokens, 2), ("rounds", rounds, 1), ("tokens", tokens.shape[1], 2)):
        if value < least:
            raise TopThetaValueError(name, f"a number from {least}", str(value))
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    with torch.inference_mode():
        prompt = prompt_cache(model, tokens)
        for variant in chosen.values():  # warms up, and refuses what cannot be before anything is measured
            step_seconds(model, tokens, prompt, variant, 2, clock)
        for number in track(range(rounds), "Generating", transient=True, disable=not sys.stdout.isatty()):
            for name in list(chosen)[:: 1 if number % 2 == 0 else -1]:
                seconds[name] += step_seconds(model, tokens, prompt, chosen[name], new_tokens, clock)
    return [Rate(name, summarise(values)) for name, values in seconds.items()]


def variants(
    model: Any, thresholds: ThresholdTable | None, *, ks: Sequence[int] = (), taus: Sequence[float] = (),
    int8: bool = False,
) -> dict[str, Variant]:  # fmt: skip
    """List ways to generate, by name, for `compare`.

    They are dense attention with the ``DynamicCache`` of transformers, the same with a `GrowingCache`, and with it by
    thresholds: those of each tau and of each k, and where there is a table -inf, which is dense attention by the same
    operator. On request those by thresholds over an `Int8Cache`, too.

    Args:
        model: a decoder-only transformers model in evaluation mode.
        thresholds: calibrated for it; None: by tau alone.
        ks: the k to decode with by them.
        taus: the tau to decode with.
        int8: also over an `Int8Cache`, with the scales per channel of the table if it has them, else with one per row.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
        >>> list(variants(load_tiny_llama()[0], load_tiny_llama_thresholds(), ks=[64]))
        ['dense', 'dense, GrowingCache', 'θ=-inf', 'k=64']
    """
    from ..models import sparsify
    from ..thresholds import ThresholdTable

    contexts = {f"tau={tau:g}": partial(sparsify, model, tau=tau) for tau in taus}
    if thresholds is not None:
        nothing = ThresholdTable(**{**vars(thresholds), "theta": torch.full_like(thresholds.theta, -torch.inf)})
        contexts[INFINITE] = partial(sparsify, model, nothing, k=int(thresholds.k[0]))
        contexts |= {f"k={k}": partial(sparsify, model, thresholds, k=k) for k in ks}
    chosen = {DENSE: Variant(nullcontext), GROWING: Variant(nullcontext, growing)}
    chosen |= {name: Variant(context, growing) for name, context in contexts.items()}
    if int8:
        cache_of = _int8_cache(model, thresholds)
        chosen |= {f"{name}{IN_INT8}": Variant(context, cache_of) for name, context in contexts.items()}
    return chosen


def has_channel_scales(thresholds: ThresholdTable | None) -> bool:
    """Tell whether there is a table with the static scales of an `Int8Cache`."""
    return (
        thresholds is not None and thresholds.key_cache_scale is not None and thresholds.value_cache_scale is not None
    )


def _int8_cache(model: Any, thresholds: ThresholdTable | None) -> Callable[[DynamicCache], Cache]:
    from ..models import Int8Cache

    table = thresholds if has_channel_scales(thresholds) else None

    def cache_of(prompt: DynamicCache) -> Cache:
        cache = Int8Cache(model.config, table=table)
        layers: list[Any] = prompt.layers
        for number, layer in enumerate(layers):
            cache.update(layer.keys, layer.values, number)
        return cache

    return cache_of


def prompt_cache(model: Any, tokens: Tensor) -> DynamicCache:
    """Run the prompt but for its last token."""
    from transformers import DynamicCache

    from ..models.caches.naming import CACHE_ARGUMENT

    cache = DynamicCache(config=model.config)
    model.generate(tokens[:, :-1], max_new_tokens=1, do_sample=False, **{CACHE_ARGUMENT: cache})
    return cache


def step_seconds(
    model: Any, tokens: Tensor, prompt: DynamicCache, variant: Variant, count: int, clock: Clock = time.perf_counter
) -> list[float]:
    """Generate after a prompt whose cache holds all but its last token. Measure from each new token to the next."""
    from ..models.caches.naming import CACHE_ARGUMENT

    own = copy.deepcopy(prompt)
    cache = own if variant.cache_of is None else variant.cache_of(own)
    ticks: list[float] = []

    def tick(_: Tensor, scores: Tensor) -> Tensor:
        scores[0, 0].item()  # a device has finished when its result is there
        ticks.append(clock())
        return scores

    with variant.context():
        model.generate(
            tokens, **{CACHE_ARGUMENT: cache}, max_new_tokens=count, min_new_tokens=count, do_sample=False,
            logits_processor=[tick],
        )  # fmt: skip
    return [later - earlier for earlier, later in itertools.pairwise(ticks)]


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
