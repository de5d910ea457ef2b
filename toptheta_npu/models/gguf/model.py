"""Builds the transformers model of a GGUF file, unless something would be lost or misread.

The sources for each architecture are convert_hf_to_gguf.py and src/llama-model.cpp of
https://github.com/ggml-org/llama.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..._files import file_error
from ...errors import TopThetaNotImplementedError, TopThetaValueError, shortened, shown

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

NO_WAY = "use the model's own checkpoint in place of the GGUF file"
#: Called with the number of tensors read, and with their total number.
Progress = Callable[[int, int], None]

#: The architectures by their names in the file, with their classes in transformers.
_CLASSES = {
    "llama": "LlamaForCausalLM", "gemma3": "Gemma3ForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}  # fmt: skip
#: Settings that every file has, by their names in a configuration of transformers.
_NEEDED = {
    "context_length": "max_position_embeddings", "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip
_OTHERS = ("vocab_size", "rope.dimension_count", "rope.freq_base", "attention.key_length", "attention.value_length")
_OF_GEMMA = ("attention.sliding_window", "rope.freq_base_swa", "rope.scaling.factor")
_NOT_SET = (0, False, "", "none")
#: Further settings whose values change nothing. The scaling "linear" is by its factor alone, other types are refused by
#: their name.
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "tensor_data_layout": ("", "reference", "Meta AI original pth"), "attention.causal": (True,),
    "rope.scaling.type": ("", "none", "linear"), "rope.scaling.factor": (0, 1), "rope.scale_linear": (0, 1),
    "rope.scaling.attn_factor": (1,), "attention.sliding_window_pattern": (6,),
}  # fmt: skip
_OF_SCALING = ("rope.scaling.original_context_length", "rope.scaling.finetuned")
#: What llama.cpp takes where the file has none.
_ROPE_BASE = 10000.0
#: Of Gemma 3: every sixth layer sees all tokens, and the largest model divides its scores by another number.
_GEMMA_PATTERN, _GEMMA_27B_LAYERS = 6, 62


def empty_model(
    file: Path, values: Mapping[str, Any], tensors: Sequence[Any], ids: Mapping[str, int | None], dtype: torch.dtype
) -> PreTrainedModel:
    """Make the model of a file's settings without its weights, after a check of everything but the weights.

    Args:
        file: path of the file, for error messages.
        values: settings of the file.
        tensors: tensors of the file, as gguf.GGUFReader has them.
        ids: ids of the special tokens bos, eos and pad.
        dtype: dtype of the weights to load.

    Raises:
        TopThetaValueError: settings or tensors are missing or do not fit.
        TopThetaNotImplementedError: settings or tensors that would be left out, or another architecture.
    """
    import transformers

    architecture = _architecture(file, values)
    model_class = getattr(transformers, _CLASSES[architecture])
    prefix = f"{architecture}."
    own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    _check_settings(file, architecture, own)
    config = model_class.config_class(
        vocab_size=own.get("vocab_size", len(values.get("tokenizer.ggml.tokens", ()))), dtype=dtype,
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in tensors),
        bos_token_id=ids["bos"], eos_token_id=ids["eos"], pad_token_id=ids["pad"],
        **_configuration(file, architecture, own),
    )  # fmt: skip
    with torch.device("meta"):
        model: PreTrainedModel = model_class(config)
    _check_tensors(file, {tensor.name: tuple(reversed(tensor.shape.tolist())) for tensor in tensors}, _names(model))
    return model


def load_weights(file: Path, model: PreTrainedModel, tensors: Sequence[Any], progress: Progress | None) -> None:
    """Dequantise the weights into an empty model, in its dtype.

    Raises:
        TopThetaValueError: weights that are not finite in this dtype.
        TopThetaNotImplementedError: a type of weights that cannot be dequantised.
    """
    names, weights = _names(model), {}
    for tensor in tensors:
        name = names[tensor.name][0]
        weights[name] = _weight(file, tensor, model.config).to(model.config.dtype)
        _check_finite(file, name, weights[name])
        if progress is not None:
            progress(len(weights), len(tensors))
    if model.config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.tie_weights()


def _architecture(file: Path, values: Mapping[str, Any]) -> str:
    if (parts := values.get("split.count", 0)) > 1:
        got = f"part {values.get('split.no', 0) + 1} of {parts}"
        raise file_error(file, "a whole model", got, "join its parts: llama-gguf-split --merge FIRST_PART WHOLE")
    architecture: str = values.get("general.architecture", "none")
    if architecture not in _CLASSES:
        expected = f"a model of the architecture {', '.join(_CLASSES)}"
        raise TopThetaNotImplementedError(str(file), expected, shown(architecture), NO_WAY)
    return architecture


def _check_settings(file: Path, architecture: str, own: Mapping[str, Any]) -> None:
    gemma = _OF_GEMMA if architecture == "gemma3" else ()
    if missing := [name for name in (*_NEEDED, *gemma[:1]) if name not in own]:
        got = f"one without {', '.join(f'{architecture}.{name}' for name in missing)}"
        raise file_error(file, f"all settings of a {architecture} model", got, NO_WAY)
    for name, value in own.items():
        taken = name in (*_NEEDED, *_OTHERS, *gemma, *_OF_SCALING) and not isinstance(value, list)
        if not taken and value not in _WITHOUT_EFFECT.get(name, _NOT_SET):
            expected = f"a {architecture} model of the usual settings, which transformers has too"
            got = f"{architecture}.{name} = {shortened(str(value))}"
            raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)


def _configuration(file: Path, architecture: str, own: Mapping[str, Any]) -> dict[str, Any]:
    found = {target: own[name] for name, target in _NEEDED.items()}
    found["head_dim"] = own.get("attention.key_length", found["hidden_size"] // found["num_attention_heads"])
    others = {own.get(name, found["head_dim"]) for name in ("rope.dimension_count", "attention.value_length")}
    if others != {found["head_dim"]}:
        got = f"heads of {found['head_dim']} with {', '.join(map(str, sorted(others)))} rotary or value elements"
        raise TopThetaNotImplementedError(str(file), "heads that are rotated as a whole", got, NO_WAY)
    rotation = {"rope_type": "default", "rope_theta": own.get("rope.freq_base", _ROPE_BASE)}
    return found | (_of_gemma(found, own, rotation) if architecture == "gemma3" else {"rope_parameters": rotation})


def _of_gemma(found: Mapping[str, Any], own: Mapping[str, Any], rotation: Mapping[str, Any]) -> dict[str, Any]:
    layers, factor = found["num_hidden_layers"], own.get("rope.scaling.factor", 0)
    scaled = {} if factor in (0, 1) else {"rope_type": "linear", "factor": factor}
    kinds = ["sliding_attention" if (layer + 1) % _GEMMA_PATTERN else "full_attention" for layer in range(layers)]
    is_27b = layers == _GEMMA_27B_LAYERS
    return {
        "sliding_window": own["attention.sliding_window"],
        "layer_types": kinds,
        "query_pre_attn_scalar": found["hidden_size"] // found["num_attention_heads"] if is_27b else found["head_dim"],
        "rope_parameters": {
            "full_attention": {**rotation, **scaled},
            "sliding_attention": {**rotation, "rope_theta": own.get("rope.freq_base_swa", _ROPE_BASE)},
        },
    }


def _names(model: PreTrainedModel) -> dict[str, tuple[str, tuple[int, ...]]]:
    """List the tensors that a file with the model has: by their names there, those in transformers and the shapes."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    architecture = model.config.model_type.removesuffix("_text")
    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
    known = get_tensor_name_map(kind, model.config.num_hidden_layers)
    names = {}
    for name, weight in model.state_dict().items():
        base, _, suffix = name.rpartition(".")
        if not (model.config.tie_word_embeddings and name == "lm_head.weight"):
            names[f"{known.get_name(base)}.{suffix}"] = name, tuple(weight.shape)
    return names


