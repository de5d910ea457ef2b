"""The shim for vLLM on a CPU: its own backend, whose decode rows go to our operator.

vLLM's kernel goes on to write the cache and to run prompts. It keeps the keys of a page by columns and the values by
rows, which the operator reads as they lie. Where it would pack both for AMX (bfloat16 on CPUs that have it), it is told
to use its layout for vectors instead.
"""

from __future__ import annotations

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

from ..errors import TopThetaBackendError, TopThetaNotImplementedError
from .engine import DENSE, EngineLayers, Uncovered, check_covered, check_engine, without_draft_model
from .layers import LayerRule
from .layouts import Layout, Pages, view_pages
from .settings import is_configured, read_settings
from .steps import STEP, Step, attend
from .versions import TRIED_ON_CPU, check_version

#: The names by which vLLM's kernel keeps keys by columns and values by rows, `Layout.COLUMN_KEYS`.
_READABLE = ("vec", "vec16")
#: The dtypes of a cache that is not quantised, as vLLM names them.
_PLAIN = ("auto", "float16", "bfloat16")


def install() -> None:
    """Put our backend in the place of vLLM's own. Without settings it hands out vLLM's classes."""
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{__name__}.{TopThetaBackend.__name__}")


class TopThetaBackend(CPUAttentionBackend):  # type: ignore[misc]
    """vLLM's CPU backend; engines with settings get our classes."""

    @staticmethod
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


class Builder(CPUAttentionMetadataBuilder):  # type: ignore[misc]
    """Gives every layer of its group a rule, once the weights are there, and then splits every step."""

    isa: str

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        settings = read_settings(vllm_config.additional_config)
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

    def _bind(self) -> None:
        """Show layers their caches, which are there before the first step."""
        for layer in self._layers.values():
            if isinstance(layer.impl.rule, LayerRule):
                layer.impl.pages_of(layer.kv_cache)
        self._are_bound = True

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
        whole_step = whole.query_start_loc, whole.seq_lens, whole.block_table
        step = Step.of(*whole_step, self._engine.dense_below, self._engine.verify_tokens)
        self._engine.note(step, self._name)
        if len(step.several) and step.decodes:
            step.dense = super().build(0, _of_several(common_attn_metadata, step), fast_build)
        setattr(whole, STEP, step)
        return whole


class Impl(CPUAttentionBackendImpl):  # type: ignore[misc]
    """One layer: vLLM's own attention, except that decode rows follow the rule that the builder gave it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_covered(_uncovered(self))
        self.rule: LayerRule | str | None = None
        self._viewed: tuple[Tensor, Pages] | None = None  # and of which cache

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
        if attn_metadata is None or self.rule is DENSE:  # None: vLLM warms up
            return dense(attn_metadata, everything, output)
        rule, step = self.rule, getattr(attn_metadata, STEP, None)
        if not isinstance(rule, LayerRule) or step is None:
            raise TopThetaBackendError(
                "vllm", f"a step prepared by {Builder.__name__} for {layer.layer_name}", type(attn_metadata).__name__,
                "use the version of vLLM that was tried",
            )  # fmt: skip
        if rule.prefill == "dense" and len(step.several):
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

    def pages_of(self, kv_cache: Tensor) -> Pages:
        """View the cache as pages, once.

        Raises:
            TopThetaNotImplementedError: as `view_pages`.
        """
        if self._viewed is None or self._viewed[0] is not kv_cache:
            self._viewed = kv_cache, view_pages(kv_cache, Layout.COLUMN_KEYS, self.num_kv_heads, self.head_size)
        return self._viewed[1]


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


def _of_several(common: CommonAttentionMetadata, step: Step) -> CommonAttentionMetadata:
    """Cut the metadata of a step down to the sequences that are dense."""
    chosen, counts = step.several, torch.from_numpy(step.counts)
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    return common.replace(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=step.seq_lens[chosen],
        num_reqs=len(chosen),
        num_actual_tokens=len(step.dense_tokens),
        block_table_tensor=step.block_table[chosen],
        slot_mapping=common.slot_mapping[step.dense_tokens],
    )
