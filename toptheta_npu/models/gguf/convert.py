"""A GGUF file's model as a folder that transformers, vLLM and every command of this package take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ..._files import checked_path, file_error, new_folder, status
from ...errors import TopThetaTypeError, TopThetaValueError
from .model import Progress, empty_model, load_weights
from .tokenizer import ends_of_answers, make_tokenizer, special_ids

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def convert_gguf(
    file: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> None:
    """Convert a LLaMA, Gemma 3, Qwen 2 or Qwen 3 model from llama.cpp's GGUF format into a transformers folder.

    The quantised weights are dequantised. float32 holds them exactly; bfloat16 and float16 round, and take half
    the space. The folder is written atomically. Needs the extra ``gguf``.

    Args:
        file: the GGUF file, with its tokenizer.
        folder: a new or empty folder. It gets config.json, generation_config.json, model.safetensors, tokenizer.json,
            tokenizer_config.json and, if the file has a chat template, chat_template.jinja.
        dtype: dtype of the weights: torch.float32, torch.bfloat16 or torch.float16.
        progress: called with the number of tensors read, and with their total number.

    Raises:
        TopThetaTypeError: a path is not a path, or ``dtype`` not a torch.dtype.
        TopThetaValueError: another dtype; weights that it cannot hold; a file that is missing, damaged, incomplete or
            without a tokenizer; a folder with files in it, or one that cannot be written.
        TopThetaNotImplementedError: another architecture, or settings, tensors or a tokenizer that would be lost or
            misread in the conversion, such as the scaled rotary frequencies of LLaMA 3.1.
    """
    if not isinstance(dtype, torch.dtype):
        raise TopThetaTypeError("dtype", "a torch.dtype", type(dtype).__name__)
    if dtype not in _DTYPES:
        raise TopThetaValueError("dtype", f"one of {', '.join(map(str, _DTYPES))}", str(dtype))
    path = checked_path(file)
    reader = _reader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    with new_folder(folder) as written:
        model = empty_model(path, values, reader.tensors, special_ids(values), dtype)
        tokenizer = make_tokenizer(path, values)
        load_weights(path, model, reader.tensors, progress)
        model.generation_config.eos_token_id = ends_of_answers(values)
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)


def _reader(file: Path) -> Any:
    """Read all but the weights."""
    from .reader import Reader

    if status(file, "a GGUF file") is None:
        raise file_error(file, "a GGUF file", "no such file", "correct the path")
    try:
        return Reader(file)
    # the reader checks nothing, and stumbles over a damaged file anywhere
    except Exception as error:
        got = f"another file, or one that ends early or is damaged ({error})"
        raise file_error(file, "a whole GGUF file", got, "download it again") from error
