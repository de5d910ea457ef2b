"""Finds the texts of the running Python: the library sources that the embedded model was trained on, and English prose.

Nothing is downloaded or stored: the corpus is read from the running interpreter. Modules are split by name, so a
module is in exactly one split on every machine.
"""

from __future__ import annotations

import sys
import sysconfig
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from ..errors import TopThetaValueError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Split = Literal["train", "calibration", "evaluation"]

#: The Python whose library the committed model and results were made with.
REFERENCE_PYTHON = (3, 11)

# Generated tables, machine-specific files, and packages that distributions leave out.
_EXCLUDED = {
    "site-packages", "dist-packages", "encodings", "pydoc_data", "idlelib", "lib2to3",
    "turtledemo", "tkinter", "distutils", "ensurepip", "__pycache__",
}  # fmt: skip
_TEST_FOLDERS = {"test", "tests", "idle_test"}


def split_of(relative: Path) -> Split | None:
    """Name the split of one library file, or None if it is left out.

    One top-level name in ten goes to calibration, one to evaluation. If a distribution ships the library's own tests,
    they are training text only.

    Args:
        relative: path below the library folder, for example ``Path("json/decoder.py")``.

    Example:
        >>> split_of(Path("configparser.py"))
        'evaluation'
    """
    top = relative.parts[0].removesuffix(".py")
    if top in _EXCLUDED or top.startswith(("config-", "_sysconfigdata")):
        return None
    if _TEST_FOLDERS.intersection(relative.parts):
        return "train"
    return split_of_name(top)


def split_of_name(name: str) -> Split:
    """Name the split of any name, by its checksum: one in ten for calibration, one in ten for evaluation.

    Example:
        >>> split_of_name("configparser"), split_of_name("tarfile"), split_of_name("json")
        ('evaluation', 'calibration', 'train')
    """
    bucket = zlib.crc32(name.encode()) % 10
    return "calibration" if bucket == 0 else "evaluation" if bucket == 1 else "train"


def read_split(split: Split) -> list[tuple[str, str]]:
    """Read name and text of every library file in ``split``, sorted by name.

    Raises:
        TopThetaValueError: ``split`` is not one of train, calibration, evaluation.
    """
    if split not in get_args(Split):
        raise TopThetaValueError("split", f"one of {', '.join(get_args(Split))}", repr(split))
    library = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if split_of(relative) == split:
            files.append((relative.as_posix(), path.read_text(encoding="utf-8", errors="replace")))
    return files


def python_note() -> str | None:
    """Return a note if the running Python is not the one behind the committed figures, else None."""
    if sys.version_info[:2] == REFERENCE_PYTHON:
        return None
    want = ".".join(map(str, REFERENCE_PYTHON))
    have = ".".join(map(str, sys.version_info[:2]))
    return (
        f"The embedded model and its reference figures were made with the library of Python {want}; "
        f"this is Python {have}, so the text differs and so will the figures."
    )


def token_windows(tokenizer: PreTrainedTokenizerBase, split: Split, length: int, count: int) -> Tensor:
    """Cut ``count`` windows of ``length`` tokens from ``split``, without overlap, each within one file.

    Files take turns: every file's first window comes before any file's second. So even a small count covers many
    modules.

    Returns:
        int64 [count, length].

    Raises:
        TopThetaValueError: the split holds fewer than ``count`` such windows, or a number is below 1.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> token_windows(load_tiny_llama()[1], "evaluation", 256, 3).shape
        torch.Size([3, 256])
    """
    for name, number in (("length", length), ("count", count)):
        if number < 1:
            raise TopThetaValueError(name, "at least 1", str(number))
    by_rank: list[tuple[int, str, list[int]]] = []
    for name, text in read_split(split):
        tokens: list[int] = tokenizer(text, verbose=False)["input_ids"]
        for rank in range(len(tokens) // length):
            by_rank.append((rank, name, tokens[rank * length : (rank + 1) * length]))
    if len(by_rank) < count:
        raise TopThetaValueError(
            "count",
            f"at most {len(by_rank)} (what the {split} split of this Python holds at length {length})",
            str(count),
            "ask for fewer or shorter windows",
        )
    by_rank.sort(key=lambda window: window[:2])
    return torch.tensor([tokens for _, _, tokens in by_rank[:count]], dtype=torch.int64, device="cpu")
