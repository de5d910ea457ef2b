"""The parts of vllm-ascend that the shim stands before, as small as the record of its sources allows.

They keep what the shim relies on: parameters, fields, attributes, a cache that is written before `forward_impl`, in the
layout of VLLM_KV_CACHE_LAYOUT, and metadata of tokens and lengths on the host. Their attention is dense, row by row, in
float64.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, make_dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from toptheta_npu.vllm.ascend_signatures import record

MODULE = "vllm_ascend.attention.attention_v1"

AscendMetadata = make_dataclass("AscendMetadata", record()["fields"][MODULE]["AscendMetadata"])


class AscendAttentionBackendImpl:
    """Writes the cache and attends to it densely; counts the tokens of every call."""

    def __init__(
        self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap,
        attn_type, kv_sharing_target_layer_name, sinks=None, **kwargs,
    ) -> None:  # fmt: skip
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads
        self.sliding_window = sliding_window
        self.key_cache: Any = None
        self.value_cache: Any = None
        self.kv_cache_layout = os.environ.get("VLLM_KV_CACHE_LAYOUT")
        self.enable_hamming_sparse = kwargs.get("enable_hamming_sparse", False)
        self.dense_tokens: list[int] = []

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output) -> Tensor:
        self.reshape_and_cache(key, value, kv_cache, attn_metadata.slot_mapping)
        result = self.forward_impl(query, key, value, kv_cache, attn_metadata, output)
        output[:] = result
        return output

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping) -> None:
        self.reshape_and_cache(key, value, kv_cache, slot_mapping)

    def reshape_and_cache(self, key, value, kv_cache, slot_mapping) -> None:
        self.key_cache, self.value_cache = kv_cache
        keep = (slot_mapping >= 0).nonzero().squeeze(1)
        slots = slot_mapping[keep].long()
        for rows, cache in zip((key, value), self._by_rows(), strict=True):
            cache[slots // cache.shape[1], slots % cache.shape[1]] = rows[: len(slot_mapping)][keep]

    def _by_rows(self) -> list[Tensor]:
        """The caches as [blocks, block_size, Hkv, D]."""
        heads_first = self.kv_cache_layout in ("HND", "LBHNC")
        return [cache.transpose(1, 2) if heads_first else cache for cache in (self.key_cache, self.value_cache)]

    def forward_impl(self, query, key, value, kv_cache, attn_metadata, output) -> Tensor:
        ends = attn_metadata.actual_seq_lengths_q
        self.dense_tokens.append(ends[-1])
        for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            length, table = attn_metadata.seq_lens_list[index], attn_metadata.block_tables[index]
            for token in range(start, end):
                rows = length - (end - 1 - token)
                keys, values = (rows_of(cache, table, rows) for cache in self._by_rows())
                # some kernels take a prompt's rows from the call, others from the cache
                for given, cached in ((key, keys), (value, values)):
                    assert len(cached) == 0 or torch.equal(cached[-1], given[token])
                output[token] = dense_row(query[token], keys, values, self.scale).to(output)
        return output


class AscendC8AttentionBackendImpl(AscendAttentionBackendImpl):
    """What C8 scales turn an implementation into after it was made: the cache is int8, in NZ."""

    def forward(self, *arguments, **options) -> Tensor:
        pytest.fail("the cache was written in NZ")


class AttentionMetadataBuilder:
    """vLLM's own, from which that of vllm-ascend inherits."""

    def build_for_cudagraph_capture(self, common_attn_metadata) -> Any:
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)  # type: ignore[attr-defined]


