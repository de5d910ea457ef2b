"""A model runner in small: steps of several sequences through the shim's layers, and what each row has to be."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.serving.ascend_parts import (
    AscendAttentionBackendImpl,
    AscendAttentionMetadataBuilder,
    AscendC8AttentionBackendImpl,
    FullAttentionSpec,
    common_metadata,
    dense_row,
)
from toptheta_npu import incremental_attention
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.vllm import ascend, ascend_c8
from toptheta_npu.vllm.engine import DENSE

LAYERS, HEADS, KV_HEADS, HEAD_DIM, K = 2, 4, 2, 32, 8
#: A third of random scores pass.
THETA = 0.4


class OurImpl(ascend.Impl, AscendAttentionBackendImpl):
    """As `install` puts them together."""


class OurC8Impl(ascend_c8.C8Impl, ascend.Impl, AscendAttentionBackendImpl):
    """As `install` puts them together."""


class OurBuilder(ascend.Builder, AscendAttentionMetadataBuilder):
    """As `install` puts them together."""

    c8_impl = OurC8Impl


class Config:
    """vLLM's configuration, as far as it is looked at."""

    def __init__(self, settings: dict[str, Any], device: str = "cpu", **changes: Any) -> None:
        text = SimpleNamespace(num_hidden_layers=LAYERS, num_attention_heads=HEADS)
        self.model_config = SimpleNamespace(
            use_mla=False, hf_text_config=text, model="none", revision=None, max_model_len=512,
            get_num_attention_heads=lambda parallel: HEADS,
        )  # fmt: skip
        self.parallel_config = SimpleNamespace(rank=0, tensor_parallel_size=1)
        self.cache_config = SimpleNamespace(kv_offloading_size=None)
        self.compilation_config = SimpleNamespace(static_forward_context={}, cudagraph_mode=mode("NONE"))
        self.kv_transfer_config = self.speculative_config = self.lora_config = None
        self.additional_config: dict[str, Any] = {"top_theta": settings} if settings else {}
        for name, value in changes.items():
            setattr(self, name, value)


def ngrams(tokens: int) -> Any:
    """What vLLM's configuration says of drafts by n-grams."""
    return SimpleNamespace(method="ngram", num_speculative_tokens=tokens)


def mode(name: str) -> Any:
    """A mode of graphs."""
    return SimpleNamespace(name=name)


def save_table(folder: Path, layers: int = LAYERS, placement: str = "pre_softmax") -> Path:
    """A table that lets pass what is above `THETA` in rows of more than K keys; post-softmax a hundredth of it."""
    shape, theta = (1, layers, HEADS, 2), THETA if placement == "pre_softmax" else THETA / 100
    table = ThresholdTable(
        theta=torch.full(shape, theta), k=torch.tensor([K]), lengths=torch.tensor([16, 512]),
        counts=torch.ones(shape[1:], dtype=torch.int64), std=torch.zeros(shape), placement=placement,
        estimator="algorithm1", alpha=0.1, layer_k=[0] * layers, fingerprint="demo",
    )  # fmt: skip
    table.save(folder / "model.theta")
    return folder / "model.theta"


def make_impl(impl: type = OurImpl, **changes: Any) -> Any:
    """An implementation of one layer, as vLLM makes it."""
    arguments: dict[str, Any] = {
        "num_heads": HEADS, "head_size": HEAD_DIM, "scale": HEAD_DIM**-0.5, "num_kv_heads": KV_HEADS,
        "alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto", "logits_soft_cap": None,
        "attn_type": "decoder", "kv_sharing_target_layer_name": None,
    } | changes  # fmt: skip
    return impl(**arguments)


