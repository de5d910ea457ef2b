"""The shim for vLLM on Ascend NPUs (vllm-ascend): its own attention, whose decode rows go to our operator.

Its platform chooses its backend, whatever others register. So the functions by which that backend hands out its classes
are replaced: `Impl` and `Builder` stand before its own, and engines without settings get those. It goes on to write the
cache and to run prompts; the pages are read as they lie, in the layout that it says it has.

The lengths in its metadata lie on the host. Ours are those of the model runner on the device, in the buffer that every
step fills anew, as are the block tables and the slots. So a captured decode step replays with other sequences.

Written against the sources of the versions in signatures/vllm_ascend.json, and not run in vllm-ascend. Importing this
module needs neither vLLM nor vllm-ascend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache, wraps
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import TopThetaBackendError, TopThetaNotImplementedError
from .ascend_c8 import C8Impl, take_over
from .ascend_drafts import check_rows, going_on, is_capturing, limit_drafts
from .ascend_metadata import of_sequences
from .ascend_signatures import DISTRIBUTION, check_parameters, known_versions, layout_of, record
from .engine import DENSE, EngineLayers, check_covered, check_engine
from .layers import LayerRule
from .layouts import Antiquant, Layout, Pages, view_pages
from .settings import Settings, read_settings
from .steps import STEP, Step, attend
from .versions import check_version

#: The dtypes of a cache that is not quantised, as vLLM names them.
_CACHE_DTYPES = ("auto", "float16", "half", "bfloat16")


def install() -> None:
    """Make vllm-ascend's platform hand out our classes to engines with settings; works once in a process."""
    from vllm_ascend.platform import NPUPlatform

    chosen = NPUPlatform.get_attn_backend_cls
    if hasattr(chosen, "__wrapped__"):
        return

    @wraps(chosen.__func__)
    def get_attn_backend_cls(cls: type, *args: Any, **kwargs: Any) -> Any:
        path = chosen(*args, **kwargs)
        config = _current_config()
        settings = _settings_of(config)
        if settings is not None:
            _check_backend(path)
            check_version(DISTRIBUTION, record()["versions"], version(DISTRIBUTION), untried=settings.untried_versions)
            check_parameters()
            check_engine(config, settings)
            _replace_classes()
        return path

    NPUPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)


class Impl:
    """One layer: stands before ``AscendAttentionBackendImpl``, and runs decode rows by the rule of `Builder`."""

    num_heads: int
    num_kv_heads: int
    head_size: int

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        sinks: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        check_covered({
            "alibi_slopes": alibi_slopes is not None,
            "logits_soft_cap": bool(logits_soft_cap),
            "sinks": sinks is not None,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
            "kv_cache_dtype": None if kv_cache_dtype in _CACHE_DTYPES else kv_cache_dtype,
            "attn_type": None if attn_type == "decoder" else attn_type,
        })  # fmt: skip
        theirs: Any = super()
        theirs.__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap,
            attn_type, kv_sharing_target_layer_name, sinks, **kwargs,
        )  # fmt: skip
        if getattr(self, "enable_hamming_sparse", False):
            raise TopThetaNotImplementedError(
                "enable_hamming_sparse", "it off with Top-Theta", "on", "leave one of the two out"
            )
        self.rule: LayerRule | str | None = None
        self.layout: Layout = layout_of(self)
        self.antiquant: Antiquant | None = None
        self._pages: tuple[Any, Pages] | None = None  # and of which cache

    def _bind(self, kv_cache: Any) -> None:
        """View the cache of the layer and give the layer its V sums, once for each cache.

        Raises:
            TopThetaNotImplementedError: as `view_pages`.
        """
        known = self._pages is not None and self._pages[0] is kv_cache
        if known or (self.rule is DENSE and self.antiquant is None):
            return
        pages = view_pages(kv_cache, self.layout, self.num_kv_heads, self.head_size, self.antiquant)
        self._pages = kv_cache, pages
        if isinstance(self.rule, LayerRule):
            self.rule = dataclasses.replace(self.rule, page_sums=None).with_pages(pages)

    def forward_impl(
        self, query: Tensor, key: Tensor, value: Tensor, kv_cache: Any, attn_metadata: Any, output: Tensor
    ) -> Tensor:
        """Compute attention of one step. Its keys and values are in the cache already.

        Args:
            query: [T, Hq, D], padding included.
            key, value: [T, Hkv, D].
            kv_cache: of the layer.
            attn_metadata: made by `Builder`.
            output: [T, Hq, D], written and returned.

        Raises:
            TopThetaBackendError: `Builder` has not prepared the step or the layer.
        """
        rule = self.rule
        if rule is DENSE:
            return self._their_attention(query, key, value, kv_cache, attn_metadata, output)
        step, (keys, values, _) = self._prepared(attn_metadata)
        assert isinstance(rule, LayerRule)
        shape = (-1, self.num_heads, self.head_size)
        dense = len(step.several) > 0 and rule.prefill == "dense"
        if (dense and not step.decodes) or not len(step.seq_lens):
            attend(step, query.view(shape), keys, values, rule, output.view(shape))
            return self._their_attention(query, key, value, kv_cache, attn_metadata, output)
        if dense:
            tokens = step.dense_tokens
            parts = (None if rows is None else rows[tokens] for rows in (query, key, value))
            out = torch.empty_like(output[tokens])
            if step.dense is None:
                step.dense = of_sequences(attn_metadata, step, step.several, tokens)
            output[tokens] = self._their_attention(*parts, kv_cache, step.dense, out)
        attend(step, query.view(shape), keys, values, rule, output.view(shape))
        output[attn_metadata.num_actual_tokens :] = 0  # padding, with which vLLM goes on to compute
        return output

    def _prepared(self, attn_metadata: Any) -> tuple[Step, Pages]:
        """Get what `Builder` has prepared of a step and of the layer.

        Raises:
            TopThetaBackendError: it has not.
        """
        step = getattr(attn_metadata, STEP, None)
        if self.rule is None or not isinstance(step, Step):
            raise _unprepared(f"a layer and a step prepared by {Builder.__name__}", type(attn_metadata).__name__)
        if self._pages is None:
            raise _unprepared(f"a cache bound by {Builder.__name__}", "none")
        replays = not len(step.several) and (step.drafts is None or step.is_captured)
        if not replays and is_capturing():
            expected = "as many tokens of each sequence in a captured step, all by thresholds"
            raise _unprepared(expected, str(step.query_start_loc.diff().tolist()))
        return step, self._pages[1]

    def _their_attention(self, *arguments: Any) -> Tensor:
        """Run vllm-ascend's own attention of a step, or of a part of it."""
        theirs: Any = super()
        return theirs.forward_impl(*arguments)  # type: ignore[no-any-return]


