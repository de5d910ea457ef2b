"""A GGUF file's model as a folder that transformers, vLLM and every command of this package take."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..._files import file_error, new_folder
from ...errors import TopThetaBackendError, TopThetaTypeError, TopThetaValueError
from .architectures import Architecture, Sizes
from .contents import NO_WAY, Contents, read_contents
from .header import read_kind, read_sizes
from .tokenizer import check_tokenizer, make_tokenizer
from .vocabulary import Vocabulary, read_vocabulary
from .weights import read_weights

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def convert_gguf(
    file: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Convert a LLaMA, Gemma 3, Qwen 2 or Qwen 3 model from llama.cpp's GGUF form into a folder of transformers.

    The quantised weights are multiplied out. float32 holds them exactly; bfloat16 and float16 round, and take half
    the space. The folder is written whole or not at all. Needs the extra ``gguf``.

    Args:
        file: the GGUF file, with its tokenizer.
        folder: a new or empty one; it gets config.json, generation_config.json, model.safetensors, tokenizer.json,
            tokenizer_config.json and chat_template.jinja, if there is one.
        dtype: torch.float32, torch.bfloat16 or torch.float16.
        progress: is told how many of the tensors are read, and how many there are.

    Raises:
        TopThetaTypeError: something is not a path, or not a torch.dtype.
        TopThetaValueError: another dtype; weights that it cannot hold; a file that is missing, damaged, incomplete or
            without a tokenizer; a folder with files in it, or one that cannot be written.
        TopThetaNotImplementedError: another architecture, or settings, tensors or a tokenizer that would be lost or
            taken wrongly on the way, such as the scaled rotary frequencies of LLaMA 3.1.
        TopThetaBackendError: transformers is too old.
    """
    _check_packages()
    if not isinstance(dtype, torch.dtype):
        raise TopThetaTypeError("dtype", "a torch.dtype", type(dtype).__name__)
    if dtype not in _DTYPES:
        raise TopThetaValueError("dtype", f"one of {', '.join(map(str, _DTYPES))}", str(dtype))
    contents = read_contents(file)
    kind = read_kind(contents)
    vocabulary = read_vocabulary(contents)
    sizes = read_sizes(contents, kind, len(vocabulary.tokens))
    with new_folder(folder) as written:
        tokenizer = _tokenizer(contents, vocabulary, sizes)
        weights = read_weights(contents, kind, sizes, dtype, progress)
        _save(_model(kind, weights, vocabulary, sizes, dtype), tokenizer, written, Path(folder))


def _check_packages() -> None:
    import gguf  # noqa: F401
    import transformers

    # older ones take no rope_parameters, and say nothing
    if int(transformers.__version__.split(".")[0]) < 5:
        remedy = "pip install -U 'toptheta_npu[gguf]'"
        raise TopThetaBackendError("transformers", "5 or newer, to convert models", transformers.__version__, remedy)


def _tokenizer(contents: Contents, vocabulary: Vocabulary, sizes: Sizes) -> PreTrainedTokenizerBase:
    try:
        tokenizer = make_tokenizer(vocabulary, sizes.longest)
    # whatever tokenizers stumbles over
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise file_error(contents.file, "a GGUF file whose tokenizer can be built", reason, NO_WAY) from error
    check_tokenizer(tokenizer, vocabulary, contents.file)
    return tokenizer


def _model(
    kind: Architecture, weights: dict[str, Tensor], vocabulary: Vocabulary, sizes: Sizes, dtype: torch.dtype
) -> PreTrainedModel:
    import transformers

    model_class = getattr(transformers, kind.model)
    config = model_class.config_class(
        vocab_size=sizes.vocabulary, hidden_size=sizes.hidden, intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim, max_position_embeddings=sizes.longest, rms_norm_eps=sizes.epsilon,
        tie_word_embeddings=sizes.tied, **kind.configuration(sizes),
        bos_token_id=vocabulary.ids.get("bos"), eos_token_id=vocabulary.ids.get("eos"),
        pad_token_id=vocabulary.ids.get("pad"), dtype=dtype,
    )  # fmt: skip
    if sizes.tied:
        weights = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
    # no weights of its own, which would take as much memory again
    with torch.device("meta"):
        model: PreTrainedModel = model_class(config)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    if len(vocabulary.ends) > 1:
        model.generation_config.eos_token_id = vocabulary.ends
    return model


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, written: Path, folder: Path) -> None:
    from safetensors import SafetensorError

    try:
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)
    except SafetensorError as error:
        expected, got = "a place where a model can be written", str(error).split("\n")[0]
        raise TopThetaValueError(str(folder), expected, got, "free some space, or choose another disk") from error
