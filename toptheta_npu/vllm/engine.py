"""The layers of one engine: the code that all platforms share."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .._checks import MAX_TOKENS
from .._warnings import SDC_WITHOUT_VMC
from ..errors import TopThetaBackendError, TopThetaNotImplementedError, TopThetaValueError
from ..thresholds import ThresholdsAtK
from .layers import Geometry, LayerGroup, LayerRule, layer_index, load_thresholds, model_folder
from .logs import logger
from .metrics import Aims, Counters, Metrics, prometheus_export
from .settings import Settings
from .steps import Step

#: Replaces the rule of a dense layer.
DENSE = "dense"
#: Why layers are dense.
_WINDOW, _CHOSEN = "a sliding window", "dense_layers"
#: What an engine or a layer asks for that is not covered, by its name; empty values do not count.
Uncovered = Mapping[str, object]

_REMEDIES = {
    "alibi_slopes": "Top-Theta does not know positional biases",
    "logits_soft_cap": "Top-Theta does not know soft-capped scores",
    "sinks": "Top-Theta does not know attention sinks",
    "kv_sharing_target_layer_name": "use a model whose layers keep keys and values of their own",
    "kv_cache_dtype": "such caches are not read; set kv_cache_dtype='auto'",
    "attn_type": "only decoder attention is covered",
    "rswa_prefix_lens": "tokens that see a prefix and a window are not covered",
    "mm_req_doc_ranges": "tokens that see later ones are not covered",
    "causal": "only causal attention is covered",
    "kv_cache_spec": "use a model whose layers see all tokens or a sliding window",
    "use_mla": "latent attention is not covered",
    "kv_transfer_config": "KV connectors write pages behind the backend; leave it out",
    "kv_offloading_size": "offloading writes pages behind the backend; leave it out",
    "pipeline_parallel_size": "vLLM 0.32 itself answers nothing with several stages on a CPU; set it to 1",
    "decode_context_parallel_size": "set it to 1",
    "prefill_context_parallel_size": "set it to 1",
    "speculative_config": "layers that draft beside the model's own have no thresholds; draft with n-grams or, on a "
    "CPU, with a model of its own",
    "lora_config": "adapters change what was calibrated; merge them and calibrate, or set check_weights=false",
}
#: Ways to draft without layers, and with a model whose layers are told by their names.
_DRAFTS_WITHOUT_LAYERS, _DRAFT_MODEL, _OF_DRAFT_MODEL = ("ngram", "ngram_gpu", "suffix"), "draft_model", "draft_model."
_SPECS = ("FullAttentionSpec", "SlidingWindowSpec")


def check_covered(uncovered: Uncovered) -> None:
    """Raise TopThetaNotImplementedError for the first requested feature that is not covered.

    Example:
        >>> check_covered({"sinks": None, "alibi_slopes": False})
    """
    for name, value in uncovered.items():
        if value:
            got = "it" if value is True else str(value)
            raise TopThetaNotImplementedError(name, "none of it with Top-Theta", got, _REMEDIES[name])


def without_draft_model(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the layers of a model that drafts, by their names. They are dense."""
    for name, layer in layers.items():
        if name.startswith(_OF_DRAFT_MODEL):
            layer.impl.rule = DENSE
    return {name: layer for name, layer in layers.items() if not name.startswith(_OF_DRAFT_MODEL)}


