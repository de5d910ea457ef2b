"""Which architectures work: without thresholds each is its dense self, with them it is the oracle."""

from __future__ import annotations

import logging
from functools import lru_cache

import pytest
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache

from tests.models.tiny import VOCABULARY, K, oracle_attention, tokens
from toptheta_npu.errors import TopThetaNotImplementedError
from toptheta_npu.evaluation.methods.dense import select_all as dense
from toptheta_npu.models import (
    NothingSparsifiedWarning,
    apply_selection,
    calibrate,
    model_fingerprint,
    sparsify,
)
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.hook import attention
from toptheta_npu.models.hook.architecture import attention_modules, num_heads, num_layers, sliding_layers
from toptheta_npu.thresholds import ThresholdTable

pytestmark = pytest.mark.usefixtures("no_grad")

SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.1,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip
#: Names of the classes in transformers, and what their configurations need besides the sizes.
FULL: dict[str, dict[str, object]] = {
    "Llama": {}, "Mistral": {"sliding_window": None}, "Mixtral": EXPERTS, "Qwen2": {}, "Qwen2Moe": EXPERTS,
    "Qwen3": {"head_dim": 16}, "Qwen3Moe": {**EXPERTS, "head_dim": 16}, "Gemma": {"head_dim": 16}, "Phi": {},
    "Phi3": {}, "Phimoe": EXPERTS, "GPTNeoX": {}, "GPT2": {"scale_attn_by_inverse_layer_idx": True},
    "GPTBigCode": {}, "OPT": {"ffn_dim": 96, "word_embed_proj_dim": 64}, "Granite": {"attention_multiplier": 0.4},
    "Olmo": {}, "Olmo2": {}, "Olmoe": EXPERTS, "Glm": {}, "Glm4": {}, "Glm4Moe": EXPERTS, "SmolLM3": {},
    "Starcoder2": {}, "StableLm": {}, "Cohere": {"logit_scale": 1.0}, "Nemotron": {}, "SeedOss": {}, "Ernie4_5": {},
    "HunYuanDenseV1": {"head_dim": 16}, "Apertus": {}, "DeepseekV3": LATENT,
}  # fmt: skip
HYBRID = ("Gemma3", "Olmo3", "Cohere2", "Exaone4", "GptOss")
WINDOWED = {
    "num_hidden_layers": 4, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "head_dim": 16,
}  # fmt: skip
SLIDING, FULL_LAYERS = [0, 2], [1, 3]


@lru_cache
def tiny_model(name: str) -> PreTrainedModel:
    return new_model(name, **FULL.get(name, {**WINDOWED, **EXPERTS} if name == "GptOss" else WINDOWED))


def new_model(name: str, **options: object) -> PreTrainedModel:
    config_name = f"{name}TextConfig" if name in ("Gemma3", "Gemma4") else f"{name}Config"
    model_name = f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**{**SIZES, **options})
    return getattr(transformers, model_name)(config).eval()


def keeping_all(model: PreTrainedModel) -> ThresholdTable:
    """A table of thresholds -inf."""
    layers, heads = num_layers(model), num_heads(model)
    return ThresholdTable(
        theta=torch.full((1, layers, heads, 1), -torch.inf), k=torch.tensor([2]), lengths=torch.tensor([64]),
        counts=torch.zeros(layers, heads, 1, dtype=torch.int64), std=torch.zeros(1, layers, heads, 1),
        placement="pre_softmax", estimator="pooled", alpha=0.0, layer_k=[0] * layers,
        fingerprint=model_fingerprint(model), provenance={},
    )  # fmt: skip


def caches(model: PreTrainedModel, static: bool) -> DynamicCache | StaticCache:
    return StaticCache(config=model.config, max_cache_len=64) if static else DynamicCache(config=model.config)


def run(model: PreTrainedModel, ids: Tensor, prompt: int, static: bool = False) -> Tensor:
    """Logits of the prompt and of one decode step after the other."""
    cache = caches(model, static)
    parts = [model(ids[:, :prompt], **{CACHE_ARGUMENT: cache}).logits]
    parts += [model(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache}).logits for at in range(prompt, ids.shape[1])]
    return torch.cat(parts, dim=1)


