"""A decode step of a model with the shape of LLaMA-3.2-1B and 32768 keys: native Top-θ, dense, and SDPA.

    python -m benchmarks.decode_step_1b

Weights and cache are random, in bfloat16, so no text has to be read first. They need 8 GiB of memory, and the whole
takes two minutes on two cores. The thresholds are the mean over some tokens of each head's k-th largest score in this
very cache, as calibration would make them; other tokens are timed, and what these really kept is told. All forms share
the model, and take turns in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor
from transformers import Cache, LlamaConfig, LlamaForCausalLM, StaticCache

from benchmarks.tables import Table, show
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.models import model_fingerprint, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.hook.attach import attached
from toptheta_npu.models.hook.attention import AttentionCall
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.timing.clocks import Timing, summarise
from toptheta_npu.timing.environment import free_bytes
from toptheta_npu.timing.measure import TopThetaWrongResultError, relative_error

SHAPE: Mapping[str, Any] = {
    "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 131072,
}  # fmt: skip
BATCH, KEYS, K = 4, 32768, 128
SPARSE, DENSE, SDPA, REST = "native top-θ", "native at θ=-inf", "SDPA of the model", "without attention"
_STEPS, _ROUNDS, _CALIBRATION_STEPS = 4, 7, 3
_SPARE_BYTES = 1 << 30
#: Of the logits, between two dense forms in bfloat16.
_ROUNDING = 0.05


@dataclass(frozen=True)
class Decoder:
    """A random model with a random cache that is full but for a few tokens."""

    model: Any
    cache: Cache
    batch: int
    keys: int

    def rewind(self, steps: int) -> None:
        """Make room for some tokens at the end."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.keys - steps)

    def step(self, generator: torch.Generator) -> Tensor:
        """Compute the logits after a random token of each sequence."""
        tokens = torch.randint(self.model.config.vocab_size, (self.batch, 1), generator=generator)
        out: Tensor = self.model(tokens, **{CACHE_ARGUMENT: self.cache}, use_cache=True).logits
        return out

    @property
    def weight_bytes(self) -> int:
        """Bytes of every weight once. A tied one is read as the output layer alone."""
        return sum(weight.nbytes for weight in self.model.parameters())

    @property
    def key_bytes(self) -> int:
        return sum(layer.keys.nbytes for layer in self.cache.layers)


