"""The fingerprint of earlier threshold files (schema 1): one digest over the first and the last layer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import TopThetaValueError
from .attach import attention_modules, text_config

_GEOMETRY = ("model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")


def schema_1_fingerprint(model: PreTrainedModel) -> str:
    """The same for float32 and bfloat16, not for float16.

    Raises:
        TopThetaNotImplementedError: not one causal attention module per layer.
        TopThetaValueError: the weights are not in memory.
    """
    modules = attention_modules(model)
    digest = hashlib.sha256(json.dumps(_geometry(model, modules[0]), sort_keys=True, default=str).encode())
    for module in (modules[0], modules[-1]):
        for name, weight in _projections(module):
            if weight.is_meta:
                raise TopThetaValueError("model", "weights in memory", f"{name} on the meta device", "load it fully")
            digest.update(name.encode())
            rounded = weight.detach().to("cpu", torch.bfloat16).contiguous()
            digest.update(rounded.view(torch.int16).numpy().tobytes())
    return f"{text_config(model).model_type}-{digest.hexdigest()[:32]}"


def _geometry(model: PreTrainedModel, attention: Any) -> dict[str, object]:
    config = text_config(model)
    geometry = {name: getattr(config, name, None) for name in _GEOMETRY}
    geometry["head_dim"] = getattr(attention, "head_dim", None)
    geometry["rope_parameters"] = getattr(config, "rope_parameters", None)
    return geometry


def _projections(attention: Any) -> Iterator[tuple[str, Tensor]]:
    """The weights behind the scores; all of the module's where query and key have none of their own."""
    separate = hasattr(attention, "q_proj") and hasattr(attention, "k_proj")
    for name, weight in sorted(attention.named_parameters()):
        if not separate or name in ("q_proj.weight", "k_proj.weight"):
            yield name, weight
