"""Which V rows each token wants, and how many query heads of a KV group want them (the paper's GQA figure)."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ...errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown
from ...fallback.prefill import RowChunk, Selector, row_chunks
from ...fallback.reference import never_empty
from ...models.hook.architecture import attention_modules, num_heads, num_key_value_heads, num_layers, sliding_layers
from ...models.hook.attention import STATE, AttentionCall, LayerState, Rule
from ...models.sparse.selection import SelectionRule
from ...models.sparse.threshold_rule import ThresholdRule
from ..methods.method import Method


@dataclass(frozen=True, eq=False)
class PopularityMap:
    """How many query heads of one KV group want each V row, token by token.

    Attributes:
        layer: the layer.
        group: the KV head.
        first_row: the position of the first token of the map.
        wanted: int8 [rows, keys], 0 also for the keys that come after a token.

    Example:
        >>> found = PopularityMap(2, 0, first_row=1, wanted=torch.tensor([[4, 1, 0], [4, 0, 2]], dtype=torch.int8))
        >>> found.value_rows.tolist()
        [2, 2]
        >>> PopularityMap.from_json(found.as_json()).wanted.equal(found.wanted)
        True
    """

    layer: int
    group: int
    first_row: int
    wanted: Tensor

    @property
    def value_rows(self) -> Tensor:
        """V rows that each token wants, int64 [rows]."""
        return (self.wanted > 0).sum(1)

    def as_json(self) -> dict[str, Any]:
        """For the details of a measurement; the map, nearly all of it 0, is packed by zlib and base64."""
        packed = base64.b64encode(zlib.compress(self.wanted.numpy().tobytes(), 9)).decode()
        place = {"layer": self.layer, "group": self.group, "first_row": self.first_row}
        return {**place, "shape": list(self.wanted.shape), "wanted": packed}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> PopularityMap:
        """What `as_json` gave."""
        numbers = np.frombuffer(zlib.decompress(base64.b64decode(found["wanted"])), dtype=np.int8)
        wanted = torch.from_numpy(numbers.reshape(found["shape"]).copy())
        return cls(found["layer"], found["group"], found["first_row"], wanted)


def popularity(
    model: PreTrainedModel, tokens: Tensor, method: Method, *, layer: int, group: int = 0, rows: int = 128
) -> PopularityMap:
    """The V rows that the last tokens of a text want in one layer and KV group.

    The tokens before them run densely and fill the cache, as a prompt does; then each of the last runs under the
    method as its decode step would.

    Args:
        model: in evaluation mode.
        tokens: int64 [T].
        method: one that selects elements by a rule of its own or by thresholds.
        layer: not one with a sliding window.
        group: the KV head.
        rows: how many of the last tokens.

    Raises:
        TopThetaTypeError, TopThetaValueError: an argument is unusable.
        TopThetaNotImplementedError: the method selects nothing in this layer.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> from toptheta_npu.evaluation.methods import kinds
        >>> model = load_tiny_llama()[0]
        >>> method = kinds.top_k(16, [16] * model.config.num_hidden_layers)
        >>> popularity(model, torch.arange(300), method, layer=2, rows=3).wanted.sum(1).tolist()
        [64, 64, 64]
    """
    _check(model, tokens, layer, group, rows)
    wanted = torch.zeros(rows, len(tokens), dtype=torch.int8)
    ids = tokens[None].to(model.device)
    with torch.inference_mode():
        cache = DynamicCache(config=model.config)
        model(ids[:, :-rows], past_key_values=cache, logits_to_keep=1)
        with method.enter(model):
            state: LayerState = getattr(attention_modules(model)[layer], STATE)
            state.rule = _watched(state.rule, _Watch(wanted, group, model), method, layer)
            model(ids[:, -rows:], past_key_values=cache, logits_to_keep=1)
    return PopularityMap(layer, group, len(tokens) - rows, wanted)


class _Watch:
    """Counts the heads of one group in the masks that pass by, into a map [rows, keys]."""

    def __init__(self, wanted: Tensor, group: int, model: PreTrainedModel) -> None:
        size = num_heads(model) // num_key_value_heads(model)
        self._wanted = wanted
        self._heads = slice(group * size, (group + 1) * size)

    def selector(self, select: Selector) -> Selector:
        """``select``, seen."""

        def seen(chunk: RowChunk) -> Tensor:
            selected = select(chunk)
            keep = never_empty(selected & chunk.visible, chunk.scores)
            self._wanted[chunk.rows, : keep.shape[-1]] = keep[0, self._heads].sum(0).to("cpu", torch.int8)
            return selected

        return seen


class _WatchedThresholds:
    """A rule by thresholds, whose masks are worked out once more."""

    def __init__(self, rule: ThresholdRule, watch: _Watch) -> None:
        self._rule = rule
        self._select = watch.selector(rule.selector())

    def attend(self, call: AttentionCall) -> Tensor:
        """What the rule says."""
        prompt = {name: each for name, each in call.prompt.items() if name != "value"}
        for chunk in row_chunks(call.query, **prompt):
            self._select(chunk)
        return self._rule.attend(call)


def _watched(rule: Rule, watch: _Watch, method: Method, layer: int) -> Rule:
    if isinstance(rule, ThresholdRule):
        return _WatchedThresholds(rule, watch)
    if isinstance(rule, SelectionRule):
        rule.select = watch.selector(rule.select)
        return rule
    raise TopThetaNotImplementedError(
        "method", f"one that selects elements in layer {layer}", method.family, "draw the map of another method"
    )


def _check(model: PreTrainedModel, tokens: Tensor, layer: int, group: int, rows: int) -> None:
    if not isinstance(tokens, Tensor) or tokens.dim() != 1:
        got = f"{list(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TopThetaTypeError("tokens", "a tensor [T] of one text", got)
    bounds = (
        ("layer", layer, 0, num_layers(model) - 1),
        ("group", group, 0, num_key_value_heads(model) - 1),
        ("rows", rows, 1, len(tokens) - 1),
    )
    for name, number, least, most in bounds:
        if type(number) is not int:
            raise TopThetaTypeError(name, "an int", shown(number))
        if not least <= number <= most:
            raise TopThetaValueError(name, f"{least} to {most}", str(number))
    if layer in sliding_layers(model):
        raise TopThetaValueError("layer", "a layer that sees all tokens", f"{layer}, which has a sliding window")
