"""The fingerprint of a model in memory or in a folder, and the check of a table against it."""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from ..._files import checked_path, status
from ..._gguf import how_to_convert, is_gguf
from ...errors import TopThetaTypeError, TopThetaValueError
from ...thresholds import ThresholdTable
from ...thresholds.fingerprint import Fingerprint, differences
from ..hook.architecture import num_heads, num_layers, text_config
from .folder import weights_of_folder
from .settings import digest_of
from .weights import weight_digests, weights_of_model

#: Settings of a configuration that scale the scores, where an architecture has them.
_SCALING = ("attention_multiplier", "query_pre_attn_scalar", "scale_attn_weights", "scale_attn_by_inverse_layer_idx")


def model_fingerprint(model: PreTrainedModel) -> str:
    """Compute a short text that identifies a model.

    Thresholds depend on the geometry, the rotary parameters, and the query and key weights of every layer. The text has
    one digest for each; the weights count through some of their rows. Other weights do not count. A LoRA of only V,
    output or MLP projections therefore does not change the text, although it changes the scores of later layers.

    Device and dtype do not matter: a bfloat16 or float16 checkpoint gives the same text in float32, bfloat16 and
    float16. Weights that accelerate offloads are read where they are.

    Raises:
        TopThetaNotImplementedError: some layer does not have exactly one causal attention module with its own weights,
            or the weights are quantised in a form whose numbers cannot be read.
        TopThetaValueError: weights on the meta device that cannot be fetched.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        ...                      num_attention_heads=2, vocab_size=8)
        >>> model = LlamaForCausalLM(config).bfloat16()
        >>> model_fingerprint(model) == model_fingerprint(model.half())
        True
    """
    config = text_config(model)
    return _fingerprint(config, weight_digests(weights_of_model(model), config.num_hidden_layers))


def folder_fingerprint(folder: str | os.PathLike[str]) -> str:
    """Compute the :func:`model_fingerprint` of the model in a folder without building it.

    Use it for models in serving engines, which fuse and shard the weights.

    Args:
        folder: folder with a ``config.json`` and the weights in one or more ``*.safetensors``, as ``save_pretrained``
            writes them. An index selects the files, as in transformers. Only the rows that count are read.

    Raises:
        TopThetaTypeError: ``folder`` is not a path.
        TopThetaValueError: the folder does not exist, or its configuration or weights cannot be read.
        TopThetaNotImplementedError: the weights do not belong to a decoder with attention in every layer.

    Example:
        >>> from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama
        >>> folder_fingerprint(TINY_LLAMA) == model_fingerprint(load_tiny_llama()[0])
        True
    """
    path = checked_path(folder)
    if status(path / "config.json", "the configuration of a model") is None:
        got = "no config.json" if path.is_dir() else "a GGUF file" if is_gguf(path) else "no such folder"
        remedy = how_to_convert(path) if is_gguf(path) else "give what save_pretrained wrote to"
        raise TopThetaValueError(str(folder), "the folder of a model", got, remedy)
    try:
        whole = AutoConfig.from_pretrained(path, local_files_only=True)
        config = whole.get_text_config(decoder=True)
        layers = int(config.num_hidden_layers)
    # a configuration's own checks may raise anything
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise TopThetaValueError(str(path / "config.json"), "a transformers configuration", reason) from error
    with weights_of_folder(path, getattr(whole, "transformers_weights", None)) as weights:
        return _fingerprint(config, weight_digests(weights, layers))


def check_table(model: PreTrainedModel, thresholds: ThresholdTable) -> None:
    if not isinstance(thresholds, ThresholdTable):
        raise TopThetaTypeError(
            "thresholds", "a ThresholdTable", type(thresholds).__name__, "load the file with ThresholdTable.load(path)"
        )
    have, want = (thresholds.num_layers, thresholds.num_heads), (num_layers(model), num_heads(model))
    if have != want:
        raise TopThetaValueError(
            "thresholds", "{} layers x {} heads, as the model has".format(*want), "{} x {}".format(*have),
            "calibrate this model",
        )  # fmt: skip
    check_fingerprint(model, thresholds)


def check_fingerprint(model: PreTrainedModel, table: ThresholdTable) -> None:
    """Raise TopThetaValueError, which says what differs, unless ``table`` was calibrated for ``model``."""
    own = model_fingerprint(model)
    different = differences(own, table.fingerprint)
    if not different:
        return
    remedy = "calibrate this model, or load the file that belongs to it"
    if different == ["weights"] and model.dtype in (torch.float16, torch.bfloat16):
        remedy += "; a float32 checkpoint has other weights in float16 than in bfloat16: calibrate it in float32"
    if different == ["weights"] and getattr(model.config, "quantization_config", None) is not None:
        remedy += "; a quantised model may repack its weights at its first call: load it anew, or use tau"
    got = f"those of {table.fingerprint}, which differs in {' and '.join(different)}"
    raise TopThetaValueError("thresholds", f"those of this model, {own}", got, remedy)


def _fingerprint(config: Any, weights: tuple[str, ...]) -> str:
    heads = config.num_attention_heads
    geometry = {
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "hidden_size": config.hidden_size,
        **{name: getattr(config, name, None) for name in _SCALING},
    }
    rotary = getattr(config, "rope_parameters", None)
    return str(Fingerprint(config.model_type, digest_of(geometry), digest_of(rotary), weights))
