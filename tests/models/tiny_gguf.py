"""Tiny models in GGUF files, written as llama.cpp's own converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

LAYERS, HEADS, KV_HEADS, HIDDEN, INNER, CONTEXT = 2, 4, 2, 64, 96, 128
_IN_PAIRS = {"q_proj": HEADS, "k_proj": KV_HEADS}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokenizer."""

    model: str
    pre: str | None
    tokens: Sequence[str]
    merges: Sequence[str] | None = None
    special: int = len(SPECIAL)
    byte_tokens: Collection[int] = ()
    ids: Mapping[str, int] = field(default_factory=lambda: {"bos": 1, "eos": 2, "unk": 0, "pad": 2})
    types: Mapping[str, int] = field(default_factory=dict)
    scores: Sequence[Any] | None = None

    def id(self, token: str) -> int:
        return list(self.tokens).index(token)


def byte_level(pre: str | None = "smollm", more: Sequence[str] = ()) -> Vocabulary:
    """All bytes, some merges, also of blanks and digits, which a pre-tokenizer may keep apart."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = ["Ġ 1", "1 2", "Ġ Ġ", "h e", "Ġ t", "Ġt he"]
    merged = [merge.replace(" ", "") for merge in merges]
    return Vocabulary("gpt2", pre, [*SPECIAL, *sorted(ByteLevel.alphabet()), *merged, *more], merges)


def sentencepiece() -> Vocabulary:
    """Letters with a few merges, whose order is that of the scores."""
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["▁▁", "▁a", "▁b", "ab", "▁", *"ab1"]
    ids = {"bos": 1, "eos": 2, "unk": 0}
    return Vocabulary("llama", "default", [*first, *pieces], None, 3, range(3, 259), ids)


def make_model(
    vocabulary: int, *, tied: bool = True, seed: int = 0, name: str = "LlamaForCausalLM", **options: Any
) -> PreTrainedModel:
    """A random model whose norms and biases, too, are random."""
    torch.manual_seed(seed)
    model_class = getattr(transformers, name)
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    config = model_class.config_class(
        vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
        head_dim=HIDDEN // HEADS, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        initializer_range=0.2, **{"rope_parameters": rope, **options},
    )  # fmt: skip
    model: PreTrainedModel = model_class(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                weight.uniform_(0.5, 1.5)
    return model


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    vocabulary: Vocabulary | None,
    *,
    stored: gguf.GGMLQuantizationType = F32,
    settings: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    architecture: str = "llama",
) -> Path:
    """Write the model.

    Args:
        settings: more keys and values.
        without: settings and tensors that are left out.
        extra: more tensors.
    """
    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    values = {
        "context_length": CONTEXT, "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps, "vocab_size": config.vocab_size,
        "rope.freq_base": config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"],
        "rope.dimension_count": HIDDEN // HEADS,
    }  # fmt: skip
    values = {"general.name": "Tiny", **{f"{architecture}.{name}": value for name, value in values.items()}}
    values.update(settings or {})
    for name, value in values.items():
        if name not in without:
            _adder(writer, value)(name, value)
    if vocabulary is not None:
        _add_tokenizer(writer, vocabulary)
    for name, weight in {**_tensors(model, architecture), **(extra or {})}.items():
        if name in without:
            continue
        if weight.ndim == 1 or stored == F32:
            writer.add_tensor(name, weight.astype(np.float32))
        else:
            writer.add_tensor(name, gguf.quantize(weight, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def new_gguf(folder: Path, vocabulary: Vocabulary | None = None, *, tied: bool = True, **options: Any) -> Path:
    """Write a model of the size of its vocabulary, by default that of `byte_level`."""
    vocabulary = vocabulary or byte_level()
    return write_gguf(folder / "model.gguf", make_model(len(vocabulary.tokens), tied=tied), vocabulary, **options)


def _adder(writer: gguf.GGUFWriter, value: Any) -> Callable[[str, Any], None]:
    kinds: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
    }  # fmt: skip
    return kinds.get(type(value), writer.add_array)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    kinds = [gguf.TokenType.NORMAL] * len(vocabulary.tokens)
    kinds[: vocabulary.special] = [gguf.TokenType.CONTROL] * vocabulary.special
    for token in vocabulary.byte_tokens:
        kinds[token] = gguf.TokenType.BYTE
    for text, kind in vocabulary.types.items():
        kinds[vocabulary.id(text)] = kind
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(kinds)
    if vocabulary.pre is not None:
        writer.add_tokenizer_pre(vocabulary.pre)
    if vocabulary.merges is not None:
        writer.add_token_merges(vocabulary.merges)
    else:
        writer.add_token_scores(vocabulary.scores or [-float(index) for index in range(len(vocabulary.tokens))])
    for name, token in vocabulary.ids.items():
        add = {"bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id, "unk": writer.add_unk_token_id}
        add.get(name, writer.add_pad_token_id)(token)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensors(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    """The weights as llama.cpp's converter writes them, by the names that the package gguf has for them."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, LAYERS)
    tensors = {}
    for name, parameter in model.named_parameters():
        weight = parameter.detach().float().numpy()
        part = next((part for part in _IN_PAIRS if part in name), None)
        if architecture == "llama" and part:
            weight = _interleaved(weight, _IN_PAIRS[part])
        if architecture == "gemma3" and "norm" in name:
            weight = weight + np.float32(1)
        base, _, suffix = name.rpartition(".")
        tensors[f"{names.get_name(base)}.{suffix}"] = weight
    return tensors


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head: the first of the first half, the first of the second half, the second of the first, ..."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
