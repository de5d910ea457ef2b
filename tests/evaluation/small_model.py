"""A small random model with grouped heads, its windows and thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.models import calibrate
from toptheta_npu.models.sparse.statistics import LayerStatistics, Recorder, make_recorders
from toptheta_npu.thresholds import ThresholdTable

VOCABULARY, LENGTH, K = 64, 96, 8


def small_model(layers: int = 4) -> LlamaForCausalLM:
    """Four query heads on two KV heads; attends unevenly."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, initializer_range=0.4,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def random_windows(count: int, seed: int) -> Tensor:
    """int64 [count, LENGTH]."""
    return torch.randint(VOCABULARY, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def thresholds(model: PreTrainedModel, windows: Tensor, placement: Any) -> ThresholdTable:
    """For K, and twice as many in the first two layers."""
    layer_k = [2 * K, 2 * K] + [0] * (model.config.num_hidden_layers - 2)
    return calibrate(
        model, windows, k=(K, 2 * K), layer_k=layer_k, placement=placement, estimator="pooled",
        top_k_at_calibration=False,
    )  # fmt: skip


def logits_and_statistics(
    method: Method, model: PreTrainedModel, windows: Tensor
) -> tuple[Tensor, list[LayerStatistics]]:
    """Of whole windows, all of their rows under ``method``, which by itself keeps sums over them."""

    def of_rows(model: PreTrainedModel, kind: str = "rows", targets: Sequence[int] | None = None) -> list[Recorder]:
        return make_recorders(model, "rows", targets)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("evaluation.methods.after_top_k", "models.sparse.selection", "models.sparse.sparsify"):
            patch.setattr(import_module(f"toptheta_npu.{module}"), "make_recorders", of_rows)
        with torch.inference_mode(), method.enter(model) as recording:
            logits = model(windows).logits
            return logits, recording.statistics()
