"""Measures tokens per second of ``generate``: dense, with our kernel over all of V, and with thresholds."""

from __future__ import annotations

import copy
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rich.progress import track
from torch import Tensor

from .._tables import Table
from ..errors import TopThetaValueError
from .clocks import Timing, summarise

if TYPE_CHECKING:
    from transformers import DynamicCache
    from transformers.cache_utils import Cache

    from ..thresholds import ThresholdTable

Clock = Callable[[], float]
DENSE, GROWING, SAME_KERNEL = "dense", "dense, GrowingCache", "same kernel, all of V"
#: Behind the names of what runs over an `Int8Cache`.
IN_INT8 = ", Int8Cache"
#: A threshold that gains less is not worth its loss: timings of a machine with other work differ by more.
_NOTICEABLE = 1.05
_COLUMNS = ("", "tokens/s", "ms per token", "p10 to p90", "speed-up", "kernel", "threshold")


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
        model: the model that runs, such as the same one in another dtype; None: the one that is compared.
        kernel: of a variant by thresholds, the name of the one that runs the same kernel over all of V.
    """

    context: Callable[[], AbstractContextManager[Any]]
    cache_of: Callable[[DynamicCache], Cache] | None = None
    model: Any = None
    kernel: str | None = None


class Gain(NamedTuple):
    """How many times as fast as the best dense attention of the model: ``total = kernel * threshold``.

    Attributes:
        kernel: of the operator and its cache over all of V.
        threshold: of leaving V rows out, by the same operator.
    """

    total: float
    kernel: float
    threshold: float


def growing(prompt: DynamicCache) -> Cache:
    """Make a cache with the prompt's tokens that grows in place."""
    from ..models import GrowingCache

    return GrowingCache.from_dynamic(prompt)


def compare(
    model: Any, chosen: Mapping[str, Variant], tokens: Tensor, *,
    new_tokens: int = 32, rounds: int = 5, clock: Clock = time.perf_counter,
) -> list[Rate]:  # fmt: skip
    """Measure the decode steps of ``generate`` by each variant, in turns.

    Each model runs the prompt once. In every round each variant gets a copy of its cache and generates from there, and
    the time from token to token counts, the first left out.

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
        ['dense', 'dense, GrowingCache', 'same kernel, all of V', 'tau=0.01']
    """
    for name, value, least in (("new_tokens", new_tokens, 2), ("rounds", rounds, 1), ("tokens", tokens.shape[1], 2)):
        if value < least:
            raise TopThetaValueError(name, f"a number from {least}", str(value))
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    with torch.inference_mode():
        models = {name: variant.model or model for name, variant in chosen.items()}
        distinct = {id(each): each for each in models.values()}
        prompts = {number: prompt_cache(each, tokens) for number, each in distinct.items()}

        def run(name: str, count: int) -> list[float]:
            return step_seconds(models[name], tokens, prompts[id(models[name])], chosen[name], count, clock)

        for name in chosen:  # warms up, and refuses what cannot be before anything is measured
            run(name, 2)
        for number in track(range(rounds), "Generating", transient=True, disable=not sys.stdout.isatty()):
            for name in list(chosen)[:: 1 if number % 2 == 0 else -1]:
                seconds[name] += run(name, new_tokens)
    return [Rate(name, summarise(values)) for name, values in seconds.items()]


def variants(
    model: Any, thresholds: ThresholdTable | None, *, ks: Sequence[int] = (), taus: Sequence[float] = (),
    int8: bool = False, others: Iterable[Any] = (),
) -> dict[str, Variant]:  # fmt: skip
    """List ways to generate, by name, for `compare`.

    First comes dense attention with the ``DynamicCache`` of transformers, also of the model in other dtypes, then the
    same with a `GrowingCache`. Then comes our operator with that cache: at ``tau=0``, which reads all of V, and with
    the thresholds of each tau and of each k. On request the operator also runs over an `Int8Cache`.

    Args:
        model: a decoder-only transformers model in evaluation mode.
        thresholds: table calibrated for the model; None: use only tau.
        ks: every k to decode with, using the table.
        taus: every tau to decode with.
        int8: whether to run over an `Int8Cache`, too. It uses the table's scales per channel, else one scale per row.
        others: the same model in other dtypes; only its dense attention is measured.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
        >>> list(variants(load_tiny_llama()[0], load_tiny_llama_thresholds(), ks=[64]))
        ['dense', 'dense, GrowingCache', 'same kernel, all of V', 'k=64']
    """
    from ..models import sparsify

    contexts = {SAME_KERNEL: partial(sparsify, model, tau=0)}
    contexts |= {f"tau={tau:g}": partial(sparsify, model, tau=tau) for tau in taus if tau}
    if thresholds is not None:
        contexts |= {f"k={k}": partial(sparsify, model, thresholds, k=k) for k in ks}
    chosen = {DENSE: Variant(nullcontext)}
    chosen |= {f"{DENSE}, {_dtype_of(other)}": Variant(nullcontext, model=other) for other in others}
    chosen[GROWING] = Variant(nullcontext, growing)
    caches = {"": growing} | ({IN_INT8: _int8_cache(model, thresholds)} if int8 else {})
    for behind, cache_of in caches.items():
        for name, context in contexts.items():
            kernel = None if name == SAME_KERNEL else SAME_KERNEL + behind
            chosen[name + behind] = Variant(context, cache_of, kernel=kernel)
    return chosen


