"""The shim for vLLM on a CPU: its own backend, whose decode rows go to our operator.

vLLM's kernel goes on to write the cache and to run prompts. It keeps the keys of a page by columns and the values by
rows, which the operator reads as they lie. Where it would pack both for AMX (bfloat16 on CPUs that have it), it is told
to use its layout for vectors instead.

It knows no int8 cache, though vLLM takes the option and allocates one. So the rows of such a cache are written here,
and for prompts alone the pages of their sequences are multiplied out into pages that its kernel reads.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import vllm
from torch import Tensor
from vllm.config import get_current_vllm_config_or_none
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.kv_cache_interface import KVQuantMode

from ..errors import TopThetaBackendError, TopThetaNotImplementedError
from .engine import DENSE, EngineLayers, Uncovered, check_covered, check_engine, without_draft_model
from .int8_pages import (
    FEW_TOKENS,
    INT8_CACHE,
    DenseRows,
    Int8Pages,
    dequantise_pages,
    new_tokens,
    renumbered,
    row_bytes,
    view_int8_pages,
    write_rows,
)
from .layers import LayerRule
from .layouts import Layout, Pages, view_pages
from .refusals import tells_why
from .settings import is_configured, read_settings
from .steps import STEP, Step, attend
from .versions import TRIED_ON_CPU, check_version

#: The names by which vLLM's kernel keeps keys by columns and values by rows, `Layout.COLUMN_KEYS`.
_READABLE = ("vec", "vec16")
#: The dtypes of a cache that is not quantised, as vLLM names them.
_PLAIN = ("auto", "float16", "bfloat16")
#: Of this process. Where there are none, such a cache is none of our business.
_INT8_LAYERS: weakref.WeakSet[Impl] = weakref.WeakSet()
#: Bytes of pages that are multiplied out at once, if one sequence has no more.
_MAX_MULTIPLIED_OUT = 64 * 2**20


def install() -> None:
    """Put our backend in the place of vLLM's own. Without settings it hands out vLLM's classes."""
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{TopThetaBackend.__name__}")


class TopThetaBackend(CPUAttentionBackend):  # type: ignore[misc]
    """vLLM's CPU backend; engines with settings get our classes."""

    @staticmethod
    @tells_why
    def get_impl_cls() -> Any:
        config = get_current_vllm_config_or_none()
        settings = None if config is None else read_settings(config.additional_config)
        if settings is None:
            return CPUAttentionBackendImpl
        check_version("vllm (cpu)", TRIED_ON_CPU, vllm.__version__, untried=settings.untried_versions)
        check_engine(config, settings, draft_models=True)
        stages = config.parallel_config.pipeline_parallel_size
        check_covered({"pipeline_parallel_size": stages if stages > 1 else None})
        return Impl

    @staticmethod
    def get_builder_cls() -> Any:
        return Builder

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        if spec.kv_quant_mode != KVQuantMode.INT8_PER_TOKEN_HEAD or not _INT8_LAYERS:
            return spec
        return dataclasses.replace(spec, state_content_bytes=row_bytes(spec.head_size))