class EngineLayers:
    """Rules and counts of the layers of one engine in one process; see :meth:`of`."""

    def __init__(self, settings: Settings, thresholds: ThresholdsAtK, metrics: Metrics | None, drafts: int) -> None:
        self._settings = settings
        self._thresholds = thresholds
        self._drafts = drafts
        self._most_verified = MAX_TOKENS, f"the operator takes {MAX_TOKENS} tokens of a sequence"
        self._counting: str | None = None
        self._with_window: set[int] = set()
        self.metrics = metrics

    @classmethod
    def of(cls, settings: Settings, config: Any, device: torch.device, draft_models: bool = False) -> EngineLayers:
        """Get the engine of vLLM's configuration ``config``, or make it. Its weights must be loaded.

        ``draft_models`` tells whether a model of its own may draft.

        Raises:
            TopThetaNotImplementedError: the engine asks for something that is not covered.
            TopThetaTypeError, TopThetaValueError: as `load_thresholds`.
        """
        with _MAKING:
            return engine_of(config) or cls._make(settings, config, device, draft_models)

    @classmethod
    def _make(cls, settings: Settings, config: Any, device: torch.device, draft_models: bool) -> EngineLayers:
        check_engine(config, settings, draft_models)
        thresholds = load_thresholds(settings, geometry_of(config), device)
        metrics = None
        if settings.metrics:
            metrics = Metrics(settings.log_interval, prometheus_export())
            atexit.register(metrics.report)
        draft = config.speculative_config
        drafts = 0 if draft is None else int(draft.num_speculative_tokens)
        engine = cls(settings, thresholds, metrics, drafts)
        engine._warn(config.model_config.max_model_len)
        for key in [key for key, (config_of, _) in _ENGINES.items() if config_of() is None]:
            del _ENGINES[key]
        _ENGINES[id(config)] = weakref.ref(config), engine
        return engine

    def give_rules(self, spec: Any, layers: Mapping[str, Any]) -> None:
        """Give the implementation of every layer its rule, or `DENSE`.

        Args:
            spec: vLLM's description of the cache that the layers share.
            layers: by their names.

        Raises:
            TopThetaNotImplementedError: the kind of cache is not covered, or no layer of the model sees all tokens.
            TopThetaBackendError: another backend was chosen for a layer.
        """
        kind = type(spec).__name__
        check_covered({"kv_cache_spec": None if kind in _SPECS else kind})
        sparse: dict[int, Any] = {}
        dense: dict[str, list[int]] = {}
        for name, layer in layers.items():
            if not hasattr(layer.impl, "rule"):
                raise TopThetaBackendError(
                    "vllm", f"Top-Theta's backend in {name}", type(layer.impl).__name__,
                    "do not choose an attention backend yourself",
                )  # fmt: skip
            index = layer_index(name)
            reason = self._why_dense(index, layer.impl)
            if reason:
                layer.impl.rule = DENSE
                dense.setdefault(reason, []).append(index)
            else:
                sparse[index] = layer.impl
        self._give_sparse_rules(dict(sorted(sparse.items())))
        self._log(list(sparse), dense)
        self._with_window.update(dense.get(_WINDOW, []))
        if len(self._with_window) == len(self._thresholds.theta):
            raise TopThetaNotImplementedError(
                "layers", "one that sees all tokens", "a sliding window in each of them", "leave Top-Theta out"
            )

    @property
    def dense_below(self) -> int:
        """Keys that a row of a step has, unless the platform's own kernel is to run all rows; 0: it never is."""
        return self._thresholds.dense_below if self._settings.prefill == "dense" else 0

    @property
    def verify_tokens(self) -> int:
        """New tokens up to which a sequence that goes on decodes by thresholds, each of them."""
        return min(1 + self._drafts, self._most_verified[0])

    @property
    def why_dense_drafts(self) -> str | None:
        """The reason why sequences with drafts, or with many, do not use thresholds; None: all of them do."""
        return self._most_verified[1] if self._drafts >= self.verify_tokens else None

    @property
    def placement(self) -> str:
        """Where the thresholds stand."""
        return self._thresholds.placement

    def limit_drafts(self, most: int, why: str) -> None:
        """Let up to ``most`` new tokens of a sequence follow the thresholds on a platform that takes no more."""
        self._most_verified = most, why

    def note(self, step: Step, group: str) -> None:
        """Count the tokens of a step once. Every group of layers sees the step under a name of its own."""
        self._counting = self._counting or group
        if self.metrics is None or group != self._counting:
            return
        if step.decode_only:
            self.metrics.step(decode=step.new.num_decoding)
            return
        counts = step.counts
        short = int((counts == 1).sum())
        draft = int(counts[counts <= 1 + self._drafts].sum()) - short if self._drafts else 0
        prompt = int(counts.sum()) - draft - short
        thresholded = prompt + draft if self._settings.prefill == "thresholded" else 0
        verified = 0 if step.drafts is None else step.drafts.verified
        self.metrics.step(
            decode=step.new.num_decoding, prompt=prompt, draft=draft + verified, short=short,
            thresholded=thresholded + verified,
        )  # fmt: skip

    def _why_dense(self, index: int, impl: Any) -> str | None:
        if has_window(impl.sliding_window):
            return _WINDOW
        return _CHOSEN if index in self._settings.dense_layers else None

    def _give_sparse_rules(self, impls: Mapping[int, Any]) -> None:
        """Give the layers that follow thresholds, by their indices in order, their rules."""
        if not impls:
            return
        settings, thresholds, layers = self._settings, self._thresholds, list(impls)
        if layers[-1] >= len(thresholds.theta):
            raise TopThetaValueError("model", f"layers 0 to {len(thresholds.theta) - 1}", str(layers[-1]))
        impl, counters = impls[layers[0]], None
        if self.metrics is not None:
            aims, device = Aims(thresholds, layers), thresholds.theta[0].device
            counters = Counters(len(layers), impl.num_heads, impl.num_kv_heads, aims, device)
            self.metrics.add_group(counters)
        group = LayerGroup(thresholds, layers, offline=settings.sdc == "offline", counters=counters)
        for index, impl in impls.items():
            impl.rule = LayerRule(
                index, group, impl.num_kv_heads, float(impl.scale), settings.sdc, settings.sdc_gamma,
                settings.prefill, settings.vmc,
            )  # fmt: skip

    def _log(self, sparse: list[int], dense: Mapping[str, list[int]]) -> None:
        settings, below = self._settings, self._thresholds.dense_below
        stay = [f"layers {_listed(layers)} ({reason})" for reason, layers in dense.items()]
        if not sparse:
            logger.info("Top-Theta: dense: %s", ", ".join(stay))
            return
        if below:
            why = "shorter ones are not faster by thresholds here" if settings.dense_below is None else "dense_below"
            stay.append(f"rows of fewer than {below} keys ({why})")
        if settings.prefill == "dense":
            stay.append("prompts (prefill=dense)")
            if self.why_dense_drafts:
                many = (
                    "" if self.verify_tokens == 1 else f" of sequences with more than {self.verify_tokens} new tokens"
                )
                stay.append(f"drafts{many} ({self.why_dense_drafts})")
        logger.info(
            "Top-Theta: layers %s decode by %s, sdc=%s, vmc=%s; dense: %s",
            _listed(sparse), settings.rule, settings.sdc, settings.vmc, ", ".join(stay) or "nothing",
        )  # fmt: skip

    def _warn(self, longest: int) -> None:
        """Log what the settings make worse than it needs to be; ``longest`` is the most keys of a sequence."""
        if self._settings.sdc == "exact" and not self._settings.vmc and self._settings.tau != 0:
            logger.warning("Top-Theta: %s", SDC_WITHOUT_VMC)
        if self._settings.tau is None and longest > self._thresholds.longest:
            logger.warning(
                "Top-Theta: rows of more than %d keys use the thresholds of that length, and sequences may have %d; "
                "calibrate on longer sequences, or set max_length and lookup=fitted",
                self._thresholds.longest, longest,
            )  # fmt: skip


