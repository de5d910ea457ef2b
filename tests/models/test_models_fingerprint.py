"""The fingerprint tells models apart and forgives what does not matter."""

from __future__ import annotations

import pytest
import torch
from tiny import KINDS, model_of, new_model
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.models import model_fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_saving_and_loading_in_any_dtype_keeps_it(kind, tmp_path):
    model = new_model(kind).bfloat16()
    model.save_pretrained(tmp_path)
    expected = model_fingerprint(model)
    assert expected.startswith(kind)
    for dtype in (torch.bfloat16, torch.float32):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        assert model_fingerprint(loaded) == expected


def test_models_differ():
    others = [
        model_of("mistral"), new_model(seed=1), new_model(layers=3), new_model(num_key_value_heads=4),
        new_model(rope_parameters={"rope_type": "default", "rope_theta": 5.0}),
    ]  # fmt: skip
    for layer, name in ((0, "q_proj"), (0, "k_proj"), (-1, "q_proj"), (-1, "k_proj")):
        changed = new_model()
        getattr(changed.model.layers[layer].self_attn, name).weight.data[0, 0] += 1
        others.append(changed)
    prints = {model_fingerprint(model) for model in [model_of(), *others]}
    assert len(prints) == 1 + len(others)


def test_what_does_not_matter():
    model = new_model()
    model.model.layers[0].mlp.up_proj.weight.data.zero_()
    model.set_attn_implementation("eager")
    assert model_fingerprint(model) == model_fingerprint(model_of())
    assert model_fingerprint(model.model) == model_fingerprint(model_of())


def test_weights_have_to_be_there():
    with torch.device("meta"):
        model = LlamaForCausalLM(model_of().config)
    with pytest.raises(TopThetaValueError, match="meta device"):
        model_fingerprint(model)
