"""The most that a threshold can gain, from the bytes that a decode step reads: weights, K and V.

A threshold leaves V rows out. Weights and K are read in full.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SLIDING = "sliding_attention"
#: Parts of a name: weights that no step of decoding reads, weights that look up a token, and those that score tokens.
_OTHER_TOWERS = re.compile(r"(^|\.)[^.]*(vision|visual|image|audio|speech)[^.]*\.")
_EMBEDDINGS = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in)\.weight$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.")
_EXPERT = re.compile(r"\.experts\.")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class StepBytes:
    """Bytes that a decode step of a whole batch reads.

    Attributes:
        keys, values: of layers that attend to all tokens.
        windows: keys and values of layers with a sliding window, which stay dense.
    """

    weights: float
    keys: int
    values: int
    windows: int = 0

    @property
    def cache(self) -> int:
        return self.keys + self.values + self.windows

    @property
    def cache_share(self) -> float:
        return self.cache / (self.weights + self.cache)

    def attention_gain(self, value_rows: float = 0.0) -> float:
        """Divide the attention's bytes by those that are left when only this part of the V rows is read.

        Example:
            >>> StepBytes(weights=100, keys=50, values=50).attention_gain()
            2.0
        """
        return self.cache / (self.cache - (1 - value_rows) * self.values)

    def model_gain(self, value_rows: float = 0.0) -> float:
        """Divide all bytes by those that are left when only this part of the V rows is read.

        Example:
            >>> StepBytes(weights=100, keys=50, values=50).model_gain()
            1.3333333333333333
        """
        every = self.weights + self.cache
        return every / (every - (1 - value_rows) * self.values)


@dataclass(frozen=True)
class ModelBytes:
    """What a model reads in a decode step.

    Attributes:
        weights: bytes that a step reads at least.
        query_heads, kv_heads: of a layer; the query heads of a group share a KV head.
        element: bytes of a number in the KV cache.
        full_layers: how many layers attend to all tokens.
        windows: tokens that each of the other layers attends to.
    """

    weights: float
    query_heads: int
    kv_heads: int
    head_dim: int
    element: int
    full_layers: int
    windows: tuple[int, ...] = ()

    @property
    def group(self) -> int:
        return self.query_heads // self.kv_heads

    def step(self, length: int, batch: int = 1) -> StepBytes:
        """Count the bytes of a step of ``batch`` sequences of ``length`` tokens.

        Example:
            >>> llama = ModelBytes(16e9, query_heads=32, kv_heads=8, head_dim=128, element=2, full_layers=32)
            >>> llama.step(8192).cache
            1073741824
        """
        row = batch * self.kv_heads * self.head_dim * self.element
        keys = row * length * self.full_layers
        return StepBytes(self.weights, keys, keys, 2 * row * sum(min(length, window) for window in self.windows))


def model_bytes(config: Any, tensors: Mapping[str, int], element: int) -> ModelBytes:
    """Count what a model reads in a decode step.

    Args:
        config: of its decoder.
        tensors: the bytes of its weights by name.
        element: bytes of a number in the KV cache.
    """
    layers, heads = int(config.num_hidden_layers), int(config.num_attention_heads)
    kinds = getattr(config, "layer_types", None) or []
    sliding = [kind for kind in kinds if kind == _SLIDING]
    window = getattr(config, "sliding_window", None) or 0
    return ModelBytes(
        weights_read(config, tensors), heads, int(getattr(config, "num_key_value_heads", None) or heads),
        int(getattr(config, "head_dim", None) or config.hidden_size // heads), element,
        layers - len(sliding), (int(window),) * len(sliding),
    )  # fmt: skip


def weights_read(config: Any, tensors: Mapping[str, int]) -> float:
    """Count the bytes of weights that a decode step reads at least.

    Those are all but other towers, the table of input embeddings where the output has one of its own, and the experts
    that a token does not choose.
    """
    has_head = any(_HEAD.search(name) for name in tensors)
    chosen = getattr(config, "num_experts_per_tok", None)
    experts = next((count for name in _EXPERTS if (count := getattr(config, name, None))), None)
    share = chosen / experts if chosen and experts else 1.0
    total = 0.0
    for name, size in tensors.items():
        if _OTHER_TOWERS.search(name) or (has_head and _EMBEDDINGS.search(name)):
            continue
        total += size * (share if _EXPERT.search(name) else 1.0)
    return total


def limit_in_words(size: ModelBytes, length: int, batch: int = 1) -> str:
    """Say in a sentence what a threshold can gain at most.

    Example:
        >>> limit_in_words(ModelBytes(1e9, 14, 2, 64, 2, 24), 4096).partition(" and the ")[2]
        'whole model at most 1.02x faster.'
    """
    step = size.step(length, batch)
    return (
        f"At {length} tokens and batch {batch}, a threshold makes attention at most {step.attention_gain():.2f}x and "
        f"the whole model at most {step.model_gain():.2f}x faster."
    )
