"""The whole decode step in small: thresholds that keep about k, forms that agree, and the figures by hand."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks import decode_step_1b as step
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.models.hook.attach import attached
from toptheta_npu.timing.measure import TopThetaWrongResultError

SHAPE = step.SHAPE | {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 64, "vocab_size": 100,
}  # fmt: skip
KEYS, K = 512, 32


@pytest.fixture(scope="module")
def decoder() -> step.Decoder:
    return step.make_decoder(SHAPE, batch=2, keys=KEYS)


def test_all_figures(decoder: step.Decoder) -> None:
    figures = step.measure(decoder, k=K, rounds=1)
    forms = [step.SPARSE, step.DENSE, step.SPARSE_INT8, step.DENSE_INT8, step.SPARSE_CHANNELS, step.SDPA, step.REST]
    assert list(figures["seconds"]) == forms
    assert all(timing["median"] > 0 for timing in figures["seconds"].values())
    assert figures["key_bytes"] == 2 * 2 * 2 * KEYS * 16 * 2
    assert figures["weight_bytes"] == 2 * sum(weight.numel() for weight in decoder.model.parameters())
    assert K / 2 < figures["kept"]["mean"] < 2 * K
    assert figures["kept"]["mean"] / KEYS < figures["kept"]["density"] < 2 * figures["kept"]["mean"] / KEYS
    assert [row[0] for row in step.as_table(figures).rows] == list(figures["seconds"])


def test_the_cache_is_full_but_for_the_steps(decoder: step.Decoder) -> None:
    decoder.rewind(3)
    with torch.no_grad():
        decoder.step(torch.Generator())
    assert [int(layer.cumulative_length) for layer in decoder.cache.layers] == [KEYS - 2] * 2


@pytest.mark.parametrize("wrong", ["zeros", "nan"])
def test_a_wrong_answer_is_an_error(decoder: step.Decoder, wrong: str) -> None:
    class Wrong:
        def attend(self, call: Any) -> torch.Tensor:
            return torch.full_like(call.query, 0.0 if wrong == "zeros" else torch.nan)

    wrong_form = step.Form(decoder, lambda: attached(decoder.model, lambda layer: Wrong()))
    forms = {step.DENSE: wrong_form, step.SDPA: step.Form(decoder, nullcontext)}
    with torch.no_grad(), pytest.raises(TopThetaWrongResultError, match="expected the logits of SDPA"):
        step.check(step.DENSE, forms)


def test_the_cache_in_int8_has_the_same_rows(decoder: step.Decoder) -> None:
    for layer, source in zip(step.in_int8(decoder).cache.layers, decoder.cache.layers, strict=True):
        assert layer.keys.dtype is layer.values.dtype is torch.int8
        assert int(layer.cumulative_length) == KEYS
        rows = layer.keys[..., :16].float() * layer.scales["key_antiquant_scale"][..., None]
        torch.testing.assert_close(rows, source.keys.float(), rtol=0, atol=0.02)


def test_the_scales_by_channel_are_those_of_the_largest_numbers(decoder: step.Decoder) -> None:
    with torch.no_grad():
        table = step.calibrate(decoder, K, torch.Generator())
    scaled = step.with_channel_scales(decoder, table)
    for layer, source in zip(step.in_int8(decoder, scaled).cache.layers, decoder.cache.layers, strict=True):
        assert int(layer.keys.abs().amax()) == int(layer.values.abs().amax()) == 127
        rows = layer.values.float() * layer.scales["value_antiquant_scale"][:, None]
        torch.testing.assert_close(rows, source.values.float(), rtol=0, atol=0.02)


def test_memory_is_checked_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "free_bytes", lambda device: 5 << 30)
    with pytest.raises(TopThetaValueError, match=r"^memory: expected 11\.4 GiB, got 5\.0 GiB that are free"):
        step.make_decoder()


def test_ratios_by_hand() -> None:
    seconds = {
        step.SPARSE: 2.0, step.DENSE: 3.0, step.SPARSE_INT8: 1.5, step.SPARSE_CHANNELS: 1.25, step.SDPA: 5.0,
        step.REST: 1.0,
    }  # fmt: skip
    figures = {
        "settings": {"batch": 4, "keys": 32768, "k": 128}, "pages": "small pages", "weight_bytes": 4e9,
        "key_bytes": 2e9, "value_bytes": 0.4e9, "kept": {"mean": 130.0, "p10": 40.0, "p90": 280.0, "density": 0.2},
        "seconds": {name: {"median": time, "p10": time / 2, "p90": 2 * time} for name, time in seconds.items()},
    }  # fmt: skip
    assert step.limit(figures) == pytest.approx(8 / 6.4)
    assert step.as_table(figures).rows == [
        ["native top-θ", "2000", "1000 to 4000", "50%", "1.50", "2.50"],
        ["native at θ=-inf", "3000", "1500 to 6000", "67%", "1.00", "1.67"],
        ["native top-θ, int8 cache", "1500", "750 to 3000", "33%", "2.00", "3.33"],
        ["native top-θ, int8 cache by channel", "1250", "625 to 2500", "20%", "2.40", "4.00"],
        ["SDPA of the model", "5000", "2500 to 10000", "80%", "0.60", "1.00"],
        ["without attention", "1000", "500 to 2000", "", "3.00", "5.00"],
    ]
    assert step.bytes_table(figures).rows == [
        ["4", "32768", "130", "40 to 280", "0.2000", "4.00", "2.00", "0.40", "1.25"]
    ]
