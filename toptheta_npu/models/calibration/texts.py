"""The sequences of a calibration, checked one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..._checks import check_int
from ...errors import TopThetaValueError
from ..hook.architecture import text_config
from .token_sequences import batches_of, can_be_read_twice, sequences_of

#: Token ids: a tensor, a list, a tokenizer's output, or an iterable of those; see `calibrate`.
Sequences = Iterable[Any] | Mapping[str, Any]


class CalibrationTexts:
    """The sequences of a calibration, checked one by one. A list or tensor of them is checked at once, beforehand.

    Attributes:
        longest_row: keys of the longest row there will be.
        decode_tokens: tokens to generate after each sequence.
        done, tokens: sequences handed out so far, and their tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sequences: Sequences,
        longest: int | None,
        decode_tokens: int,
        smallest_k: int,
    ) -> None:
        check_int("decode_tokens", decode_tokens, 0)
        if longest is not None:
            check_int("longest", longest, 1)
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if decode_tokens and head is None:
            raise TopThetaValueError(
                "decode_tokens", "0 for a model without a language-modelling head", str(decode_tokens),
                "load it with AutoModelForCausalLM",
            )  # fmt: skip
        self._batches = batches_of(sequences)
        self._vocabulary = int(text_config(model).vocab_size)
        self._smallest_k = smallest_k
        self._longest = longest
        self.decode_tokens = decode_tokens
        self.done = self.tokens = 0
        if isinstance(self._batches, (Sequence, Tensor)) or (longest is None and can_be_read_twice(self._batches)):
            self._longest = max(map(len, self._checked()), default=0)
        elif longest is None:
            raise TopThetaValueError(
                "longest", "the most tokens of a sequence, since sequences is an iterator", "None", "or pass a list"
            )
        self.longest_row = (self._longest or 0) + decode_tokens
        if self.longest_row <= smallest_k:
            raise TopThetaValueError(
                "sequences", f"rows longer than k={smallest_k}", str(self.longest_row), "feed longer ones, or lower k"
            )

    def __iter__(self) -> Iterator[Tensor]:
        """Yield tokens [1, n] of one sequence after the other."""
        for tokens in self._checked():
            yield tokens[None]
            self.done += 1
            self.tokens += len(tokens)

    def rows(self) -> Iterator[int]:
        """Yield how many rows each sequence has."""
        return (len(tokens) + self.decode_tokens for tokens in self._checked())

    def _checked(self) -> Iterator[Tensor]:
        for index, batch in enumerate(self._batches):
            for name, tokens in sequences_of(f"sequences[{index}]", batch):
                self._check(name, tokens)
                yield tokens

    def _check(self, name: str, tokens: Tensor) -> None:
        length = len(tokens)
        if length + self.decode_tokens <= self._smallest_k:
            raise TopThetaValueError(
                name, f"more than {self._smallest_k} tokens, the smallest k, since shorter rows are dense",
                f"{length} and {self.decode_tokens} to generate", "leave it out, join it to another, or lower k",
            )  # fmt: skip
        if self._longest is not None and length > self._longest:
            raise TopThetaValueError(name, f"at most longest={self._longest} tokens", str(length), "raise longest")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self._vocabulary:
            raise TopThetaValueError(
                name, f"tokens from 0 to {self._vocabulary - 1}", str(low if low < 0 else high), "check the tokenizer"
            )
