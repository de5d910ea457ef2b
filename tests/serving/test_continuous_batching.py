"""transformers' continuous batching has attention of its own: it must not run densely within `sparsify`."""

from __future__ import annotations

import pytest
from transformers import GenerationConfig

from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.models import sparsify


def test_continuous_batching_is_refused_within_sparsify() -> None:
    model, _ = load_tiny_llama()
    options = GenerationConfig(max_new_tokens=2, do_sample=False, eos_token_id=-1, pad_token_id=0)
    table = load_tiny_llama_thresholds("pre_softmax")
    with sparsify(model, table, k=64), pytest.raises(ValueError, match="toptheta is not supported for continuous"):
        model.generate_batch(inputs=[[5, 6, 7]], generation_config=options)
