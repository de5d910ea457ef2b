"""The embedded model: a trained LLaMA of 5.7 M parameters with its tokenizer and thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from .._checks import PLACEMENTS, check_choice
from ..thresholds import Placement, ThresholdTable

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

TINY_LLAMA = Path(__file__).parent / "tiny_llama"


def load_tiny_llama(
    dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Load the embedded model in evaluation mode, and its tokenizer; needs the extra ``hf``.

    Example:
        >>> model, tokenizer = load_tiny_llama()
        >>> model.config.num_attention_heads, model.config.num_key_value_heads, model.config.head_dim
        (8, 2, 64)
    """
    from transformers import AutoTokenizer, LlamaForCausalLM

    model: torch.nn.Module = LlamaForCausalLM.from_pretrained(TINY_LLAMA, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(TINY_LLAMA)
    return cast("LlamaForCausalLM", model.to(device).eval()), tokenizer


def load_tiny_llama_thresholds(placement: Placement = "post_softmax") -> ThresholdTable:
    """Load the thresholds stored with the embedded model, for k from 32 to 512 (pooled estimator).

    Args:
        placement: ``"post_softmax"`` for probabilities, the default of `calibrate`, or ``"pre_softmax"`` for scores.

    Raises:
        TopThetaValueError: the placement is neither of these.

    Example:
        >>> table = load_tiny_llama_thresholds()
        >>> table.placement, table.k.tolist()
        ('post_softmax', [32, 64, 128, 256, 512])
    """
    check_choice("placement", placement, PLACEMENTS)
    return ThresholdTable.load(TINY_LLAMA / f"thresholds_{placement}.theta")
