"""int8 caches on Ascend NPUs: what a checkpoint with C8 scales has in vllm-ascend, but with rows that can be gathered.

Such a checkpoint says ``"kv_cache_type": "C8"`` and has, for each channel of the keys and values of a layer, a static
scale (``k_proj.kv_cache_scale``, ``v_proj.kv_cache_scale``) and an offset. vllm-ascend loads them into the layer, gives
it an int8 cache [blocks, block_size, Hkv, D] and turns its implementation into one that writes the cache in NZ, where a
row of 128 lies in four places. `C8Impl` takes that one's place: it writes rows as they are, into the same memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaBackendError, TopThetaNotImplementedError, TopThetaValueError
from ..fallback.antiquant import PER_CHANNEL, dequantise, quantise
from .ascend_metadata import of_sequences
from .ascend_signatures import DISTRIBUTION, record
from .drafts import copy_indices_to_device, tokens_of
from .engine import DENSE, has_window
from .int8_pages import attend_to_all, dequantise_pages, renumbered
from .layers import LayerRule
from .layouts import Antiquant, Layout, Pages, view_pages
from .steps import Step, attend

#: What vllm-ascend turns implementations into.
THEIR_IMPL = "AscendC8AttentionBackendImpl"
#: Dense rows of sequences with up to as many new tokens are read as they lie, once for each token. For more, pages are
#: multiplied out.
FEW_TOKENS = 8


def take_over(layers: Mapping[str, Any], ours: type, rank: int, num_ranks: int) -> None:
    """Turn the implementations of layers with C8 scales into ours, and give them the scales of this rank's heads.

    Args:
        layers: by their names, with their weights.
        ours: `C8Impl` before the other classes.
        rank, num_ranks: of this process among those that share a layer.

    Raises:
        TopThetaBackendError: the scales have other names.
        TopThetaNotImplementedError: there are offsets, or a sliding window, whose rows nothing here computes.
        TopThetaValueError: there are not as many scales as channels.
    """
    for name, layer in layers.items():
        if type(layer.impl).__name__ == THEIR_IMPL:
            impl = layer.impl
            if has_window(impl.sliding_window):
                raise TopThetaNotImplementedError(
                    "sliding_window", f"none in {name}, whose cache is int8", str(impl.sliding_window),
                    "leave Top-Theta out",
                )  # fmt: skip
            impl.__class__ = ours
            keys, values = (
                _scale(name, layer, kind, impl.num_kv_heads, impl.head_size, rank, num_ranks) for kind in "kv"
            )
            impl.antiquant = Antiquant(keys, values, PER_CHANNEL, PER_CHANNEL)


def _scale(name: str, layer: Any, kind: str, heads: int, head_dim: int, rank: int, num_ranks: int) -> Tensor:
    """Get the scales of the keys ("k") or values ("v") of this rank's heads, float32 [Hkv, D]."""
    names = [f"{kind}_cache_{part}" for part in ("offset", "scale")]
    missing = [each for each in names if not hasattr(layer, each)]
    if missing:
        raise TopThetaBackendError(
            DISTRIBUTION, f"a version that gives {name} {missing[0]}", "none",
            f"install version {' or '.join(record()['c8_versions'])}",
        )  # fmt: skip
    offset, scale = (Tensor.float(getattr(layer, each).data) for each in names)
    if bool(offset.any()):
        raise TopThetaNotImplementedError(
            f"{kind}_cache_offset", f"0 in {name}: int8 caches are symmetric", f"up to {float(offset.abs().max()):g}",
            "quantise the checkpoint's cache symmetrically, or leave Top-Theta out",
        )  # fmt: skip
    if scale.numel() == 1:
        return scale.flatten().expand(heads, head_dim).contiguous()
    total, left = divmod(scale.numel(), head_dim)
    if left or total % heads:
        raise TopThetaValueError(
            f"{kind}_cache_scale", f"a scale for each of {head_dim} channels of the KV heads of {name}",
            str(scale.numel()), "use the checkpoint of this model",
        )  # fmt: skip
    first = rank * total // num_ranks
    return scale.view(total, head_dim)[first : first + heads].contiguous()


