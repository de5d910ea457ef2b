"""The attention function that transformers calls.

It is registered once, under one name, together with a mask function: without that a prefill would silently lose
causality. It does nothing by itself: a module without a rule runs the original implementation. The `LayerState`
attached to a module holds its rule. The state of a call belongs to its thread, since several threads may run one model.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..._derivatives import has_tangent
from ...errors import TopThetaNotImplementedError, TopThetaValueError
from ...ops import incremental_attention
from ..caches.value_mean import CachedLayer, cache_among, look_at_cache, value_mean_without_cache
from ..caches.visible_keys import ForwardRows, Rows

NAME = "toptheta"
STATE = "_toptheta_state"

_PACKED = "run packed sequences as a padded batch"
_SPARSE = "the model chooses its keys by itself; use one whose layers attend to all of them"
#: Keyword arguments of attention functions that change the attention, and what to do instead.
_UNSUPPORTED = {
    "softcap": "Top-Theta does not know soft-capped scores; use a model without attn_logit_softcapping",
    "sinks": "Top-Theta takes attention sinks as s_aux; use a model that passes them so, such as GPT-OSS",
    "sliding_window": "set config.sliding_window to None if no sequence is longer than the window",
    "position_bias": "use a model with rotary positions",
    "head_mask": "leave it out",
    "cache": "continuous batching is not supported; use generate()",
    "cu_seq_lens_q": _PACKED,
    "cu_seq_lens_k": _PACKED,
    "indices": _SPARSE,
    "block_indices": _SPARSE,
}
#: Rows whose mask is made at once if the model has sinks: such a mask has one number per head.
_ROWS_PER_MASK = 256


@dataclass(frozen=True)
class AttentionCall:
    """One call of the attention function: query [B, Hq, Q, D]; key, value [B, Hkv, S, D]; its rows' visible keys."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scaling: float | None
    options: Mapping[str, Any]
    rows: Rows
    forward: ForwardRows
    cached: CachedLayer | None

    def dense(self) -> Tensor:
        """Run the original implementation: [B, Hq, Q, D]. A step over an int8 cache keeps every key instead."""
        if self.antiquant and self.query.shape[2] == 1:
            everything = torch.full((self.query.shape[1],), -torch.inf, dtype=torch.float32, device=self.query.device)
            return incremental_attention(
                self.query, self.key, self.value, everything, actual_seq_lengths=self.rows.lengths,
                key_start=self.rows.starts, scale_value=self.scaling, learnable_sink=self.learnable_sink,
                **self.antiquant,
            )  # fmt: skip
        key, value = (rows.to(self.query.dtype) for rows in self.dequantised())
        out = dense_attention(self.module, self.query, key, value, self.mask, scaling=self.scaling, **self.options)
        return out.transpose(1, 2)

    @property
    def learnable_sink(self) -> Tensor | None:
        """One more logit per query head, float32 [Hq]; None if the model has none."""
        sink: Tensor | None = self.options.get("s_aux")
        return None if sink is None else sink.detach().float()

    @property
    def antiquant(self) -> dict[str, Any]:
        """Scales and modes of an int8 cache, as the operators take them; empty if key and value are not int8."""
        if self.cached is None or self.key.dtype is not torch.int8:
            return {}
        return self.cached.antiquant

    def dequantised(self) -> tuple[Tensor, Tensor]:
        """Return key and value [B, Hkv, S, D], dequantised if they are int8."""
        if self.cached is None or self.key.dtype is not torch.int8:
            return self.key, self.value
        return self.cached.dequantised(self.key, self.value)

    def value_mean(self) -> Tensor:
        """Compute the mean of the valid V rows that each new token sees, as `CachedLayer.value_mean` does."""
        if self.cached is None:
            return value_mean_without_cache(self.value, self.rows)
        return self.cached.value_mean(self.value, self.rows)

    @property
    def prompt(self) -> dict[str, Any]:
        """Key, value and the arguments that locate the rows, as prefill functions take them."""
        key, value = (rows.to(self.query.dtype) for rows in self.dequantised())
        return {
            "key": key[:, :, : self.rows.span],
            "value": value[:, :, : self.rows.span],
            "actual_seq_lengths": self.rows.lengths,
            "key_start": self.rows.starts,
            "scale_value": self.scaling,
            "learnable_sink": self.learnable_sink,
        }


class Rule(Protocol):
    """The attention of a sparsified layer, which replaces dense attention."""

    def attend(self, call: AttentionCall) -> Tensor:
        """Compute the attention output [B, Hq, Q, D]."""


class LayerState:
    """The state of a sparsified attention module.

    Attributes:
        index: index of the layer.
        rule: rule of the layer.
        rows: finds the rows of a pass; all layers of the context share it.
    """

    def __init__(self, index: int, rule: Rule, rows: ForwardRows) -> None:
        self.index = index
        self.rule = rule
        self.rows = rows
        self._calls = threading.local()
        self._asked: CachedLayer | None = None

    def before_forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Look up the cache layer in the module's call. The attention function itself does not get the cache."""
        cached = look_at_cache(cache_among(args, kwargs), self.index, self.rows)
        if cached is not None:
            cached.ask_for_numbers()
            self._asked = cached
        self._calls.seen = (cached,)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy of the module is dense
        return _no_state, ()

    def leave(self) -> None:
        """Undo the request that an interrupted call made of its cache."""
        if self._asked is not None:
            self._asked.ask_for_numbers(False)

    def take_cached(self) -> CachedLayer | None:
        """Take the cache layer of this thread's call.

        Raises:
            TopThetaNotImplementedError: asked twice in one call.
        """
        seen: tuple[CachedLayer | None] | None = getattr(self._calls, "seen", None)
        if seen is None:
            raise TopThetaNotImplementedError(
                "model", "one attention per call of an attention module",
                "several, or a context that began in the middle of a call", "use another model",
            )  # fmt: skip
        self._calls.seen = None
        return seen[0]


