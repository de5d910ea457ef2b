"""Windows of the texts that the study compares: Python source, and prose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.corpus import Split, prose_windows, token_windows

#: Of prose from files, the share of the tokens to calibrate on; the rest is held out.
_CALIBRATION = 0.6


def windows_of(
    tokenizer: PreTrainedTokenizerBase, text: str, split: Split, length: int, count: int, files: Sequence[Path] = ()
) -> Tensor:
    """Read ``count`` windows of ``length`` tokens of "python" or "prose". Prose comes from ``files`` if there are any.

    Returns:
        int64 [count, length].

    Raises:
        TopThetaValueError: there are not so many.
    """
    if text == "python":
        return token_windows(tokenizer, split, length, count)
    if not files:
        return prose_windows(tokenizer, split, length, count)
    whole = "\n\n".join(path.read_text() for path in files)
    tokens = torch.tensor(tokenizer(whole, verbose=False)["input_ids"])
    first = round(_CALIBRATION * len(tokens))
    part = tokens[:first] if split == "calibration" else tokens[first:]
    if len(part) < length * count:
        raise TopThetaValueError("--prose", f"{length * count} tokens of the {split} part", str(len(part)), "name more")
    return part[: length * count].view(count, length)