# by the identity of vLLM's configuration, which cannot be hashed
_ENGINES: dict[int, tuple[weakref.ref[Any], EngineLayers]] = {}
# two engines may start in two threads of a process, whose counters have their names once
_MAKING = threading.Lock()


def engine_of(config: Any) -> EngineLayers | None:
    """Find this process's engine of vLLM's configuration, to read its counts; None if there is none."""
    known = _ENGINES.get(id(config))
    return known[1] if known is not None and known[0]() is config else None


def geometry_of(config: Any) -> Geometry:
    """Read the geometry of the model, as this rank sees it, from vLLM's configuration."""
    model, parallel = config.model_config, config.parallel_config
    text = model.hf_text_config
    return Geometry(
        num_layers=int(text.num_hidden_layers),
        num_heads=int(text.num_attention_heads),
        rank_heads=int(model.get_num_attention_heads(parallel)),
        rank=parallel.rank % parallel.tensor_parallel_size,
        folder=model_folder(model.model, model.revision),
    )


def has_window(window: object) -> bool:
    """Tell whether a layer sees only a window. Versions of vLLM write -1, (-1, -1) or None where it does not."""
    return window not in (None, -1, (-1, -1))


def check_engine(config: Any, settings: Settings, draft_models: bool = False) -> None:
    """Raise TopThetaNotImplementedError if vLLM's configuration asks for something that is not covered."""
    parallel, draft = config.parallel_config, config.speculative_config
    method = None if draft is None else draft.method
    covered = (None, *_DRAFTS_WITHOUT_LAYERS, *([_DRAFT_MODEL] if draft_models else []))
    check_covered({
        "use_mla": config.model_config.use_mla,
        "kv_transfer_config": config.kv_transfer_config,
        "kv_offloading_size": getattr(config.cache_config, "kv_offloading_size", None),
        "decode_context_parallel_size": getattr(parallel, "decode_context_parallel_size", 1) > 1,
        "prefill_context_parallel_size": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        "speculative_config": None if method in covered else method,
        "lora_config": config.lora_config if settings.tau is None and settings.check_weights else None,
    })  # fmt: skip


def _listed(layers: Iterable[int]) -> str:
    """Write numbers in words: runs of them by their ends."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
