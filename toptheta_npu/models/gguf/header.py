"""What a GGUF file says of its model, and whether nothing of it would be lost or taken wrongly."""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._files import checked_path, file_error, status
from ...errors import TopThetaNotImplementedError

if TYPE_CHECKING:
    from gguf import GGUFReader

_WHAT = "a GGUF file"
#: What transformers takes from a file, of ``llama.*``; it leaves the rest out without a word.
_NEEDED = (
    "context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon",
)  # fmt: skip
_TAKEN = (
    *_NEEDED, "vocab_size", "rope.freq_base", "rope.dimension_count", "attention.key_length", "attention.value_length",
)  # fmt: skip
_NOT_SET = (0, False, "", "none")
_OF_LAYER = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip
NO_WAY = "use the model's own checkpoint in place of the GGUF file"


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of a LLaMA model.

    Attributes:
        file: the file.
        name: of the model; "" if it has none.
        layers, heads, kv_heads: of its attention.
        longest: tokens of its context.
        parameters: all weights.
        stored: in how many of the tensors each type of numbers is, the type of the most weights first.
        tokenizer: tokenizer.ggml.* and the chat template, the vocabulary itself left out.
    """

    file: Path
    name: str
    layers: int
    heads: int
    kv_heads: int
    longest: int
    parameters: int
    stored: dict[str, int]
    tokenizer: dict[str, Any]


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read what a GGUF file says of its model, and check that all of it can be converted.

    Needs the package gguf.

    Raises:
        TopThetaTypeError: ``path`` is not a path.
        TopThetaValueError: there is no such file, or it is damaged, incomplete or without a tokenizer.
        TopThetaNotImplementedError: another architecture than LLaMA, or settings and tensors that transformers
            would leave out.
    """
    file = checked_path(path)
    reader = _opened(file)
    values = {name: field.contents() for name, field in reader.fields.items() if not _is_long(name)}
    _check_architecture(file, values)
    _check_settings(file, values)
    _check_tensors(file, [tensor.name for tensor in reader.tensors], values)
    _check_tokenizer(file, reader.fields)
    weights: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    for tensor in reader.tensors:
        weights[tensor.tensor_type.name] += int(tensor.n_elements)
        tensors[tensor.tensor_type.name] += 1
    return Header(
        file=file,
        name=str(values.get("general.name", "")),
        layers=int(values["llama.block_count"]),
        heads=int(values["llama.attention.head_count"]),
        kv_heads=int(values["llama.attention.head_count_kv"]),
        longest=int(values["llama.context_length"]),
        parameters=sum(weights.values()),
        stored={name: tensors[name] for name, _ in weights.most_common()},
        tokenizer={name: value for name, value in values.items() if name.startswith("tokenizer.")},
    )


def _opened(file: Path) -> GGUFReader:
    from gguf import GGUFReader

    found = status(file, _WHAT)
    if found is None:
        raise file_error(file, _WHAT, "no such file", "correct the path")
    if not stat.S_ISREG(found.st_mode):
        raise file_error(file, _WHAT, "a folder" if stat.S_ISDIR(found.st_mode) else "a device or pipe")
    try:
        reader = GGUFReader(file)
    except OSError as error:
        raise file_error(file, _WHAT, f"one that cannot be read ({error.strerror or error})") from error
    # whatever the reader stumbles over in a damaged file
    except Exception as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        got = f"another file, or one that ends early or is damaged ({reason})"
        raise file_error(file, "a whole GGUF file", got, "download it again") from error
    if reader.byte_order != "I":
        raise TopThetaNotImplementedError(str(file), "a little-endian GGUF file", "a big-endian one", NO_WAY)
    return reader


def _is_long(name: str) -> bool:
    return name in (
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
    )


def _check_architecture(file: Path, values: dict[str, Any]) -> None:
    architecture = values.get("general.architecture")
    if architecture != "llama":
        got = "none" if architecture is None else repr(architecture)
        raise TopThetaNotImplementedError(str(file), "a model of the architecture 'llama'", got, NO_WAY)


def _check_settings(file: Path, values: dict[str, Any]) -> None:
    missing = [f"llama.{name}" for name in _NEEDED if f"llama.{name}" not in values]
    if missing:
        raise file_error(file, "all settings of a LLaMA model", f"one without {', '.join(missing)}", NO_WAY)
    own = {name.removeprefix("llama."): value for name, value in values.items() if name.startswith("llama.")}
    lists = [name for name in _TAKEN if isinstance(own.get(name), list)]
    left_out = [name for name, value in own.items() if name not in _TAKEN and value not in _NOT_SET]
    for name in (*lists, *left_out):
        expected = "a LLaMA model without settings that transformers does not take from a GGUF file"
        raise TopThetaNotImplementedError(str(file), expected, f"llama.{name} = {own[name]}", NO_WAY)
    heads = own["attention.head_count"]
    head_dim = own.get("attention.key_length", own["embedding_length"] // heads)
    # transformers takes rope.dimension_count as the size of a head
    sizes = {
        own.get("rope.dimension_count", own["embedding_length"] // heads),
        own.get("attention.value_length", head_dim),
    }
    if sizes != {head_dim}:
        got = f"heads of {head_dim} with {', '.join(map(str, sorted(sizes)))} rotary or value elements"
        raise TopThetaNotImplementedError(str(file), "heads that are rotated as a whole", got, NO_WAY)


def _check_tensors(file: Path, names: list[str], values: dict[str, Any]) -> None:
    layers = range(values["llama.block_count"])
    needed = {"token_embd.weight", "output_norm.weight"}
    needed |= {f"blk.{layer}.{part}.weight" for layer in layers for part in _OF_LAYER}
    if beyond := sorted(set(names) - needed - {"output.weight"}):
        what = "scaled rotary frequencies (rope_freqs.weight)" if "rope_freqs.weight" in beyond else beyond[0]
        expected = "a LLaMA model without tensors that transformers does not take from a GGUF file"
        raise TopThetaNotImplementedError(str(file), expected, what, NO_WAY)
    if missing := sorted(needed - set(names)):
        parts = values.get("split.count", 0)
        remedy = "join its parts: llama-gguf-split --merge" if parts > 1 else "download it again"
        got = f"{len(missing)} of {len(needed)} missing, such as {missing[0]}"
        raise file_error(file, "all tensors of the model", got, remedy)


def _check_tokenizer(file: Path, fields: Any) -> None:
    needed = ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"]
    if needed[0] in fields:
        needed.append("tokenizer.ggml.merges" if fields[needed[0]].contents() == "gpt2" else "tokenizer.ggml.scores")
    if missing := [name for name in needed if name not in fields]:
        remedy = "use a GGUF file that has its vocabulary"
        raise file_error(file, "a GGUF file with a tokenizer", f"one without {', '.join(missing)}", remedy)
