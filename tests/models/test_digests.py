"""A digest changes with whatever a model or a tokenizer computes with, and with nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import ByT5Tokenizer, PreTrainedModel

from tests.models.tiny import model_of, new_model, tokens
from tests.models.wrapped_weights import adapt, quantise
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.models.fingerprint import digests
from toptheta_npu.models.fingerprint.digests import model_digests, tokenizer_digest


def changed(before: dict[str, str], model: PreTrainedModel) -> list[str]:
    return [name for name, digest in model_digests(model).items() if digest != before[name]]


@pytest.mark.parametrize("name", [name for name, _ in new_model("qwen3").named_parameters() if ".0." not in name])
def test_the_last_number_of_every_weight_counts(name: str) -> None:
    model = new_model("qwen3")
    before = model_digests(model)
    model.get_parameter(name).data.view(-1)[-1] += 1e-3
    assert changed(before, model) == ["weights"]


def test_buffers_count_that_are_not_saved() -> None:
    model = new_model()
    before = model_digests(model)
    model.model.rotary_emb.inv_freq[-1] *= 2
    assert changed(before, model) == ["weights"]


def test_threads_chunks_and_use_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model()
    before = model_digests(model)
    with torch.no_grad():
        model.generate(tokens(1, 9, seed=1), max_new_tokens=2)
    monkeypatch.setattr(digests, "_CHUNK", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert model_digests(model) == before == model_digests(new_model())
    assert changed(before, new_model().bfloat16()) == ["weights"]


def packed() -> PreTrainedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(new_model(), {nn.Linear})


def other_packed_bits(model: PreTrainedModel) -> None:
    layer = model.model.layers[1].mlp.up_proj
    weight = layer.weight()
    bits = weight.int_repr()
    bits[-1, -1] = -bits[-1, -1] if bits[-1, -1] else 1
    layer.set_weight_bias(
        torch._make_per_tensor_quantized_tensor(bits, weight.q_scale(), weight.q_zero_point()), layer.bias()
    )


def other_scale(model: PreTrainedModel) -> None:
    model.model.layers[1].mlp.up_proj.weight.scales[-1] *= 2


@pytest.mark.parametrize(
    ("make", "change"), [(packed, other_packed_bits), (lambda: quantise(new_model()), other_scale)]
)
def test_quantised_weights_count(
    make: Callable[[], PreTrainedModel], change: Callable[[PreTrainedModel], None]
) -> None:
    model, before = make(), model_digests(make())
    assert changed(before, model) == []
    change(model)
    assert changed(before, model) == ["weights"]


def test_adapters_count_where_they_apply() -> None:
    model, plain = new_model(), model_digests(model_of())
    layers = adapt(model, "v_proj", first=1, second=2)
    before = model_digests(model)
    assert before["adapters"].startswith("first ")
    for layer in layers:
        layer.scaling["first"] = 0.5
    assert changed(before, model) == ["adapters"]
    for layer in layers:
        layer.active_adapters = ["second"]
    assert changed(before, model) == ["weights", "adapters"]
    for layer in layers:
        layer.disable_adapters = True
    assert model_digests(model) == plain


def test_a_tokenizer_counts_by_what_it_makes_of_text() -> None:
    _, tokenizer = load_tiny_llama()
    before = tokenizer_digest(tokenizer)
    tokenizer("text", padding="max_length", max_length=20, truncation=True)
    assert tokenizer_digest(tokenizer) == before
    tokenizer.chat_template = "{{ messages }}"
    template = tokenizer_digest(tokenizer)
    tokenizer.add_tokens(["more"])
    assert len({before, template, tokenizer_digest(tokenizer)}) == 3


def test_a_tokenizer_in_python_counts_by_its_words() -> None:
    before = tokenizer_digest(ByT5Tokenizer())
    assert tokenizer_digest(ByT5Tokenizer()) == before
    assert tokenizer_digest(ByT5Tokenizer(extra_ids=3)) != before
