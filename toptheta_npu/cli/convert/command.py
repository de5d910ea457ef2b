"""``toptheta convert``: what is done depends on what is read."""

from __future__ import annotations

from pathlib import Path

from ..._gguf import is_gguf
from ...errors import TopThetaCombinationError
from ..common.options import command as make_command
from .model import convert_model
from .options import Options
from .thresholds import convert_thresholds

_OF_MODELS = ("folder", "dtype")


def convert(options: Options) -> None:
    """Convert a GGUF model to a folder, or thresholds.

    toptheta convert model.gguf FOLDER writes a folder for transformers, vLLM and all commands. It takes LLaMA, Gemma 3,
    Qwen 2 and Qwen 3 models, and needs the extra gguf.

    toptheta convert FILE -o FILE converts a table of thresholds to the files of the paper's authors (th.txt, sdc.txt)
    or back. A th.txt holds one k, and does not name its model.
    """
    of_model = is_gguf(options.source)
    for name in sorted(set(options.typed) - {"source"}):
        if (name in _OF_MODELS) != of_model:
            wanted = "thresholds" if of_model else "a GGUF file"
            found, remedy = _found(options.source, of_model)
            other = f"{wanted} to read, and {options.source} is {found}"
            raise TopThetaCombinationError(_shown(name), "needs", other, remedy)
    if of_model:
        convert_model(options)
    else:
        convert_thresholds(options)


def _found(source: Path, of_model: bool) -> tuple[str, str]:
    """Say what a source is that an option does not go with, and what does."""
    if of_model:
        return "a model", "a model takes FOLDER and --dtype alone"
    if source.is_dir():
        return "a folder", "name the file; what save_pretrained wrote needs no conversion"
    return "none", "thresholds take -o FILE"


def _shown(name: str) -> str:
    return "FOLDER" if name == "folder" else name


command = make_command(Options, convert)
