"""English prose that every installation of Python brings along: the language reference behind `help()`, without code.

Paragraphs that hold code, grammar or mostly signs are left out, and so is what several topics repeat. Topics are split
by name, so that a topic is in one of the splits.
"""

from __future__ import annotations

import re
import zlib
from pydoc_data.topics import topics
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from toptheta_npu.errors import TopThetaValueError

Split = Literal["calibration", "evaluation"]

_SHORTEST = 80
_LETTERS = 0.9


def paragraphs(split: Split) -> list[str]:
    """The paragraphs of a split, by topic."""
    found: dict[str, Split] = {}
    for name, text in sorted(topics.items()):
        home: Split = "evaluation" if zlib.crc32(name.encode()) % 5 < 2 else "calibration"
        for block in re.split(r"\n\s*\n", text):
            paragraph = " ".join(block.split())
            if _is_prose(block, paragraph):
                found.setdefault(paragraph, home)
    return [paragraph for paragraph, home in found.items() if home == split]


def _is_prose(block: str, paragraph: str) -> bool:
    if any(line.startswith(" " * 5) for line in block.split("\n")):  # code and grammar
        return False
    letters = sum(sign.isalpha() or sign == " " for sign in paragraph)
    return len(paragraph) >= _SHORTEST and letters >= _LETTERS * len(paragraph)


def prose_windows(tokenizer: PreTrainedTokenizerBase, split: Split, length: int, count: int) -> Tensor:
    """``count`` windows of ``length`` tokens, none overlapping: int64 [count, length].

    Raises:
        TopThetaValueError: there are not so many.
    """
    tokens: list[int] = tokenizer("\n\n".join(paragraphs(split)), verbose=False)["input_ids"]
    if len(tokens) < count * length:
        raise TopThetaValueError("count", f"at most {len(tokens) // length}", str(count), "ask for fewer windows")
    return torch.tensor(tokens[: count * length]).view(count, length)