def _dtype_of(model: Any) -> str:
    return str(model.dtype).removeprefix("torch.")


def _int8_cache(model: Any, thresholds: ThresholdTable | None) -> Callable[[DynamicCache], Cache]:
    from ..models import Int8Cache
    from ..models.caches.int8 import has_channel_scales

    table = thresholds if has_channel_scales(thresholds) else None
    return lambda prompt: Int8Cache.from_dynamic(prompt, model.config, table=table)


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


def best_dense(rates: Iterable[Rate], chosen: Mapping[str, Variant]) -> Rate:
    """Choose the fastest of the dense rows that run without anything of this package."""
    own = [rate for rate in rates if rate.name == DENSE or chosen[rate.name].model is not None]
    return min(own, key=lambda rate: rate.seconds.median)


def gains(rates: Sequence[Rate], chosen: Mapping[str, Variant]) -> dict[str, Gain]:
    """Split the gain of each variant by thresholds over the best dense attention into kernel and threshold.

    Example:
        >>> chosen = {"dense": Variant(nullcontext), SAME_KERNEL: Variant(nullcontext, growing),
        ...           "tau=0.001": Variant(nullcontext, growing, kernel=SAME_KERNEL)}
        >>> rates = [Rate(name, Timing(*[seconds] * 3)) for name, seconds in zip(chosen, (0.3, 0.2, 0.1))]
        >>> tuple(round(each, 6) for each in gains(rates, chosen)["tau=0.001"])
        (3.0, 1.5, 2.0)
    """
    seconds = {rate.name: rate.seconds.median for rate in rates}
    dense = best_dense(rates, chosen).seconds.median
    return {
        name: Gain(dense / seconds[name], dense / seconds[variant.kernel], seconds[variant.kernel] / seconds[name])
        for name, variant in chosen.items()
        if variant.kernel is not None
    }


def as_table(rates: Sequence[Rate], chosen: Mapping[str, Variant], title: str) -> Table:
    """Tabulate tokens per second and the speed-up over the best dense attention, split into kernel and threshold."""
    split, dense = gains(rates, chosen), best_dense(rates, chosen)
    rows = []
    for rate in rates:
        median, low, high = (1e3 * value for value in rate.seconds)
        speed_up, gain = dense.seconds.median / rate.seconds.median, split.get(rate.name)
        parts = ("", "") if gain is None else (f"{gain.kernel:.2f}", f"{gain.threshold:.2f}")
        spread = f"{low:.1f} to {high:.1f}"
        rows.append((rate.name, f"{rate.tokens_per_second:.1f}", f"{median:.1f}", spread, f"{speed_up:.2f}", *parts))
    caption = (
        f"speed-up = kernel x threshold, against '{dense.name}', the fastest dense attention without this package. "
        "kernel: our operator and cache, which read all of V. threshold: V rows left out."
    )
    return Table(title, _COLUMNS, rows, caption)


def conclusions(split: Mapping[str, Gain]) -> list[str]:
    """Write a line for each variant by thresholds: what it gains, and where that comes from."""
    lines = []
    for name, gain in split.items():
        line = f"{name}: {gain.total:.2f}x = {gain.kernel:.2f}x by the kernel x {gain.threshold:.2f}x by the threshold."
        if gain.total < 1:
            line += " Dense attention is faster here."
        elif gain.threshold < _NOTICEABLE:
            line += " The threshold gains next to nothing here; tau=0 loses no accuracy."
        lines.append(line)
    return lines


def as_json(rates: Sequence[Rate], chosen: Mapping[str, Variant]) -> dict[str, Any]:
    """Collect the times, and the gains over the best dense attention by name."""
    return {
        "rates": [{"name": rate.name, "seconds_per_token": rate.seconds._asdict()} for rate in rates],
        "best_dense": best_dense(rates, chosen).name,
        "gains": {name: gain._asdict() for name, gain in gains(rates, chosen).items()},
    }
