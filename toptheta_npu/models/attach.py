"""Hanging a rule on every attention module of a model, and taking it off again whatever happens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown
from .attention import STATE, AttentionCall, LayerState, Rule, register
from .borrowing import lend_class, lend_name, sparse_class
from .rows import ForwardRows

_logger = logging.getLogger("toptheta_npu")
_ENTERING = threading.Lock()
FULL, SLIDING = "full_attention", "sliding_attention"


@contextmanager
def attached(model: PreTrainedModel, rule_of: Callable[[int], Rule]) -> Iterator[ForwardRows]:
    """Runs the attention of layer ``l`` of ``model`` by ``rule_of(l)`` within the context, in any thread.

    Layers with a sliding window stay as they are.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `check_model`, before
            anything is changed.
    """
    check_model(model)
    register()
    modules, sliding = attention_modules(model), sliding_layers(model)
    if sliding:
        _logger.info("layers %s have a sliding window and stay dense", ", ".join(map(str, sliding)))
    rows, thread = ForwardRows(), threading.current_thread()
    layers = [index for index in range(len(modules)) if index not in sliding]
    states = [LayerState(index, rule_of(index), rows, thread) for index in layers]
    with ExitStack() as undo:
        with _ENTERING:
            _check_outside(modules)
            for config in {id(module.config): module.config for module in modules}.values():
                undo.callback(lend_name(config))
            classes = {kind: sparse_class(kind) for kind in {type(module) for module in modules}}
            for state in states:
                module = modules[state.index]
                undo.callback(lend_class(module, classes[type(module)], state))
        yield rows


@contextmanager
def dense_prompts(model: PreTrainedModel) -> Iterator[None]:
    """Within a context that sparsifies ``model``: calls with several new tokens are dense and not in its statistics."""
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


def attention_modules(model: PreTrainedModel) -> list[Any]:
    """The causal attention modules of the text model, by layer.

    Raises:
        TopThetaNotImplementedError: there is not exactly one per layer.
    """
    found: dict[int, Any] = {}
    for module in model.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and getattr(module, "is_causal", False):
            found[index] = module
    layers = num_layers(model)
    if sorted(found) != list(range(layers)):
        raise TopThetaNotImplementedError(
            "model", f"one causal attention module for each of the {layers} layers", f"layers {sorted(found)}",
            "use a decoder-only model such as LLaMA, Mistral or Qwen",
        )  # fmt: skip
    return [found[index] for index in range(layers)]


def check_switches(**switches: object) -> None:
    """Raises TopThetaTypeError for an argument that is neither True nor False."""
    for name, value in switches.items():
        if type(value) is not bool:
            raise TopThetaTypeError(name, "True or False", shown(value))


def text_config(model: PreTrainedModel) -> Any:
    """The configuration of the model's decoder."""
    return model.config.get_text_config(decoder=True)


def num_layers(model: PreTrainedModel) -> int:
    """Layers of the model's decoder."""
    return int(text_config(model).num_hidden_layers)


def num_heads(model: PreTrainedModel) -> int:
    """Query heads per layer."""
    return int(text_config(model).num_attention_heads)


def num_key_value_heads(model: PreTrainedModel) -> int:
    """KV heads per layer."""
    return int(getattr(text_config(model), "num_key_value_heads", None) or num_heads(model))


def sliding_layers(model: PreTrainedModel) -> list[int]:
    """The layers in which a token sees only a window of those before it."""
    kinds = getattr(text_config(model), "layer_types", None) or []
    return [index for index, kind in enumerate(kinds) if kind == SLIDING]


def check_model(model: PreTrainedModel) -> None:
    """Raises a typed error unless Top-Theta can run ``model`` as it stands.

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
        _check_attention(module, text_config(model))


def _check_outside(modules: list[Any]) -> None:
    for module in modules:
        state: LayerState | None = getattr(module, STATE, None)
        if state is not None:
            same = state.thread is threading.current_thread()
            raise TopThetaValueError(
                "model", "a model outside any other Top-Theta context",
                "one inside" if same else f"one inside, which thread {state.thread.name!r} entered",
                "leave the other context first" + ("" if same else ", or use it: threads may share it"),
            )  # fmt: skip


def _check_attention(module: nn.Module, config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or [FULL])
    others = ", ".join(sorted(kinds - {FULL, SLIDING}))
    only_sliding = f"{SLIDING} in every layer" if kinds == {SLIDING} else None
    window = None if hasattr(config, "layer_types") else getattr(config, "sliding_window", None)
    dims = {name: getattr(module, name, None) for name in ("qk_head_dim", "v_head_dim")}
    unequal = "{qk_head_dim} for keys and {v_head_dim} for values".format(**dims)
    refused = [
        ("layer_types", others, f"{FULL} or {SLIDING} in every layer", "use a model with these alone"),
        ("layer_types", only_sliding, f"{FULL} in some layer", "use a model in which some layers see all tokens"),
        ("head_dim", len(set(dims.values())) > 1 and unequal, "the same for keys and values", "use another model"),
        (
            "num_kv_shared_layers",
            getattr(config, "num_kv_shared_layers", None),
            "0",
            "use a model whose layers keep keys and values of their own",
        ),
        ("sliding_window", window, "None", "set config.sliding_window = None if sequences stay below the window"),
        ("softcap", getattr(config, "attn_logit_softcapping", None), "None", "use a model without soft-capping"),
        ("sinks", "sinks" if hasattr(module, "sinks") else None, "no attention sinks", "use a model without sinks"),
        ("output_attentions", config.output_attentions, "False", "set config.output_attentions = False"),
    ]
    for name, value, expected, remedy in refused:
        if value:
            raise TopThetaNotImplementedError(name, expected, str(value), remedy)
