"""Turns the texts of a calibration, in any plain form, into one checked tensor of tokens per sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaTypeError, TopThetaValueError, shown
from ..hook.architecture import text_config

#: Token ids: a tensor, a list, a tokenizer's output, or an iterable of those; see `calibrate`.
Sequences = Iterable[Any] | Mapping[str, Any]

_TOKENS = "token ids: an int64 tensor, a list of ints, or a tokenizer's output"
_TOKENISE = "tokenise it: tokenizer(text, return_tensors='pt')"


def checked_texts(model: PreTrainedModel, sequences: Sequences, smallest_k: int) -> list[Tensor]:
    """Read the tokens, int64 [n], of all sequences.

    Raises:
        TopThetaTypeError, TopThetaValueError: no sequence is given, or one is not tokens of the model or has no row
            longer than ``smallest_k``.
    """
    vocabulary = int(text_config(model).vocab_size)
    texts = []
    for index, batch in enumerate(_batches_of(sequences)):
        for name, tokens in _sequences_of(f"sequences[{index}]", batch):
            _check(name, tokens, vocabulary, smallest_k)
            texts.append(tokens)
    if not texts:
        raise TopThetaValueError("sequences", f"rows longer than k={smallest_k}", "none", "give at least one sequence")
    return texts


def _check(name: str, tokens: Tensor, vocabulary: int, smallest_k: int) -> None:
    if len(tokens) <= smallest_k:
        raise TopThetaValueError(
            name, f"more than {smallest_k} tokens, the smallest k, since shorter rows are dense", str(len(tokens)),
            "leave it out, join it to another, or lower k",
        )  # fmt: skip
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise TopThetaValueError(
            name, f"tokens from 0 to {vocabulary - 1}", str(low if low < 0 else high), "check the tokenizer"
        )


def _batches_of(sequences: Any) -> Iterable[Any]:
    """Split ``sequences`` into batches. A tokenizer's output and a single sequence are one batch.

    Raises:
        TopThetaTypeError: text, or nothing to iterate over.
    """
    if isinstance(sequences, str):
        raise TopThetaTypeError("sequences", _TOKENS, "text", _TOKENISE)
    if isinstance(sequences, Mapping) or _is_one_sequence(sequences):
        return [sequences]
    if not isinstance(sequences, Iterable) and not hasattr(sequences, "__getitem__"):
        raise TopThetaTypeError("sequences", f"a list or other iterable of {_TOKENS}", type(sequences).__name__)
    batches: Iterable[Any] = sequences
    return batches


def _sequences_of(name: str, batch: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tokens, int64 [n], of every sequence of ``batch``. Skip the padding that its attention mask marks.

    Raises:
        TopThetaTypeError: not tokens.
        TopThetaValueError: a shape or an attention mask that has no plain meaning.
    """
    if not isinstance(batch, Mapping):
        yield from _rows(name, batch)
        return
    if "input_ids" not in batch:
        got = shown(sorted(map(str, batch)))
        raise TopThetaValueError(name, "a mapping with input_ids", got, "pass what the tokenizer returns")
    rows = list(_rows(f"{name}['input_ids']", batch["input_ids"]))
    mask = batch.get("attention_mask")
    if mask is None:
        yield from rows
        return
    masks = list(_rows(f"{name}['attention_mask']", mask))
    if [len(tokens) for _, tokens in rows] != [len(visible) for _, visible in masks]:
        raise TopThetaValueError(f"{name}['attention_mask']", "the shape of input_ids", "another shape")
    for (row_name, tokens), (mask_name, visible) in zip(rows, masks, strict=True):
        yield row_name, tokens[_visible(mask_name, visible)]


def _is_one_sequence(value: Any) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim == 1
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], (int, float, np.number))


def _rows(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tokens, [n], of every row of a tensor or an array, of a list of ids or of a list of such lists."""
    parts = value if isinstance(value, (list, tuple)) else ()
    if parts and all(isinstance(each, (list, tuple)) for each in parts):
        for index, each in enumerate(parts):
            yield from _rows(f"{name}[{index}]", each)
        return
    if isinstance(value, str) or any(isinstance(each, str) for each in parts):
        raise TopThetaTypeError(name, _TOKENS, "text", _TOKENISE)
    if any(isinstance(each, (Tensor, np.ndarray)) for each in parts):
        got = "a list of tensors, which may be rows or columns"
        raise TopThetaTypeError(name, _TOKENS, got, "pass a tensor [B, n], or the tensors of each sequence")
    tokens: Tensor | None = None
    with suppress(TypeError, ValueError, RuntimeError):  # RuntimeError: a number of more than 64 bits
        tokens = value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
    of_mask = name.endswith("['attention_mask']")
    if tokens is None or (tokens.dtype != torch.int64 and not (of_mask and tokens.dtype in (torch.bool, torch.int32))):
        got = f"{type(value).__name__} {shown(value)}" if tokens is None else str(tokens.dtype)
        raise TopThetaTypeError(name, _TOKENS, got, "convert it with .long()")
    if tokens.ndim not in (1, 2) or not tokens.numel():
        raise TopThetaValueError(name, "tokens [n] or [B, n]", f"shape {list(tokens.shape)}")
    yield from [(name, tokens)] if tokens.ndim == 1 else ((f"{name}[{index}]", row) for index, row in enumerate(tokens))


def _visible(name: str, mask: Tensor) -> slice:
    """Find where the ones of ``mask`` [n] lie: one run of them."""
    places = mask.nonzero().flatten().tolist()
    ones = bool(((mask == 0) | (mask == 1)).all())
    if not ones or not places or places[-1] - places[0] + 1 != len(places):
        got = "nothing but zeros" if ones and not places else "holes or other numbers"
        raise TopThetaValueError(name, "ones for the tokens and zeros for the padding around them", got)
    return slice(places[0], places[-1] + 1)