class Served:
    """Two layers, their caches, and buffers that every step fills anew, as the model runner does.

    ``side_by_side``: the values of a page lie behind its keys. ``c8``: the cache is int8, with scales of a checkpoint.
    """

    def __init__(
        self, table: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32, block_size: int = 16,
        batch: int = 4, blocks: int = 64, side_by_side: bool = False, c8: bool = False,
        impl: dict[str, Any] | None = None, windows: Collection[int] = (), config: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.device, self.dtype, self.block_size = device, dtype, block_size
        given = {"table": str(table), "k": K, "check_weights": False, "metrics": False, "dense_below": 0} | settings
        self.config = Config(given, device, **(config or {}))
        self.c8, self.theta = c8, THETA
        self.vmc = settings.get("vmc", True)
        heads_first = os.environ.get("VLLM_KV_CACHE_LAYOUT") in ("HND", "LBHNC")
        page = (KV_HEADS, block_size) if heads_first else (block_size, KV_HEADS)
        shape = (blocks, 2, *page, HEAD_DIM) if side_by_side else (2, blocks, *page, HEAD_DIM)
        self._kinds_at = int(side_by_side)
        self.layers = {}
        for index in range(LAYERS):
            given_impl = {**(impl or {}), **({"sliding_window": 128} if index in windows else {})}
            self.layers[f"model.layers.{index}.self_attn.attn"] = self._layer(shape, given_impl)
        self.config.compilation_config.static_forward_context.update(self.layers)
        self.builder: Any = OurBuilder(FullAttentionSpec(), list(self.layers), self.config, torch.device(device))
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.table = torch.zeros(batch, 8, dtype=torch.int32, device=device)
        self.slots = torch.full((256,), -1, dtype=torch.int32, device=device)
        self.free = list(range(blocks))
        self.pages: list[list[int]] = []
        #: Drafts by which lengths on the host are too long.
        self.ahead = torch.zeros(batch, dtype=torch.int32)
        self.rows: list[list[tuple[Tensor, Tensor]]] = []
        self._random = torch.Generator().manual_seed(0)

    def _layer(self, shape: tuple[int, ...], impl: dict[str, Any]) -> SimpleNamespace:
        if not self.c8:
            caches = torch.full(shape, torch.nan, dtype=self.dtype, device=self.device).unbind(self._kinds_at)
            return SimpleNamespace(impl=make_impl(**impl), kv_cache=caches)
        caches = torch.full(shape, -128, dtype=torch.int8, device=self.device).unbind(self._kinds_at)
        layer = SimpleNamespace(impl=make_impl(**impl), kv_cache=caches)
        layer.impl.__class__ = AscendC8AttentionBackendImpl
        draw = torch.Generator().manual_seed(len(self.layers))
        for kind in "kv":
            scale = (torch.rand(KV_HEADS * HEAD_DIM, generator=draw) + 1) / 64  # some rows are cut
            setattr(layer, f"{kind}_cache_scale", torch.nn.Parameter(scale.to(self.device), requires_grad=False))
            setattr(layer, f"{kind}_cache_offset", torch.nn.Parameter(0 * scale.to(self.device), requires_grad=False))
        return layer

    def draw(self, tokens: int, heads: int) -> Tensor:
        """Random rows [tokens, heads, D] on the CPU, rounded to the engine's dtype."""
        return torch.randn(tokens, heads, HEAD_DIM, generator=self._random).to(self.dtype)

    def reject(self, *counts: int, is_known: bool = True) -> None:
        """Drops the last rows of every sequence, of drafts; ``is_known``: the host has heard of it."""
        for index, count in enumerate(counts):
            kept = len(self.rows[index][0][0]) - count
            self.rows[index] = [(keys[:kept], values[:kept]) for keys, values in self.rows[index]]
            self.ahead[index] = 0 if is_known else count

    def prepare(self, counts: list[int], padded_tokens: int = 0) -> Any:
        """Fills the buffers for ``counts`` new tokens of every sequence; what the builder says of the step."""
        slots = []
        for index, count in enumerate(counts):
            if index == len(self.pages):
                self.pages.append([])
                self.rows.append([(torch.empty(0, KV_HEADS, HEAD_DIM),) * 2 for _ in range(LAYERS)])  # type: ignore[misc]
            past = len(self.rows[index][0][0])
            for position in range(past, past + count):
                if position // self.block_size == len(self.pages[index]):
                    self.pages[index].append(self.free.pop())
                slots.append(
                    self.pages[index][position // self.block_size] * self.block_size + position % self.block_size
                )
            self.lengths[index] = past + count
            self.table[index, : len(self.pages[index])] = torch.tensor(self.pages[index], dtype=torch.int32)
        self.lengths[len(counts) :] = 0
        self.slots.fill_(-1)
        self.slots[: len(slots)] = torch.tensor(slots, dtype=torch.int32)
        used = len(counts) + bool(padded_tokens)
        common = common_metadata(
            counts, self.lengths[:used], self.table[:used], self.slots[: len(slots)], padded_tokens=padded_tokens,
            host_lengths=self.lengths[:used].cpu() + self.ahead[:used],
        )  # fmt: skip
        self.ahead.zero_()
        return self.builder.build(0, common)

    def note(self, counts: list[int], layer: int, key: Tensor, value: Tensor) -> None:
        """Keeps the new rows of a layer for `expected`."""
        rows_of = [rows[: sum(counts)] for rows in (key, value)]
        if self.c8:
            of = list(self.layers.values())[layer]
            rows_of = [_rounded(*pair) for pair in zip(rows_of, (of.k_cache_scale, of.v_cache_scale), strict=True)]
        parts = (rows.split(counts) for rows in rows_of)
        for index, new in enumerate(zip(*parts, strict=True)):
            old = self.rows[index][layer]
            self.rows[index][layer] = tuple(torch.cat(pair) for pair in zip(old, new, strict=True))  # type: ignore[assignment]

    def step(self, counts: list[int], padded_tokens: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Runs a step in all layers; of each what came out and what has to, [T, Hq, D] on the CPU."""
        metadata = self.prepare(counts, padded_tokens)
        tokens = sum(counts) + padded_tokens
        results = []
        for index, layer in enumerate(self.layers.values()):
            query, key, value = (self.draw(tokens, heads) for heads in (HEADS, KV_HEADS, KV_HEADS))
            self.note(counts, index, key, value)
            out = torch.full_like(query, torch.nan, device=self.device)
            arguments = (rows.to(self.device) for rows in (query, key, value))
            layer.impl.forward(layer, *arguments, layer.kv_cache, metadata, out)
            results.append((out.cpu(), self.expected(index, counts, query)))
        return results

    def expected(self, layer: int, counts: list[int], query: Tensor) -> Tensor:
        """Rows of single tokens, and of drafts that are verified, by the thresholds, in the operator on each token
        alone; others densely; padding 0.
        """
        impl = list(self.layers.values())[layer].impl
        most = self.builder._engine.verify_tokens
        rows = []
        for index, count in enumerate(counts):
            keys, values = self.rows[index][layer]
            for token in range(count):
                row, length = query[len(rows)], len(keys) - (count - 1 - token)
                verified = count == 1 or (count <= most and len(keys) > count)
                if impl.rule is DENSE or not verified:
                    rows.append(dense_row(row, keys[:length], values[:length], HEAD_DIM**-0.5).to(query))
                else:
                    rows.append(self._sparse_row(row, keys[:length], values[:length]).to(query))
        return torch.stack([*rows, *torch.zeros(len(query) - len(rows), HEADS, HEAD_DIM).to(query)])

    def _sparse_row(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        theta = torch.full((HEADS,), self.theta if len(keys) > K else -torch.inf)
        whole = (rows.float().transpose(0, 1)[None] for rows in (keys, values))
        mean = values.float().mean(0)[None] if self.vmc else None
        return incremental_attention(query.float()[None, :, None], *whole, theta, value_mean=mean)[0, :, 0]


def _rounded(rows: Tensor, scale: Tensor) -> Tensor:
    """What int8 makes of rows [T, Hkv, D]."""
    beside = scale.cpu().view(KV_HEADS, HEAD_DIM).double()
    return ((rows.double() / beside).round().clamp(-127, 127) * beside).float()
