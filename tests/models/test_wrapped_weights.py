"""Quantised and adapted models: a fingerprint of what they compute with, or none, and never a foreign error."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from tests.models.tiny import K, model_of, new_model, tokens
from tests.models.wrapped_weights import OpaqueWeight, adapt, quantise
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaValueError
from toptheta_npu.models import calibrate, model_fingerprint, sparsify
from toptheta_npu.models.fingerprint.weights import Weight, weight_digests
from toptheta_npu.thresholds.fingerprint import differences

USE_TAU = "use tau in place of thresholds: it needs no fingerprint"


def packed(kind: str, layers: set[type[nn.Module]] | None = None) -> PreTrainedModel:
    """A model whose linear layers hold packed weights, of no name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(new_model(kind), layers or {nn.Linear})


def check_tau_runs(model: PreTrainedModel) -> None:
    with torch.no_grad(), sparsify(model, tau=0.05, statistics=True) as run:
        assert model.generate(tokens(1, 30, seed=2), max_new_tokens=3, do_sample=False).shape == (1, 33)
    assert len(run.statistics()) == 2
    assert all((layer.kept.amax(-1) < layer.keys).any() for layer in run.statistics())


# --- packed weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_packed_projections_have_no_fingerprint(kind: str) -> None:
    model = packed(kind)
    message = rf"got model\.layers\.0\.self_attn\.k_proj\..*, a packed weight; {USE_TAU}"
    with pytest.raises(TopThetaNotImplementedError, match=message):
        model_fingerprint(model)
    with pytest.raises(TopThetaNotImplementedError, match=message):
        calibrate(model, tokens(2, 30, seed=1), k=K, layer_k=[0, 0])
    check_tau_runs(model)


def test_the_thresholds_of_another_model_do_not_fit_packed_projections() -> None:
    table = calibrate(new_model("qwen3", seed=1), tokens(2, 30, seed=1), k=K, layer_k=[0, 0])
    with pytest.raises(TopThetaNotImplementedError, match=USE_TAU), sparsify(packed("qwen3"), table, k=K):
        pass


@pytest.mark.parametrize("hidden", [("q_proj", "k_proj"), ("k_proj",), ("q_proj",)])
def test_projections_without_any_name_are_missed(hidden: tuple[str, ...]) -> None:
    """Weights that a module keeps to itself, as an attribute that nobody lists."""
    names = [f"{part}_proj" for part in "qkvo"] + ["q_norm", "k_norm"]
    shapes = {name: (16,) if "norm" in name else (16, 16) for name in names if name not in hidden}
    weights = {
        f"layers.0.self_attn.{name}.weight": Weight(shape, lambda rows, shape=shape: torch.ones(shape))
        for name, shape in shapes.items()
    }
    with pytest.raises(TopThetaNotImplementedError, match=rf"by name in every layer, got none in layers\.0; {USE_TAU}"):
        weight_digests(weights, 1)


# --- quantised tensors --------------------------------------------------------------------------------


def test_quantised_tensors_count_by_their_numbers() -> None:
    quantised = quantise(new_model())
    plain = new_model()
    for name, weight in quantised.named_parameters():
        if "_proj" in name:
            plain.get_parameter(name).data.copy_(weight.dequantize())
    assert model_fingerprint(quantised) == model_fingerprint(plain)
    assert differences(model_fingerprint(quantised), model_fingerprint(model_of())) == ["weights"]
    quantised.model.layers[1].self_attn.q_proj.weight.scales.mul_(2)
    assert differences(model_fingerprint(quantised), model_fingerprint(plain)) == ["weights"]


@pytest.mark.filterwarnings("ignore::toptheta_npu.models.NothingSparsifiedWarning")
def test_a_quantised_model_is_calibrated_and_takes_its_table() -> None:
    model = quantise(new_model())
    table = calibrate(model, tokens(2, 30, seed=1), k=K, layer_k=[0, 0])
    with torch.no_grad(), sparsify(model, table, k=K, prefill="thresholded"):
        assert model(tokens(1, 30, seed=2)).logits.isfinite().all()
    check_tau_runs(model)


def test_tensors_that_do_not_tell_their_numbers_are_refused() -> None:
    model = quantise(new_model(), OpaqueWeight)
    message = (
        "model: expected weights whose numbers can be read, got model.layers.0.self_attn.k_proj.weight, a "
        f"OpaqueWeight (no dequantize for OpaqueWeight); {USE_TAU}"
    )
    with pytest.raises(TopThetaNotImplementedError, match=re.escape(message)):
        calibrate(model, tokens(2, 30, seed=1), k=K, layer_k=[0, 0])


def test_a_dtype_that_is_not_a_number_for_torch_is_refused() -> None:
    model = new_model()
    for layer in model.model.layers:
        four_bits = layer.self_attn.q_proj.weight.data.to(torch.uint8).view(torch.float4_e2m1fn_x2)
        layer.self_attn.q_proj.weight = nn.Parameter(four_bits, requires_grad=False)
    with pytest.raises(TopThetaNotImplementedError, match=rf"q_proj\.weight, of dtype torch\.float4.*; {USE_TAU}"):
        model_fingerprint(model)


def test_what_a_quantised_layer_saves_beside_its_weight_counts() -> None:
    """As bitsandbytes does: the parameter is packed numbers, the scales come with what is saved."""

    def saving(scale: float) -> PreTrainedModel:
        model = new_model()
        for layer in model.model.layers:
            layer.self_attn.q_proj.register_state_dict_post_hook(
                lambda module, saved, prefix, _: saved.update({f"{prefix}weight.absmax": torch.tensor(scale)})
            )
        return model

    assert model_fingerprint(saving(1.0)) == model_fingerprint(saving(1.0))
    assert differences(model_fingerprint(saving(1.0)), model_fingerprint(saving(2.0))) == ["weights"]


def test_a_table_of_another_quantised_model_is_refused_with_what_helps() -> None:
    table = calibrate(new_model(), tokens(2, 30, seed=1), k=K, layer_k=[0, 0])
    model = quantise(new_model())
    model.config.quantization_config = {"quant_method": "demo"}
    message = "a quantised model may repack its weights at its first call: load it anew, or use tau"
    with pytest.raises(TopThetaValueError, match=message), sparsify(model, table, k=K):
        pass


# --- adapters -----------------------------------------------------------------------------------------


def test_only_adapters_that_apply_count() -> None:
    model, base = new_model(), model_fingerprint(model_of())
    layers = adapt(model, "q_proj", first=1, second=2)
    first = model_fingerprint(model)
    assert differences(base, first) == ["weights"]
    for layer in layers:
        layer.active_adapters = ["second"]
    assert differences(first, model_fingerprint(model)) == ["weights"]
    alone = new_model()
    adapt(alone, "q_proj", second=2)
    assert model_fingerprint(model) == model_fingerprint(alone)
    for layer in layers:
        layer.disable_adapters = True
    assert model_fingerprint(model) == base


def test_merged_adapters_count_as_part_of_the_weight() -> None:
    model, merged = new_model(), new_model()
    for adapted, layer in zip(adapt(model, "k_proj", first=1), merged.model.layers, strict=True):
        change = adapted.lora_B["first"].weight @ adapted.lora_A["first"].weight
        adapted.base_layer.weight.data += change.detach()
        layer.self_attn.k_proj.weight.data += change.detach()
        adapted.merged_adapters = ["first"]
    assert model_fingerprint(model) == model_fingerprint(merged)