class Builder(CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """Gives every layer of its group a rule, once the weights are there, and then splits every step."""

    isa: str

    @tells_why
    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        settings = read_settings(vllm_config.additional_config)
        self._is_int8 = kv_cache_spec.kv_quant_mode == KVQuantMode.INT8_PER_TOKEN_HEAD
        self._multiplied_out = torch.empty(0, dtype=torch.float32, device="cpu")
        self._engine: EngineLayers | None = None
        if settings is None:
            return
        layers = vllm_config.compilation_config.static_forward_context
        self._layers = without_draft_model({name: layers[name] for name in layer_names})
        if not self._layers:
            return
        self._engine = EngineLayers.of(settings, vllm_config, device, draft_models=True)
        self._engine.give_rules(kv_cache_spec, self._layers)
        self._name = layer_names[0]
        self._are_bound = False

    @property
    def kv_cache_dtype(self) -> str:
        """What vLLM's kernel is told that it reads: pages that are multiplied out, in place of an int8 cache."""
        ours = self._kv_cache_dtype == INT8_CACHE and is_configured(self.vllm_config.additional_config)
        return "auto" if ours else self._kv_cache_dtype

    @kv_cache_dtype.setter
    def kv_cache_dtype(self, dtype: str) -> None:
        self._kv_cache_dtype = dtype

    @tells_why
    def _bind(self) -> None:
        """Show layers their caches, which are there before the first step."""
        for layer in self._layers.values():
            if isinstance(layer.impl.rule, LayerRule):
                layer.impl.pages_of(layer.kv_cache)
        self._are_bound = True

    @tells_why
    def _set_isa_to_layers(self, layer_names: list[str]) -> None:
        if is_configured(self.vllm_config.additional_config):
            self.isa = _readable(self.isa)
        super()._set_isa_to_layers(layer_names)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Any:
        whole = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if self._engine is None:
            return whole
        if not self._are_bound:
            self._bind()
        check_covered({
            "rswa_prefix_lens": common_attn_metadata.rswa_prefix_lens is not None,
            "mm_req_doc_ranges": common_attn_metadata.mm_req_doc_ranges is not None,
            "causal": None if common_attn_metadata.causal is True else "another mask",
        })  # fmt: skip
        # no kernel of vLLM's runs the short rows of an int8 cache
        dense_below = 0 if self._is_int8 else self._engine.dense_below
        whole_step = whole.query_start_loc, whole.seq_lens, whole.block_table
        step = Step.of(*whole_step, dense_below, self._engine.verify_tokens)
        self._engine.note(step, self._name)
        if self._is_int8:
            step.dense = DenseOverInt8(self, common_attn_metadata, step)
        elif len(step.several) and step.decodes:
            step.dense = super().build(0, _of_sequences(common_attn_metadata, step, step.several), fast_build)
        setattr(whole, STEP, step)
        return whole

    def build_prompts(self, common: CommonAttentionMetadata, step: Step, chosen: Tensor) -> Iterator[Prompts]:
        """Prepare some sequences [P] for vLLM's kernel, as many at once as there is room for their pages."""
        heads, rows, head_dim = self.num_kv_heads, self.block_size, self.head_dim
        pages = -(-step.seq_lens[chosen].long() // rows)
        most = max(int(pages.max()), _MAX_MULTIPLIED_OUT // (2 * heads * rows * head_dim * self.dtype.itemsize))
        if len(self._multiplied_out) < min(most, int(pages.sum())):
            shape = (min(most, int(pages.sum())), heads, rows, 2 * head_dim)
            self._multiplied_out = torch.zeros(shape, dtype=self.dtype, device="cpu")
        ends = pages.cumsum(0)
        while len(chosen):
            count = int((ends <= most).sum())
            taken = chosen[:count]
            of_cache, numbers = renumbered(step.block_table[taken], pages[:count])
            metadata = super().build(0, _of_sequences(common, step, taken).replace(block_table_tensor=numbers))
            yield Prompts(_tokens_of(step, taken), metadata, of_cache, self._multiplied_out)
            chosen, pages, ends = chosen[count:], pages[count:], ends[count:] - ends[count - 1]


@dataclass(frozen=True)
class Prompts:
    """Sequences of a step that vLLM's kernel runs over pages of an int8 cache that are multiplied out.

    Attributes:
        tokens: int64 [T], their new tokens.
        metadata: vLLM's, with pages of ``room``.
        pages: int64 [P], of the cache.
        room: for what they stand for, as vLLM's kernel reads it: [P or more, Hkv, block_size, 2D].
    """

    tokens: Tensor
    metadata: Any
    pages: Tensor
    room: Tensor


class DenseOverInt8:
    """What of a step attends to all keys of an int8 cache, prepared where it is asked for."""

    def __init__(self, builder: Builder, common: CommonAttentionMetadata, step: Step) -> None:
        self._builder, self._common, self._step = builder, common, step
        starts = step.query_start_loc
        self._counts = starts[1:] - starts[:-1]

    @cached_property
    def prompts(self) -> list[Prompts]:
        """Sequences with many new tokens."""
        many = (self._counts > FEW_TOKENS).nonzero()[:, 0]
        return list(self._builder.build_prompts(self._common, self._step, many)) if len(many) else []

    @cached_property
    def few(self) -> DenseRows | None:
        """Tokens of sequences with a few new ones that do not decode; None: there are none."""
        return self._rows(self._step.several)

    @cached_property
    def few_or_one(self) -> DenseRows | None:
        """Those of all sequences with a few new ones, or one."""
        return self._rows(torch.arange(len(self._counts), device="cpu"))

    def _rows(self, among: Tensor) -> DenseRows | None:
        step, counts = self._step, self._counts[among]
        chosen = among[(counts >= 1) & (counts <= FEW_TOKENS)]
        return DenseRows.of(chosen, step.query_start_loc, step.seq_lens, step.block_table) if len(chosen) else None


class Impl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """One layer: vLLM's own attention, except that decode rows follow the rule that the builder gave it.

    Attributes:
        is_int8: its cache is.
    """

    is_int8 = False

    @tells_why
    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int, alibi_slopes: list[float] | None,
        sliding_window: int | None, kv_cache_dtype: str, *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.is_int8 = kv_cache_dtype == INT8_CACHE
        of_kernel = "auto" if self.is_int8 else kv_cache_dtype
        shape = num_heads, head_size, scale, num_kv_heads
        super().__init__(*shape, alibi_slopes, sliding_window, of_kernel, *args, **kwargs)
        check_covered(_uncovered(self))
        self.rule: LayerRule | str | None = None
        self._viewed: tuple[Tensor, Pages] | None = None  # and of which cache
        self._viewed_int8: tuple[Tensor, Int8Pages] | None = None
        if self.is_int8:
            _INT8_LAYERS.add(self)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        def dense(metadata: Any, tokens: Any, out: Tensor) -> Tensor:
            arguments = layer, query[tokens], key[tokens], value[tokens], kv_cache, metadata, out
            return super(Impl, self).forward(*arguments, output_scale, output_block_scale)  # type: ignore[no-any-return]

        everything = slice(None)
        if attn_metadata is None or (self.rule is DENSE and not self.is_int8):  # None: vLLM warms up
            return dense(attn_metadata, everything, output)
        rule, step = self.rule, getattr(attn_metadata, STEP, None)
        if (not isinstance(rule, LayerRule) and rule is not DENSE) or step is None:
            raise TopThetaBackendError(
                "vllm", f"a step prepared by {Builder.__name__} for {layer.layer_name}", type(attn_metadata).__name__,
                "use the version of vLLM that was tried",
            )  # fmt: skip
        if self.is_int8:
            self._dense_over_int8(layer, query, key, value, kv_cache, step, output)
        if not isinstance(rule, LayerRule):
            return output
        if not self.is_int8 and rule.prefill == "dense" and len(step.several):
            if step.decodes:
                part = torch.empty_like(output[step.dense_tokens])
                output[step.dense_tokens] = dense(step.dense, step.dense_tokens, part)
            else:
                dense(attn_metadata, everything, output)
        pages = self.pages_of(kv_cache)
        self.rule = rule = rule.with_pages(pages)
        shape = (-1, self.num_heads, self.head_size)
        attend(step, query.view(shape), pages.keys, pages.values, rule, output.view(shape))
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        if self.is_int8:
            write_rows(self._int8_pages(kv_cache), key, value, slot_mapping)
        else:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

    def _dense_over_int8(
        self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, step: Step, output: Tensor
    ) -> None:
        """Write what attends to all keys of an int8 cache, prompts over pages that are multiplied out."""
        if isinstance(self.rule, LayerRule) and (self.rule.prefill == "thresholded" or not len(step.several)):
            return
        cache = self.pages_of(kv_cache)
        for part in step.dense.prompts:
            room = view_pages(part.room, Layout.COLUMN_KEYS, self.num_kv_heads, self.head_size)
            dequantise_pages(cache, part.pages, room)
            out, of = torch.empty_like(output[part.tokens]), part.tokens
            super().forward(layer, query[of], key[of], value[of], part.room, part.metadata, out)
            output[of] = out
        rows = step.dense.few_or_one if self.rule is DENSE else step.dense.few
        if rows is not None:
            shape = (-1, self.num_heads, self.head_size)
            rows.attend(query.view(shape), cache, self.scale, output.view(shape))

    def pages_of(self, kv_cache: Tensor) -> Pages:
        """View the cache as pages, once.

        Raises:
            TopThetaNotImplementedError: as `view_pages` and `view_int8_pages`.
        """
        if self.is_int8:
            return self._int8_pages(kv_cache).pages
        if self._viewed is None or self._viewed[0] is not kv_cache:
            self._viewed = kv_cache, view_pages(kv_cache, Layout.COLUMN_KEYS, self.num_kv_heads, self.head_size)
        return self._viewed[1]

    def _int8_pages(self, kv_cache: Tensor) -> Int8Pages:
        if self._viewed_int8 is None or self._viewed_int8[0] is not kv_cache:
            self._viewed_int8 = kv_cache, view_int8_pages(kv_cache, self.num_kv_heads, self.head_size)
        return self._viewed_int8[1]


def _readable(isa: str) -> str:
    if isa in _READABLE:
        return isa
    if isa == "amx":
        return "vec"
    raise TopThetaNotImplementedError(
        "vllm", f"a cache laid out for {' or '.join(_READABLE)}", repr(isa), "use an x86 CPU, or leave Top-Theta out"
    )


def _uncovered(impl: CPUAttentionBackendImpl) -> Uncovered:
    return {
        "alibi_slopes": impl.alibi_slopes is not None,
        "logits_soft_cap": bool(impl.logits_soft_cap),
        "sinks": impl.sinks is not None,
        "kv_sharing_target_layer_name": impl.kv_sharing_target_layer_name,
        "kv_cache_dtype": None if impl.kv_cache_dtype in _PLAIN else impl.kv_cache_dtype,
        "attn_type": impl.attn_type if impl.attn_type != AttentionType.DECODER else None,
    }


def _of_sequences(common: CommonAttentionMetadata, step: Step, chosen: Tensor) -> CommonAttentionMetadata:
    """Cut the metadata of a step down to some sequences [P] with several new tokens."""
    counts = step.query_start_loc[chosen + 1] - step.query_start_loc[chosen]
    starts, tokens = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int(), _tokens_of(step, chosen)
    return common.replace(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=step.seq_lens[chosen],
        num_reqs=len(chosen),
        num_actual_tokens=len(tokens),
        block_table_tensor=step.block_table[chosen],
        slot_mapping=common.slot_mapping[tokens],
    )


def _tokens_of(step: Step, chosen: Tensor) -> Tensor:
    of, order, _ = new_tokens(chosen, step.query_start_loc)
    return step.query_start_loc[of].long() + order