def _no_state() -> None:
    return None


def register() -> None:
    """Register the name with transformers. Further calls change nothing."""
    if NAME not in AttentionInterface._global_mapping:
        AttentionMaskInterface.register(NAME, sdpa_mask)
        AttentionInterface.register(NAME, attention_forward)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers wants it: query [B, Hq, Q, D], key and value [B, Hkv, S, D] -> [B, Q, Hq, D].

    Raises:
        TopThetaNotImplementedError: the model or caller asks for something that Top-Theta does not do.
        TopThetaValueError: training mode, or gradients are wanted.
    """
    state: LayerState | None = getattr(module, STATE, None)
    if state is None:
        kwargs.update(dropout=dropout, scaling=scaling)
        return dense_attention(module, query, key, value, attention_mask, **kwargs), None
    cached = state.take_cached()
    _refuse_unsupported(module, query, dropout, kwargs)
    if cached is not None:
        cached.check_holds(value)
    key, value = (_as_query(rows, query) for rows in (key, value))
    rows = state.rows.of(state.index, query, key, attention_mask, None if cached is None else cached.seen)
    call = AttentionCall(module, query, key, value, attention_mask, scaling, kwargs, rows, state.rows, cached)
    out = state.rule.attend(call)
    if cached is not None and query.shape[2] > 1:
        cached.forget_older_mean()
    return out.transpose(1, 2).contiguous(), None


def dense_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    s_aux: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Run PyTorch's attention as transformers does: query [B, Hq, Q, D], key and value [B, Hkv, S, D] -> [B, Q, Hq, D].

    PyTorch's attention has no sinks. Here ``s_aux`` [Hq] are the scores of one more key, whose V row is 0.
    """
    if s_aux is None:
        return _attend(module, query, key, value, mask, options)
    count, span = query.shape[2], key.shape[2]
    if mask is None:  # a prompt begins with the first key, and a step sees all
        mask = torch.ones(1, 1, count, span, dtype=torch.bool, device=query.device)
        mask = mask.tril() if count > 1 else mask
    key, value = (nn.functional.pad(each, (0, 0, 0, 1)) for each in (key, value))
    sink = s_aux.to(query.dtype).view(1, -1, 1, 1)
    parts = []
    for first in range(0, count, _ROWS_PER_MASK):
        rows = slice(first, first + _ROWS_PER_MASK)
        visible = mask[:, :, rows]
        bias = torch.where(visible, 0.0, -torch.inf).to(query.dtype) if visible.dtype == torch.bool else visible
        shape = (len(bias), sink.shape[1], bias.shape[2])
        with_sink = torch.cat([bias.expand(*shape, -1), sink.expand(*shape, 1)], -1)
        parts.append(_attend(module, query[:, :, rows], key, value, with_sink, options))
    return torch.cat(parts, 1)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> Tensor:
    out: Tensor = sdpa_attention_forward(module, query, key, value, mask, **options)[0]
    return out


def _as_query(rows: Tensor, query: Tensor) -> Tensor:
    """Convert K or V rows, except int8 ones, to the query's dtype. Under autocast without a cache, V has another."""
    return rows if rows.dtype in (query.dtype, torch.int8) else rows.to(query.dtype)


def _refuse_unsupported(module: nn.Module, query: Tensor, dropout: float, kwargs: Mapping[str, Any]) -> None:
    for name, value in kwargs.items():
        if value is not None and name in _UNSUPPORTED:
            raise TopThetaNotImplementedError(name, "none", _brief(value), _UNSUPPORTED[name])
    _check_sink(module, query, kwargs.get("s_aux"))
    if kwargs.get("is_causal") is False:
        raise TopThetaNotImplementedError("is_causal", "causal attention", "False", "sparsify decoder models only")
    if kwargs.get("output_attentions"):
        raise TopThetaNotImplementedError(
            "output_attentions", "False", "True", "Top-Theta never forms the attention matrix; see statistics=True"
        )
    if module.training or dropout:
        raise TopThetaValueError("model", "a model in evaluation mode", "training mode", "call model.eval()")
    if query.requires_grad and torch.is_grad_enabled():
        raise TopThetaValueError(
            "model", "no gradients (Top-Theta is for inference)", "grad mode on", "run it under torch.no_grad()"
        )
    if has_tangent(query):
        raise TopThetaValueError(
            "model", "no tangents (Top-Theta is for inference)", "forward-mode differentiation",
            "differentiate the model outside the context",
        )  # fmt: skip


def _check_sink(module: nn.Module, query: Tensor, sink: object) -> None:
    if sink is None and not hasattr(module, "sinks"):
        return
    if not isinstance(sink, Tensor) or tuple(sink.shape) != (query.shape[1],):
        raise TopThetaNotImplementedError(
            "s_aux", f"one attention sink for each of the {query.shape[1]} query heads", _brief(sink),
            "use a model that hands over its sinks so, such as GPT-OSS",
        )  # fmt: skip


def _brief(value: object) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
