"""A GGUF file's model as a folder that transformers, vLLM and every command of this package take."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..._files import file_error, new_folder
from ...errors import TopThetaArgumentError, TopThetaBackendError, TopThetaTypeError, TopThetaValueError
from .header import Header, read_header
from .tokenizer import check_tokenizer, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Tokens that end an answer besides the end of the text, as llama.cpp takes them.
_ENDS = ("eos", "eot", "eom")


def convert_gguf(
    file: str | os.PathLike[str], folder: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32
) -> Header:
    """Convert a model of the LLaMA architecture from llama.cpp's GGUF form into a folder of transformers.

    The quantised weights are multiplied out. float32 holds them exactly; bfloat16 and float16 round, and take half
    the space. The folder is written whole or not at all. Needs the extra ``gguf``.

    Args:
        file: the GGUF file, with its tokenizer.
        folder: a new or empty one; it gets config.json, generation_config.json, model.safetensors, tokenizer.json,
            tokenizer_config.json and chat_template.jinja, if there is one.
        dtype: torch.float32, torch.bfloat16 or torch.float16.

    Returns:
        What the file says of the model.

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
    header = read_header(file)
    check_tokenizer(header)
    with new_folder(folder) as written:
        tokenizer, model = _load(header, dtype)
        _check_weights(model, header.file, dtype)
        _set_ends(model, header)
        _save(model, tokenizer, written, Path(folder))
    return header


def _check_packages() -> None:
    # transformers would say so with a message of its own, and late
    import accelerate  # noqa: F401
    import gguf  # noqa: F401
    import transformers

    if not hasattr(transformers, "GgufConfig"):
        remedy = "pip install -U 'toptheta_npu[gguf]'"
        raise TopThetaBackendError(
            "transformers", "5.23 or newer, to read GGUF files", transformers.__version__, remedy
        )


def _load(header: Header, dtype: torch.dtype) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    from transformers import GgufConfig, LlamaForCausalLM

    try:
        with _alone(header.file) as (folder, name):
            tokenizer = load_tokenizer(header, folder, name)
            model = LlamaForCausalLM.from_pretrained(
                folder, gguf_file=name, dtype=dtype, local_files_only=True,
                quantization_config=GgufConfig(dequantize=True),
            )  # fmt: skip
    except TopThetaArgumentError:
        raise
    # whatever transformers stumbles over in what the header does not show
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise file_error(header.file, "a GGUF file that transformers can load", reason) from error
    return tokenizer, model


@contextmanager
def _alone(file: Path) -> Iterator[tuple[Path, str]]:
    """Show the file in a folder of its own: transformers reads other files beside it too."""
    with tempfile.TemporaryDirectory() as folder:
        name = "model.gguf"
        (Path(folder) / name).symlink_to(file.resolve())
        yield Path(folder), name


def _check_weights(model: PreTrainedModel, file: Path, dtype: torch.dtype) -> None:
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            got = f"{name} with numbers that are not finite"
            if dtype == torch.float32:
                raise file_error(file, "finite weights", got, "download it again")
            raise TopThetaValueError("dtype", "one that holds all weights", got, f"{dtype} may be too small for them")


def _set_ends(model: PreTrainedModel, header: Header) -> None:
    """Let an answer end at every token that ends a turn."""
    ends = [header.tokenizer.get(f"tokenizer.ggml.{name}_token_id") for name in _ENDS]
    different = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if len(different) > 1:
        model.generation_config.eos_token_id = different


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, written: Path, folder: Path) -> None:
    from safetensors import SafetensorError

    # the name of the model, of which transformers makes a path
    model.config.__dict__.pop("_model_name_or_path", None)
    try:
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)
    except SafetensorError as error:
        expected, got = "a place where a model can be written", str(error).split("\n")[0]
        raise TopThetaValueError(str(folder), expected, got, "free some space, or choose another disk") from error