def greedy(model: PreTrainedModel, ids: Tensor) -> Tensor:
    return model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False)


@pytest.mark.parametrize("name", [*FULL, *HYBRID])
def test_thresholds_that_keep_all_change_nothing(name):
    model, ids = tiny_model(name), tokens(2, 22)
    table = keeping_all(model)
    new_tokens = greedy(model, ids)
    for static in (False, True):
        expected = run(model, ids, 16, static)
        assert expected.std() > 0.05
        for options in ({"vmc": True}, {"sdc": "none", "vmc": False, "prefill": "thresholded"}):
            with sparsify(model, table, k=2, **options):
                torch.testing.assert_close(run(model, ids, 16, static), expected, atol=2e-5, rtol=1e-4)
                assert torch.equal(greedy(model, ids), new_tokens)


@pytest.mark.parametrize(
    "name", ["Mixtral", "Gemma", "Phi", "GPTNeoX", "GPT2", "OPT", "Granite", "Olmo2", "Cohere", "DeepseekV3", *HYBRID]
)
@pytest.mark.parametrize("static", [False, True])
def test_decode_by_calibrated_thresholds_agrees_with_the_oracle(name, static):
    model, ids = tiny_model(name), tokens(2, 30, seed=3)
    table = calibrated(name)
    expected_dense = run(model, ids, 20)
    with oracle_attention(model, table, first_row=20):
        expected = model(ids).logits
    with sparsify(model, table, k=K):
        found = run(model, ids, 20, static)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (found - expected_dense)[:, 24:].abs().max() > 1e-3


@lru_cache
def calibrated(name: str) -> ThresholdTable:
    model = tiny_model(name)
    return calibrate(model, tokens(4, 50, seed=1), k=K, layer_k=[0] * num_layers(model))


def test_sliding_layers_stay_dense_and_are_named(caplog):
    model = tiny_model("Gemma3")
    with caplog.at_level(logging.INFO, logger="toptheta_npu"):
        table = calibrated("Gemma3")
        caplog.clear()
        with sparsify(model, table, k=K, prefill="thresholded", statistics=True) as recording:
            model(tokens(1, 40))
    assert [record.message for record in caplog.records] == ["layers 0, 2 have a sliding window and stay dense"]
    assert sliding_layers(model) == SLIDING
    assert (table.theta[:, SLIDING] == -torch.inf).all()
    assert not table.counts[SLIDING].any()
    assert (table.theta[:, FULL_LAYERS] > -torch.inf).any()
    layers = recording.statistics()
    assert [len(rows.keys) for rows in layers] == [0, 40, 0, 40]
    assert all((layers[layer].kept[20:].float().mean() < 12) for layer in FULL_LAYERS)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("estimator", ["algorithm1", "pooled"])
def test_thresholds_of_a_model_with_sinks_keep_what_they_aim_at(placement, estimator):
    model, texts = new_model("GptOss", **WINDOWED, **EXPERTS), tokens(6, 60, seed=1)
    for module in attention_modules(model):  # most of the mass of a row
        module.sinks.data += 5
    options = {"alpha": 0.0} if estimator == "algorithm1" else {}
    table = calibrate(
        model, texts, k=K, placement=placement, estimator=estimator, layer_k=[0] * 4,
        top_k_at_calibration=estimator == "algorithm1", **options,
    )  # fmt: skip
    with torch.no_grad(), sparsify(model, table, k=K, prefill="thresholded", statistics=True) as recording:
        model(texts)
    first = recording.statistics()[FULL_LAYERS[0]]  # its scores do not depend on the thresholds
    kept = first.kept[first.keys > K].float()
    typical = kept.mean(0)
    torch.testing.assert_close(typical, torch.full((4,), float(K)), atol=1.0, rtol=0)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_steps_of_a_model_with_sinks_equal_a_thresholded_prompt(placement):
    model, ids = tiny_model("GptOss"), tokens(2, 30, seed=3)
    table = calibrate(model, tokens(4, 50, seed=1), k=K, layer_k=[0] * 4, placement=placement)
    options = {"k": K, "prefill": "thresholded"}
    with torch.no_grad(), sparsify(model, table, **options, statistics=True) as every_row:
        torch.testing.assert_close(run(model, ids, 1), model(ids).logits, atol=1e-4, rtol=1e-4)
    with torch.no_grad(), sparsify(model, table, **options, statistics="summary") as added_up:
        run(model, ids, 1)
        of_steps = added_up.summaries()[1]
    rows = every_row.statistics()[1]
    assert torch.equal(rows.kept[rows.decode].sum(0), rows.kept[~rows.decode].sum(0))
    assert torch.equal(rows.kept[rows.decode].sum(0), of_steps.kept)