class C8Impl:
    """One layer with C8 scales: stands before `ascend.Impl`, and computes all of a step itself but for prompts."""

    rule: Any
    antiquant: Antiquant
    layout: Layout
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    key_cache: Any
    value_cache: Any
    _pages: Any
    _prepared: Any
    _their_attention: Any

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Any,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Write the new rows of a step into the cache and compute its attention.

        Args:
            query, output: [T, Hq, D], padding included.
            key, value: [T, Hkv, D].
        """
        if attn_metadata is None:  # vLLM warms up
            return output.fill_(0)
        step, pages = self._prepared(attn_metadata)
        tokens = attn_metadata.num_actual_tokens
        query, out = (rows.view(-1, self.num_heads, self.head_size) for rows in (query, output))
        key, value = (rows.view(-1, self.num_kv_heads, self.head_size)[:tokens] for rows in (key, value))
        rounded = self._write(key, value, pages, attn_metadata.slot_mapping[:tokens])
        if self.rule is DENSE or (len(step.several) and self.rule.prefill == "dense"):
            self._dense(query, rounded, pages, attn_metadata, step, out)
        if isinstance(self.rule, LayerRule):
            attend(step, query, pages.keys, pages.values, self.rule, out)
        output[tokens:] = 0  # padding, with which vLLM goes on to compute
        return output

    def _write(self, key: Tensor, value: Tensor, pages: Pages, slots: Tensor) -> list[Tensor]:
        """Round rows and write them into their places. Return what they stand for now."""
        # a captured step has rows of no sequence: they go to page 0, which vLLM keeps free
        page, row = slots.long().clamp_min(0) // pages.keys.shape[2], slots.long().clamp_min(0) % pages.keys.shape[2]
        rounded = []
        for rows, cache, scale in zip((key, value), pages[:2], self.antiquant[:2], strict=True):
            numbers = quantise(rows, scale)
            cache.transpose(1, 2)[page, row] = numbers
            rounded.append(dequantise(numbers, scale).to(rows.dtype))
        return rounded

    def _dense(
        self, query: Tensor, rounded: list[Tensor], pages: Pages, metadata: Any, step: Step, out: Tensor
    ) -> None:
        """Write the rows that attend to all keys: many of a sequence in vllm-ascend's kernel, few as they lie."""
        counts = np.diff(step.query_start_loc.numpy())
        dense = np.flatnonzero(counts) if self.rule is DENSE else step.several.numpy()
        few, many = dense[counts[dense] <= FEW_TOKENS], dense[counts[dense] > FEW_TOKENS]
        if len(few):
            attend_to_all(step, few, query, pages, self.scale, out)
        if len(many):
            self._prompts(query, rounded, pages, metadata, step, many, out)

    def _prompts(
        self, query: Tensor, rounded: list[Tensor], pages: Pages, metadata: Any, step: Step, chosen: np.ndarray,
        out: Tensor,
    ) -> None:  # fmt: skip
        """Run some sequences in vllm-ascend's kernel, over pages of theirs that are multiplied out."""
        tokens, of = copy_indices_to_device(query.device, tokens_of(step.query_start_loc.numpy(), chosen), chosen)
        taken, table = renumbered(step.block_table[of], -(-step.seq_lens[of].long() // pages.keys.shape[2]))
        room = [cache.new_empty((len(taken), *cache.shape[1:]), dtype=query.dtype) for cache in self._pages[0]]
        dequantise_pages(pages, taken, view_pages(room, self.layout, self.num_kv_heads, self.head_size))
        cut = of_sequences(metadata, step, torch.from_numpy(chosen), tokens)
        held, part = (self.key_cache, self.value_cache), torch.empty_like(out[tokens])
        self.key_cache, self.value_cache = room
        try:
            rows = (each[tokens] for each in (query, *rounded))
            arguments = tuple(room), dataclasses.replace(cut, block_tables=table), part
            out[tokens] = self._their_attention(*rows, *arguments)
        finally:
            self.key_cache, self.value_cache = held