class Builder:
    """Stands before ``AscendAttentionMetadataBuilder``: gives layers their rules, and every step its rows.

    Attributes:
        c8_impl: for layers whose cache is int8.
    """

    c8_impl: type

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        theirs: Any = super()
        theirs.__init__(kv_cache_spec, layer_names, vllm_config, device)
        settings = read_settings(vllm_config.additional_config)
        self._engine: EngineLayers | None = None
        if settings is None:
            return
        forward_context = vllm_config.compilation_config.static_forward_context
        self._layers = {name: forward_context[name] for name in layer_names}
        parallel = vllm_config.parallel_config
        ranks = parallel.tensor_parallel_size
        take_over(self._layers, self.c8_impl, parallel.rank % ranks, ranks)
        _check_layers(self._layers)
        self._engine = EngineLayers.of(settings, vllm_config, device)
        limit_drafts(self._engine, max(layer.impl.num_heads for layer in self._layers.values()))
        self._engine.give_rules(kv_cache_spec, self._layers)
        _check_graphs(vllm_config, self._layers, self._engine.why_dense_drafts)
        self._group = layer_names[0]
        self._is_capturing = False
        self._captured: list[Step] = []  # whose tensors graphs read

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        """Build vllm-ascend's metadata of a step, and attach ours."""
        theirs: Any = super()
        metadata = theirs.build(common_prefix_len, common_attn_metadata, fast_build)
        if self._engine is not None:
            self._bind()
            step = _step(common_attn_metadata, metadata, self._engine.verify_tokens, self._is_capturing)
            self._engine.note(step, self._group)
            setattr(metadata, STEP, step)
        return metadata

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> Any:
        """Build vllm-ascend's metadata of a step that a graph replays for others, and attach ours."""
        theirs: Any = super()
        if self._engine is None:
            return theirs.build_for_cudagraph_capture(common_attn_metadata)
        self._is_capturing = True
        try:
            metadata = theirs.build_for_cudagraph_capture(common_attn_metadata)
        finally:
            self._is_capturing = False
        self._captured.append(getattr(metadata, STEP))
        return metadata

    def _bind(self) -> None:
        """Show layers their caches once these are there, before any step is captured."""
        assert self._engine is not None
        for name, layer in self._layers.items():
            layer.impl._bind(layer.kv_cache)
            if self._engine.verify_tokens > 1 and isinstance(layer.impl.rule, LayerRule):
                check_rows(name, layer.impl._pages[1])


def _current_config() -> Any:
    """Get vLLM's configuration of the engine whose layers are being made; None if there is none."""
    from vllm.config import get_current_vllm_config_or_none

    return get_current_vllm_config_or_none()


def _settings_of(config: Any) -> Settings | None:
    return None if config is None else read_settings(config.additional_config)


def _check_backend(path: str) -> None:
    """Check that the backend is the one for decoder attention with separate keys and values."""
    covered = record()["backend"]
    if path != covered:
        raise TopThetaNotImplementedError(
            "attention", f"a model that runs in {covered}", path,
            "latent and sparse attention, FA3 and the 310P are not covered; leave Top-Theta out",
        )  # fmt: skip


