"""Attaches a rule to every attention module of a model, and always detaches it again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown
from ..caches.visible_keys import ForwardRows
from .architecture import attention_modules, check_attention, sliding_layers, text_config
from .attention import STATE, AttentionCall, LayerState, Rule, register
from .borrowing import patch_name, patch_state

_logger = logging.getLogger("toptheta_npu")
_ENTERING = threading.Lock()


@contextmanager
def attached(model: PreTrainedModel, rule_of: Callable[[int], Rule]) -> Iterator[ForwardRows]:
    """Run the attention of layer ``l`` of ``model`` under ``rule_of(l)`` within the context, in any thread.

    Layers with a sliding window are not changed.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `check_model`, before
            anything is changed.
    """
    check_model(model)
    register()
    modules, sliding = attention_modules(model), sliding_layers(model)
    if sliding:
        _logger.info("layers %s have a sliding window and stay dense", ", ".join(map(str, sliding)))
    rows = ForwardRows()
    layers = [index for index in range(len(modules)) if index not in sliding]
    states = [LayerState(index, rule_of(index), rows) for index in layers]
    with ExitStack() as undo:
        with _ENTERING:
            _check_outside(modules)
            for config in {id(module.config): module.config for module in modules}.values():
                undo.callback(patch_name(config))
            for state in states:
                undo.callback(patch_state(modules[state.index], state))
                undo.callback(state.leave)
        yield rows


@contextmanager
def dense_prompts(model: PreTrainedModel) -> Iterator[None]:
    """Keep calls with several new tokens dense and out of the statistics of a context that sparsifies ``model``."""
    states = [state for module in attention_modules(model) if (state := getattr(module, STATE, None)) is not None]
    rules: list[Rule] = [state.rule for state in states]
    for state in states:
        state.rule = _DensePrompts(state.rule)
    try:
        yield
    finally:
        for state, rule in zip(states, rules, strict=True):
            state.rule = rule


class _DensePrompts:
    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def attend(self, call: AttentionCall) -> Tensor:
        return call.dense() if call.query.shape[2] > 1 else self._rule.attend(call)


def check_switches(**switches: object) -> None:
    """Raise TopThetaTypeError for an argument that is neither True nor False."""
    for name, value in switches.items():
        if type(value) is not bool:
            raise TopThetaTypeError(name, "True or False", shown(value))


def check_model(model: PreTrainedModel) -> None:
    """Raise a typed error unless Top-Theta can run ``model`` as it stands.

    Raises:
        TopThetaTypeError: not a transformers model.
        TopThetaValueError: training mode, or already attached.
        TopThetaNotImplementedError: the architecture is not supported.
    """
    if not isinstance(model, PreTrainedModel):
        raise TopThetaTypeError(
            "model", "a transformers PreTrainedModel", type(model).__name__, "pass the model itself, not a wrapper"
        )
    if model.training:
        raise TopThetaValueError("model", "a model in evaluation mode", "training mode", "call model.eval()")
    if model.config.is_encoder_decoder or not model._can_set_attn_implementation():
        raise TopThetaNotImplementedError(
            "model", "a decoder-only model whose attention implementation can be chosen", type(model).__name__,
            "use a model such as LLaMA, Mistral or Qwen",
        )  # fmt: skip
    modules = attention_modules(model)
    _check_outside(modules)
    for module in modules:
        check_attention(module, text_config(model))


def _check_outside(modules: list[Any]) -> None:
    if any(getattr(module, STATE, None) is not None for module in modules):
        raise TopThetaValueError(
            "model", "a model outside any other Top-Theta context", "one inside",
            "leave the other context first, or use it: threads may share it",
        )  # fmt: skip