def _check_tensors(
    file: Path, shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, tuple[str, tuple[int, ...]]]
) -> None:
    for name, shape in shapes.items():
        if name not in names:
            got = "scaled rotary frequencies (rope_freqs.weight)" if name == "rope_freqs.weight" else shortened(name)
            expected = "a model of the usual tensors, which transformers has too"
            raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY)
        if shape != names[name][1]:
            expected = f"{name} of {' x '.join(map(str, names[name][1]))}, as its settings say"
            raise file_error(file, expected, " x ".join(map(str, shape)), NO_WAY)
    if missing := [name for name in names if name not in shapes]:
        got = f"{len(missing)} of {len(names)} missing, such as {missing[0]}"
        raise file_error(file, "all tensors of the model", got, NO_WAY)


def _weight(file: Path, tensor: Any, config: Any) -> Tensor:
    from gguf import dequantize

    try:
        weight: np.ndarray = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        expected, got = "weights of a type that gguf multiplies out", f"{tensor.tensor_type.name} of {tensor.name}"
        raise TopThetaNotImplementedError(str(file), expected, got, NO_WAY) from error
    part = tensor.name.split(".")[-2]
    if config.model_type == "llama" and part in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
        # pairs of rotated rows are adjacent; transformers wants the first of each pair, then the second of each
        weight = weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
    if config.model_type == "gemma3_text" and part.endswith("norm"):
        weight = weight - np.float32(1)
    return torch.from_numpy(np.array(weight, np.float32))


def _check_finite(file: Path, name: str, weight: Tensor) -> None:
    if not weight.isfinite().all():
        got = f"{name} with numbers that are not finite"
        if weight.dtype == torch.float32:
            raise file_error(file, "finite weights", got, "download it again")
        raise TopThetaValueError(
            "dtype", "one that holds all weights", got, f"{weight.dtype} may be too small for them"
        )
