"""Finds a model's attention modules and sizes, and whether Top-Theta can run them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..._checks import DTYPES, HEAD_DIMS
from ...errors import TopThetaNotImplementedError, TopThetaTypeError

FULL, SLIDING = "full_attention", "sliding_attention"


def attention_modules(model: PreTrainedModel) -> list[Any]:
    """Find the causal attention modules of the text model, by layer.

    Raises:
        TopThetaNotImplementedError: a layer has none, or several.
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


def text_config(model: PreTrainedModel) -> Any:
    """Return the configuration of the model's decoder."""
    return model.config.get_text_config(decoder=True)


def num_layers(model: PreTrainedModel) -> int:
    """Count the layers of the model's decoder."""
    return int(text_config(model).num_hidden_layers)


def num_heads(model: PreTrainedModel) -> int:
    """Count the query heads per layer."""
    return int(text_config(model).num_attention_heads)


def num_key_value_heads(model: PreTrainedModel) -> int:
    """Count the KV heads per layer."""
    return int(getattr(text_config(model), "num_key_value_heads", None) or num_heads(model))


def sliding_layers(model: PreTrainedModel) -> list[int]:
    """List the layers in which a token sees only a window of the tokens before it."""
    kinds = getattr(text_config(model), "layer_types", None) or []
    return [index for index, kind in enumerate(kinds) if kind == SLIDING]


def window_in_words(model: PreTrainedModel) -> str:
    """Describe in words which tokens `sliding_layers` see."""
    tokens = getattr(text_config(model), "sliding_window", None)
    return f"a sliding window of {tokens} tokens" if tokens else "a sliding window"


def check_operator_takes(model: PreTrainedModel) -> None:
    """Refuse a model that the operators would refuse in the first decode step, in the model's words.

    Raises:
        TopThetaTypeError: a layer that attends to all tokens has weights in float64.
        TopThetaNotImplementedError: such a layer's heads have a size that the operators do not take.
    """
    sliding, config = sliding_layers(model), text_config(model)
    for index, module in enumerate(attention_modules(model)):
        if index in sliding:
            continue
        if any(parameter.dtype is torch.float64 for parameter in module.parameters()):
            wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            remedy = "convert it with model.float()"
            raise TopThetaTypeError("model", f"weights in one of {wanted}", f"float64 in layer {index}", remedy)
        name, head_dim = _head_dim(module, config)
        if not HEAD_DIMS[0] <= head_dim <= HEAD_DIMS[1]:
            wanted = f"from {HEAD_DIMS[0]} to {HEAD_DIMS[1]} in a layer that attends to all tokens"
            raise TopThetaNotImplementedError(name, wanted, str(head_dim), "use a model with heads of such a size")


def _head_dim(module: nn.Module, config: Any) -> tuple[str, int]:
    """Find the size of a layer's heads, and the model's name for it."""
    for name in ("qk_head_dim", "head_dim", "head_size"):
        size = getattr(module, name, None)
        if isinstance(size, int):
            return name, size
    size = getattr(config, "head_dim", None)
    if size:
        return "head_dim", int(size)
    return "hidden_size / num_attention_heads", int(config.hidden_size // config.num_attention_heads)


def check_attention(module: nn.Module, config: Any) -> None:
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
        ("output_attentions", config.output_attentions, "False", "set config.output_attentions = False"),
    ]
    for name, value, expected, remedy in refused:
        if value:
            raise TopThetaNotImplementedError(name, expected, str(value), remedy)