class AscendAttentionMetadataBuilder(AttentionMetadataBuilder):
    """Metadata of a step, with lengths on the host, which may count drafts that were rejected."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        self.device = device

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> Any:
        common = common_attn_metadata
        starts = common.query_start_loc_cpu[: common.num_reqs + 1]
        counts = starts.diff()
        lengths = common._seq_lens_cpu[: common.num_reqs]
        decodes = int((counts == 1).sum())
        return AscendMetadata(
            num_actual_tokens=common.num_actual_tokens, num_decode_tokens=decodes, num_decodes=decodes,
            num_prefills=common.num_reqs - decodes, seq_lens=lengths, seq_lens_cpu=lengths,
            seq_lens_list=lengths.tolist(), actual_seq_lengths_q=starts[1:].tolist(),
            query_start_loc=starts.to(self.device),
            max_query_len=int(counts.max()), block_tables=common.block_table_tensor,
            slot_mapping=common.slot_mapping[: common.num_actual_tokens],
        )  # fmt: skip


class FullAttentionSpec:
    """The kind of cache of layers that see all tokens."""


def rows_of(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The first rows of a sequence in a cache [blocks, block_size, Hkv, D]: [length, Hkv, D]."""
    pages = table[: -(-length // cache.shape[1])].long()
    return cache[pages].flatten(0, 1)[:length]


def dense_row(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Attention of one token [Hq, D] to all its keys, in float64."""
    group = query.shape[0] // keys.shape[1]
    keys, values = (rows.cpu().double().repeat_interleave(group, 1) for rows in (keys, values))
    weights = torch.einsum("hd,nhd->hn", query.cpu().double() * scale, keys).softmax(-1)
    return torch.einsum("hn,nhd->hd", weights, values)


@dataclass
class Platform:
    """What stands in the place of the installed packages, for `install`."""

    backend: type
    platform: type
    config: Any = None
    version: str = "0.23.0"
    #: What vllm-ascend's functions choose.
    path: str = record()["backend"]
    impl: type = AscendAttentionBackendImpl
    builder: type = AscendAttentionMetadataBuilder


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> Platform:
    """Makes these parts importable under vllm-ascend's names."""

    class AscendAttentionBackend:
        @staticmethod
        def get_impl_cls():
            return parts.impl

        @staticmethod
        def get_builder_cls():
            return parts.builder

    class NPUPlatform:
        @classmethod
        def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
            return parts.path

    parts = Platform(AscendAttentionBackend, NPUPlatform)
    attention = ModuleType(MODULE)
    for part in (AscendAttentionBackend, AscendAttentionBackendImpl, AscendAttentionMetadataBuilder):
        setattr(attention, part.__name__, part)
    config, platform = ModuleType("vllm.config"), ModuleType("vllm_ascend.platform")
    config.get_current_vllm_config_or_none = lambda: parts.config  # type: ignore[attr-defined]
    platform.NPUPlatform = NPUPlatform  # type: ignore[attr-defined]
    package = ModuleType("vllm_ascend.attention")
    package.attention_v1 = attention  # type: ignore[attr-defined]
    modules = {
        "vllm": ModuleType("vllm"), "vllm.config": config, "vllm_ascend": ModuleType("vllm_ascend"),
        "vllm_ascend.platform": platform, "vllm_ascend.attention": package, MODULE: attention,
    }  # fmt: skip
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("toptheta_npu.vllm.ascend.version", lambda distribution: parts.version)
    return parts


def common_metadata(
    counts: list[int], lengths: Tensor, table: Tensor, slots: Tensor, *, padded_tokens: int = 0,
    host_lengths: Tensor | None = None,
) -> SimpleNamespace:  # fmt: skip
    """What the model runner says of a step; ``padded_tokens`` are those of one sequence more, of no request.

    ``host_lengths`` are those that it has on the host, unless they are the same.
    """
    starts = torch.tensor([0, *counts, *([padded_tokens] if padded_tokens else [])], dtype=torch.int32).cumsum(0)
    return SimpleNamespace(
        num_reqs=len(starts) - 1, num_actual_tokens=sum(counts), query_start_loc_cpu=starts.int(), seq_lens=lengths,
        _seq_lens_cpu=lengths.cpu() if host_lengths is None else host_lengths, block_table_tensor=table,
        slot_mapping=slots,
    )  # fmt: skip