def test_sinks_of_a_dense_prompt_in_parts(monkeypatch):
    model, ids = tiny_model("GptOss"), tokens(2, 22)
    expected = run(model, ids, 20)
    monkeypatch.setattr(attention, "_ROWS_PER_MASK", 8)
    with sparsify(model, keeping_all(model), k=2):
        torch.testing.assert_close(run(model, ids, 20), expected, atol=2e-5, rtol=1e-4)


def test_only_layers_that_see_all_tokens_count_against_the_warning():
    model = tiny_model("Olmo3")
    table = calibrate(model, tokens(4, 50, seed=1), k=K, layer_k=[0, 30, 0, 30])
    words = "rows of up to 30 keys are dense, by the table's layer_k. .* or calibrate with a lower layer_k;"
    with pytest.warns(NothingSparsifiedWarning, match=words), sparsify(model, table, k=K):
        run(model, tokens(1, 22), 20)


def test_a_decoder_that_also_looks_at_an_encoder():
    model = new_model("GPT2", add_cross_attention=True)
    ids, encoded = tokens(1, 22), torch.randn(1, 5, 64)

    def steps() -> Tensor:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        parts = ids.split([16, *[1] * 6], dim=1)
        return torch.cat(
            [model(part, **{CACHE_ARGUMENT: cache}, encoder_hidden_states=encoded).logits for part in parts], dim=1
        )

    expected = steps()
    with sparsify(model, keeping_all(model), k=2):
        torch.testing.assert_close(steps(), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("Gemma3", {**WINDOWED, "layer_types": ["sliding_attention"] * 4}, "layer_types.*full_attention in some layer"),
        ("Llama4", {"num_local_experts": 2, "layer_types": ["chunked_attention"] * 2}, "layer_types.*chunked"),
        ("DeepseekV3", {**LATENT, "qk_nope_head_dim": 16}, "head_dim.*24 for keys and 16 for values"),
        (
            "Gemma4",
            {**WINDOWED, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": VOCABULARY},
            "num_kv_shared_layers.*keys and values of their own",
        ),
        ("Mistral", {"sliding_window": 8}, "sliding_window.*None"),
        ("Gemma2", {"layer_types": ["full_attention"] * 2, "head_dim": 16}, "softcap.*None"),
        ("Falcon", {}, "attention implementation can be chosen"),
        ("Doge", {}, "one causal attention module"),
    ],
    ids=["every layer slides", "chunks", "latent attention", "shared", "window", "softcap", "falcon", "doge"],
)
def test_other_models_are_refused_on_entry(name, options, named):
    if name == "Llama4":
        config = transformers.Llama4TextConfig(**{**SIZES, "head_dim": 16, **options})
        model: PreTrainedModel = transformers.Llama4ForCausalLM(config).eval()
    else:
        model = new_model(name, **options)
    with pytest.raises(TopThetaNotImplementedError, match=named), apply_selection(model, lambda layer: dense()):
        pass
    with pytest.raises(TopThetaNotImplementedError, match=named):
        calibrate(model, tokens(2, 40), k=K, layer_k=[0] * num_layers(model))


def test_a_module_that_attends_twice_is_refused_in_the_call():
    model = new_model("DiffLlama")
    with (
        pytest.raises(TopThetaNotImplementedError, match="one attention per call"),
        sparsify(model, keeping_all(model), k=2),
    ):
        run(model, tokens(1, 8), 6)
