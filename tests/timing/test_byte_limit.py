"""The most that a threshold can gain by bytes, against values worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from toptheta_npu.timing.byte_limit import ModelBytes, StepBytes, model_bytes, weights_read


@pytest.mark.parametrize(
    ("size", "length", "batch", "cache", "attention", "whole"),
    [
        # one KV head of one number in one byte: 50 tokens are 50 bytes of K and 50 of V beside 100 of weights
        (ModelBytes(100, 1, 1, 1, 1, 1), 50, 1, 100, 2.0, 200 / 150),
        (ModelBytes(100, 1, 1, 1, 1, 1), 50, 2, 200, 2.0, 300 / 200),
        (ModelBytes(100, 1, 1, 1, 2, 1), 50, 1, 200, 2.0, 300 / 200),
        (ModelBytes(100, 8, 2, 1, 1, 1), 50, 1, 200, 2.0, 300 / 200),
        (ModelBytes(100, 8, 1, 1, 1, 1), 50, 1, 100, 2.0, 200 / 150),
        (ModelBytes(0, 1, 1, 1, 1, 1), 50, 1, 100, 2.0, 2.0),
        # a second layer with a window of 30 tokens: 60 bytes that no threshold saves, and 40 of the first 20 tokens
        (ModelBytes(100, 1, 1, 1, 1, 1, (30,)), 50, 1, 160, 160 / 110, 260 / 210),
        (ModelBytes(100, 1, 1, 1, 1, 1, (30,)), 20, 1, 80, 80 / 60, 180 / 160),
        # LLaMA-3.1-8B in bfloat16: 2 * 8 * 128 * 2 * 32 = 131072 bytes a token beside 15.0 GB of weights
        (ModelBytes(15.0e9, 32, 8, 128, 2, 32), 8192, 1, 131072 * 8192, 2.0, 16.0737 / 15.5369),
        (ModelBytes(15.0e9, 32, 8, 128, 2, 32), 32768, 32, 131072 * 32768 * 32, 2.0, 152.439 / 83.7195),
        # Qwen2.5-0.5B in bfloat16: 2 * 2 * 64 * 2 * 24 = 12288 bytes a token beside 988 MB of weights
        (ModelBytes(988e6, 14, 2, 64, 2, 24), 4096, 1, 12288 * 4096, 2.0, 1038.332 / 1013.166),
    ],
)  # fmt: skip
def test_limits_worked_out_by_hand(
    size: ModelBytes, length: int, batch: int, cache: int, attention: float, whole: float
) -> None:
    step = size.step(length, batch)
    assert step.cache == cache
    assert step.attention_gain() == pytest.approx(attention, rel=1e-5)
    assert step.model_gain() == pytest.approx(whole, rel=1e-5)
    assert step.cache_share == pytest.approx(cache / (size.weights + cache))


def test_a_part_of_the_rows_that_is_read_gains_less() -> None:
    step = StepBytes(weights=100, keys=50, values=50)
    assert step.attention_gain(0.5) == pytest.approx(100 / 75)
    assert step.model_gain(0.5) == pytest.approx(200 / 175)
    assert step.attention_gain(1.0) == step.model_gain(1.0) == 1.0


@pytest.mark.parametrize(
    ("tensors", "settings", "read"),
    [
        # tied: the table of embeddings is the output, which is read whole
        ({"model.embed_tokens.weight": 40, "model.layers.0.mlp.up_proj.weight": 10}, {}, 50),
        # untied: a step looks up a row of it
        ({"model.embed_tokens.weight": 40, "lm_head.weight": 40, "model.norm.weight": 1}, {}, 41),
        ({"transformer.wte.weight": 40, "lm_head.weight": 40}, {}, 40),
        # 2 of 8 experts
        ({"a.layers.0.mlp.experts.0.w1.weight": 80, "a.layers.0.mlp.gate.weight": 1},
         {"num_local_experts": 8, "num_experts_per_tok": 2}, 21),
        ({"vision_tower.x.weight": 70, "model.visual.y.weight": 7, "model.layers.0.q_proj.weight": 3}, {}, 3),
    ],
)  # fmt: skip
def test_weights_that_a_step_reads_at_least(tensors: dict[str, int], settings: dict[str, int], read: float) -> None:
    assert weights_read(SimpleNamespace(**settings), tensors) == read


def test_a_configuration_says_heads_layers_and_windows() -> None:
    config = SimpleNamespace(
        num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, head_dim=None, hidden_size=64,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=16,
    )  # fmt: skip
    assert model_bytes(config, {"x": 5}, 2) == ModelBytes(5, 8, 2, 8, 2, 1, (16, 16))
    plain = SimpleNamespace(num_hidden_layers=3, num_attention_heads=8, hidden_size=64)
    assert model_bytes(plain, {"x": 5}, 4) == ModelBytes(5, 8, 8, 8, 4, 3)
