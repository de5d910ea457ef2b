"""The tokens around a model's texts: those that begin a sequence and separate documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Conventions:
    """How text becomes a sequence.

    Attributes:
        first: the token before every sequence: the tokenizer's BOS, if it puts one before a text. Serving does so too,
            and many heads attend to it, so calibration must include it.
        separator: the token after every document: the tokenizer's EOS, as in pre-training; its BOS if it has no EOS;
            None if it has neither.
    """

    tokenizer: PreTrainedTokenizerBase
    first: int | None
    separator: int | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Conventions:
        """Find the conventions of a tokenizer.

        Example:
            >>> from toptheta_npu.assets import load_tiny_llama
            >>> conventions = Conventions.of(load_tiny_llama()[1])
            >>> conventions.first, conventions.separator
            (None, 0)
        """
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        with_special = list(tokenizer("a")["input_ids"])
        plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
        begins = bos is not None and with_special[:1] == [bos] and plain[:1] != [bos]
        return cls(tokenizer, bos if begins else None, bos if eos is None else eos)

    def tokens(self, text: str, ends: bool) -> Tokens:
        """Tokenise a piece of a document. Append the separator if the document ends."""
        ids: list[int] = list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if ends and self.separator is not None:
            ids.append(self.separator)
        return np.array(ids, dtype=np.int32)

    def window(self, body: Tokens) -> Tokens:
        """Make a sequence: ``body`` behind the first token."""
        return body if self.first is None else np.concatenate([np.array([self.first], dtype=np.int32), body])

    def body(self, length: int) -> int:
        """Compute the number of text tokens in a sequence of ``length``."""
        return length - (self.first is not None)

    def __str__(self) -> str:
        convert = self.tokenizer.convert_ids_to_tokens
        begins = "" if self.first is None else f"{convert(self.first)} in front of every window, "
        return (
            begins + ("nothing" if self.separator is None else f"{convert(self.separator)}") + " after every document"
        )