def make_decoder(shape: Mapping[str, Any] = SHAPE, batch: int = BATCH, keys: int = KEYS) -> Decoder:
    """Draw the weights and fill the cache.

    Raises:
        TopThetaValueError: they do not fit into the memory.
    """
    config = LlamaConfig(**shape)
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in LlamaForCausalLM(config).parameters())
    rows = 2 * config.num_hidden_layers * batch * config.num_key_value_heads * keys
    needed, free = 2 * weights + 2 * rows * config.head_dim + _SPARE_BYTES, free_bytes("cpu")
    if needed > free:
        raise TopThetaValueError("memory", f"{needed / 2**30:.1f} GiB", f"{free / 2**30:.1f} GiB that are free")
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    cache = StaticCache(config=config, max_cache_len=keys)
    cache.early_initialization(batch, config.num_key_value_heads, config.head_dim, torch.bfloat16, "cpu")
    drawn = torch.randn(cache.layers[0].keys.shape, dtype=torch.bfloat16)
    for number, layer in enumerate(cache.layers):  # the same rows in another order: drawing takes long
        layer.keys.copy_(drawn.roll(number * keys // 64, 2))
        layer.values.copy_(drawn.roll((2 * number + 1) * keys // 128, 2))
    return Decoder(model, cache, batch, keys)


#: Makes the context in which the model runs in one way.
Form = Callable[[], AbstractContextManager[Any]]


class Reads(NamedTuple):
    """What a step by thresholds keeps per head, and the bytes that it reads: weights, K, and the V rows needed."""

    kept: float
    weight_bytes: int
    key_bytes: int
    value_bytes: int

    @property
    def limit(self) -> float:
        """The gain over dense if a step took as long as its bytes: weights, K, and V or the rows needed of it."""
        everything = self.weight_bytes + 2 * self.key_bytes
        return everything / (self.weight_bytes + self.key_bytes + self.value_bytes)


class KthScores:
    """Note the k-th largest score of each row, and attend densely."""

    def __init__(self, k: int) -> None:
        self._k = k
        self.rows: list[Tensor] = []  # [B, Hq] each

    def attend(self, call: AttentionCall) -> Tensor:
        query = call.query.squeeze(2).unflatten(1, (call.key.shape[1], -1)).float() * call.scaling
        found = [
            (rows @ keys.float().transpose(-1, -2)).topk(self._k).values[..., -1].flatten()
            for rows, keys in zip(query, call.key, strict=True)
        ]
        self.rows.append(torch.stack(found))
        return call.dense()


class NoAttention:
    """Leave the attention out. What is left is the rest of the step."""

    def attend(self, call: AttentionCall) -> Tensor:
        return torch.zeros_like(call.query)


def calibrate(decoder: Decoder, k: int, generator: torch.Generator) -> ThresholdTable:
    """Average the k-th largest scores of some random tokens into a table, for each layer and head."""
    rules = [KthScores(k) for _ in decoder.cache.layers]
    with attached(decoder.model, rules.__getitem__):
        decoder.rewind(_CALIBRATION_STEPS)
        for _ in range(_CALIBRATION_STEPS):
            decoder.step(generator)
    return table_of(decoder, k, torch.stack([torch.cat(rule.rows).mean(0) for rule in rules]))


def table_of(decoder: Decoder, k: int, theta: Tensor) -> ThresholdTable:
    """Make a table of thresholds [L, Hq] for this cache's length."""
    layers, heads = theta.shape
    return ThresholdTable(
        theta=theta[None, :, :, None], k=torch.tensor([k]), lengths=torch.tensor([decoder.keys]),
        counts=torch.full((layers, heads, 1), _CALIBRATION_STEPS * decoder.batch),
        std=torch.zeros(1, layers, heads, 1), placement="pre_softmax", estimator="algorithm1", alpha=0.0,
        layer_k=[0] * layers, fingerprint=model_fingerprint(decoder.model),
    )  # fmt: skip


@torch.inference_mode()
def measure(decoder: Decoder, *, k: int = K, rounds: int = _ROUNDS) -> tuple[dict[str, Timing], Reads]:
    """Measure the seconds of each form of the step, and what a step by thresholds reads.

    Raises:
        TopThetaWrongResultError: the two dense forms give other logits.
    """
    generator = torch.Generator().manual_seed(1)
    sparse = calibrate(decoder, k, generator)
    dense = table_of(decoder, k, torch.full_like(sparse.theta[0, :, :, 0], -math.inf))
    forms: dict[str, Form] = {
        SPARSE: lambda: sparsify(decoder.model, sparse, k=k),
        DENSE: lambda: sparsify(decoder.model, dense, k=k),
        SDPA: nullcontext,
        REST: lambda: attached(decoder.model, lambda layer: NoAttention()),
    }
    check(decoder, forms)
    return times(decoder, forms, rounds, generator), count(decoder, sparse, k, generator)


def check(decoder: Decoder, forms: Mapping[str, Form]) -> None:
    """Compare the logits at θ = -inf with those of the model as it is."""
    logits = []
    for name in (DENSE, SDPA):
        decoder.rewind(1)
        with forms[name]():
            logits.append(decoder.step(torch.Generator().manual_seed(2)))
    error = relative_error(logits[0], logits[1].float())
    if not error <= _ROUNDING:
        raise TopThetaWrongResultError(f"{DENSE}: expected the logits of {SDPA} within {_ROUNDING}, got {error:.3g}")


def times(decoder: Decoder, forms: Mapping[str, Form], rounds: int, generator: torch.Generator) -> dict[str, Timing]:
    """Time the steps in seconds. The forms take turns, and each turn begins with a step that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds):
        for name in list(forms)[:: 1 if number % 2 == 0 else -1]:
            decoder.rewind(1 + _STEPS)
            with forms[name]():
                decoder.step(generator)  # sums V up, which later steps only add a row to
                for _ in range(_STEPS):
                    started = perf_counter()
                    decoder.step(generator)
                    seconds[name].append(perf_counter() - started)
    return {name: summarise(values) for name, values in seconds.items()}


def count(decoder: Decoder, table: ThresholdTable, k: int, generator: torch.Generator) -> Reads:
    """Count what steps like the timed ones keep per row, and the bytes that they read."""
    decoder.rewind(_STEPS)
    with sparsify(decoder.model, table, k=k, statistics=True) as recording:
        for _ in range(_STEPS):
            decoder.step(generator)
    layers = recording.statistics()
    kept = torch.cat([layer.kept for layer in layers]).float().mean().item()
    density = torch.cat([layer.value_rows for layer in layers]).float().mean().item() / decoder.keys
    return Reads(kept, decoder.weight_bytes, decoder.key_bytes, int(density * decoder.key_bytes))


def as_table(seconds: Mapping[str, Timing], reads: Reads) -> Table:
    """Tabulate the times, one line per form."""
    rest = seconds[REST].median
    rows = []
    for name, timing in seconds.items():
        median, low, high = (1e3 * part for part in timing)
        attention = "" if name == REST else f"{1 - rest / timing.median:.0%}"
        rows.append([
            name, f"{median:.0f}", f"{low:.0f} to {high:.0f}", attention,
            *(f"{seconds[other].median / timing.median:.2f}" for other in (DENSE, SDPA)),
        ])  # fmt: skip
    columns = ("", "ms per token", "p10 to p90", "attention", f"over {DENSE}", f"over {SDPA}")
    gigabytes = ", ".join(f"{count / 1e9:.2f}" for count in reads[1:])
    title = (
        f"A decode step that keeps {reads.kept:.0f} per head and reads {gigabytes} GB of weights, K and V, "
        f"so that bytes allow {reads.limit:.2f}"
    )
    return Table(title, columns, rows)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which the forms take turns.")] = _ROUNDS,
) -> None:
    """Measure a decode step of a model with the shape of LLaMA-3.2-1B on this CPU."""
    show(as_table(*measure(make_decoder(), rounds=rounds)))


if __name__ == "__main__":
    typer.run(main)
