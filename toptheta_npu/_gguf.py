"""How a GGUF file, llama.cpp's form of a model, is told from others, and what to do where it was given for a folder."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

_MAGIC = b"GGUF"


def is_gguf(path: Path) -> bool:
    """Tell whether ``path`` is, or by its name would be, a GGUF file.

    Example:
        >>> is_gguf(Path("model.Q4_1.gguf")), is_gguf(Path("th.txt"))
        (True, False)
    """
    if path.suffix.lower() == ".gguf":
        return not path.is_dir()
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(len(_MAGIC)) == _MAGIC
    return False


def gguf_in(folder: Path) -> Path | None:
    """Find a GGUF file in a folder, such as the Hub's folders of nothing else have; None: there is none."""
    with suppress(OSError):
        return next(iter(sorted(folder.glob("*.gguf"))), None)
    return None


def how_to_convert(path: Path) -> str:
    """Say how the model of a GGUF file becomes a folder."""
    return f"make a folder of it: toptheta convert {shlex.quote(str(path))} FOLDER"