@cache
def _replace_classes() -> None:
    from vllm_ascend.attention import attention_v1

    backend = attention_v1.AscendAttentionBackend
    their_impl, their_builder = attention_v1.AscendAttentionBackendImpl, attention_v1.AscendAttentionMetadataBuilder
    our_impl = type(f"TopTheta{their_impl.__name__}", (Impl, their_impl), {})
    our_c8_impl = type(f"TopThetaC8{their_impl.__name__}", (C8Impl, Impl, their_impl), {})
    our_builder = type(f"TopTheta{their_builder.__name__}", (Builder, their_builder), {"c8_impl": our_c8_impl})
    choose_impl, choose_builder = backend.get_impl_cls, backend.get_builder_cls

    @wraps(choose_impl)
    def get_impl_cls() -> Any:
        chosen = choose_impl()
        if _settings_of(_current_config()) is None:
            return chosen
        if chosen is not their_impl:
            raise TopThetaNotImplementedError(
                "attention", their_impl.__name__, chosen.__name__, "set the sizes of context parallelism to 1"
            )
        return our_impl

    @wraps(choose_builder)
    def get_builder_cls() -> Any:
        # may be asked for where vLLM does not say for which engine; ours does nothing without settings
        chosen = choose_builder()
        return our_builder if chosen is their_builder else chosen

    backend.get_impl_cls, backend.get_builder_cls = staticmethod(get_impl_cls), staticmethod(get_builder_cls)


def _check_layers(layers: Mapping[str, Any]) -> None:
    """Check that each layer still runs our `Impl`: a quantised cache may change its class after it was made."""
    for name, layer in layers.items():
        if not isinstance(layer.impl, Impl):
            raise TopThetaBackendError(
                DISTRIBUTION, f"Top-Theta's implementation in {name}", type(layer.impl).__name__,
                "other backends, and caches quantised otherwise than by C8, are not covered; leave Top-Theta out",
            )  # fmt: skip


def _check_graphs(config: Any, layers: Mapping[str, Any], why_dense_drafts: str | None) -> None:
    """Refuse uncovered graph modes: a captured step repeats what it did at its capture, whatever the rows are.

    With drafts, vllm-ascend captures steps in which each sequence has as many as it can, and replays them for such.

    Raises:
        TopThetaNotImplementedError: it might be replayed for rows of another kind, or has layers of both kinds, whose
            updates vllm-ascend tells apart by their number alone.
    """
    mode = getattr(config.compilation_config.cudagraph_mode, "name", "NONE")
    if mode in ("NONE", "PIECEWISE"):
        return
    remedy = "set cudagraph_mode='PIECEWISE'"
    if mode not in ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"):
        wanted = "NONE, PIECEWISE, FULL_DECODE_ONLY or FULL_AND_PIECEWISE"
        raise TopThetaNotImplementedError("cudagraph_mode", wanted, mode, remedy)
    if why_dense_drafts:
        wanted = f"NONE or PIECEWISE where drafts stay dense: {why_dense_drafts}"
        raise TopThetaNotImplementedError("cudagraph_mode", wanted, mode, remedy)
    dense = [name for name, layer in layers.items() if layer.impl.rule is DENSE]
    if dense:
        wanted = f"NONE or PIECEWISE where layers such as {dense[0]} stay dense"
        raise TopThetaNotImplementedError("cudagraph_mode", wanted, mode, remedy)


def _step(common: Any, metadata: Any, verify_tokens: int, is_captured: bool) -> Step:
    """Make the step without its padding, with the model runner's lengths and tables on the device.

    Args:
        common: what the model runner says of the step.
        metadata: what vllm-ascend has made of it.
        verify_tokens: new tokens up to which sequences that go on follow the thresholds.
        is_captured: a graph may replay the step. If each sequence has as many new tokens, each goes on in those that it
            is replayed for, whatever the model runner says now.
    """
    tokens = common.num_actual_tokens
    starts = common.query_start_loc_cpu[: common.num_reqs + 1]
    sequences = int((starts[:-1] < tokens).sum())
    starts = starts[: sequences + 1].clamp_max(tokens)
    lengths, table = common.seq_lens[:sequences], common.block_table_tensor[:sequences]
    if lengths.device != table.device:
        raise _unprepared(f"seq_lens on {table.device}", str(lengths.device))
    is_captured = is_captured and len(starts.diff().unique()) == 1
    goes_on = None
    if verify_tokens > 1:
        goes_on = np.ones(sequences, dtype=bool) if is_captured else going_on(metadata, starts)
    return Step.of(starts, lengths, table, verify_tokens=verify_tokens, goes_on=goes_on, is_captured=is_captured)


def _unprepared(expected: str, got: str) -> TopThetaBackendError:
    return TopThetaBackendError(DISTRIBUTION, expected, got, f"install version {known_versions()}")
