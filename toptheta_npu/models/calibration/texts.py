"""The texts of a calibration, in any plain form, turned into one checked tensor of tokens per sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
        TopThetaTypeError, TopThetaValueError: there is no sequence, or one is not tokens of the model or has no row
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
    """Yield name and tokens, int64 [n], of every sequence of ``batch``. Leave out padding, as its attention mask tells.

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
        return value.ndim == 1 and value.dtype != object
    return isinstance(value, (list, tuple)) and bool(value) and all(_is_id(each) for each in value)


def _is_id(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _rows(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        yield from _rows_of_tensor(name, value)
    elif _is_one_sequence(value):
        yield name, _from_ids(name, value)
    elif isinstance(value, (list, tuple)) and value and all(_is_one_sequence(each) for each in value):
        if any(isinstance(each, (Tensor, np.ndarray)) for each in value):
            got = "a list of tensors, which may be rows or columns"
            raise TopThetaTypeError(name, _TOKENS, got, "pass a tensor [B, n], or the tensors of each sequence")
        for index, each in enumerate(value):
            yield f"{name}[{index}]", _from_ids(f"{name}[{index}]", each)
    else:
        texts = isinstance(value, str) or (isinstance(value, (list, tuple)) and any(isinstance(t, str) for t in value))
        got = "text" if texts else f"{type(value).__name__} {shown(value)}"
        raise TopThetaTypeError(name, _TOKENS, got, _TOKENISE if texts else "tokenise with return_tensors='pt'")


def _rows_of_tensor(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    mask = name.endswith("['attention_mask']")
    if value.dtype != torch.int64 and not (mask and value.dtype in (torch.bool, torch.int32)):
        raise TopThetaTypeError(name, _TOKENS, str(value.dtype), "convert it with .long()")
    if value.ndim not in (1, 2) or not value.numel():
        raise TopThetaValueError(name, "tokens [n] or [B, n]", f"shape {list(value.shape)}")
    if value.ndim == 1:
        yield name, value
        return
    for index, row in enumerate(value):
        yield f"{name}[{index}]", row


def _from_ids(name: str, ids: Any) -> Tensor:
    if not all(-(2**63) <= each < 2**63 for each in ids):
        raise TopThetaValueError(name, "ints of 64 bits", shown(list(ids)))
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _visible(name: str, mask: Tensor) -> slice:
    """Find where the ones of ``mask`` [n] lie: one run of them."""
    places = mask.nonzero().flatten().tolist()
    ones = bool(((mask == 0) | (mask == 1)).all())
    if not ones or not places or places[-1] - places[0] + 1 != len(places):
        got = "nothing but zeros" if ones and not places else "holes or other numbers"
        raise TopThetaValueError(name, "ones for the tokens and zeros for the padding around them", got)
    return slice(places[0], places[-1] + 1)
