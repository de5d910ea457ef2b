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
from toptheta_npu.timing.clocks import Timing
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
    seconds, reads = step.measure(decoder, k=K, rounds=1)
    assert list(seconds) == [step.SPARSE, step.DENSE, step.SDPA, step.REST]
    assert all(timing.median > 0 for timing in seconds.values())
    assert reads.key_bytes == 2 * 2 * 2 * KEYS * 16 * 2
    assert reads.weight_bytes == 2 * sum(weight.numel() for weight in decoder.model.parameters())
    assert K / 2 < reads.kept < 2 * K
    assert reads.kept / KEYS < reads.value_bytes / reads.key_bytes < 2 * reads.kept / KEYS
    assert [int(layer.cumulative_length) for layer in decoder.cache.layers] == [KEYS] * 2


@pytest.mark.parametrize("wrong", [0.0, torch.nan])
def test_a_wrong_answer_is_an_error(decoder: step.Decoder, wrong: float) -> None:
    class Wrong:
        def attend(self, call: Any) -> torch.Tensor:
            return torch.full_like(call.query, wrong)

    forms: dict[str, step.Form] = {
        step.DENSE: lambda: attached(decoder.model, lambda layer: Wrong()), step.SDPA: nullcontext
    }  # fmt: skip
    with torch.no_grad(), pytest.raises(TopThetaWrongResultError, match="expected the logits of SDPA"):
        step.check(decoder, forms)


def test_memory_is_checked_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "free_bytes", lambda device: 5 << 30)
    with pytest.raises(TopThetaValueError, match=r"^memory: expected 7\.3 GiB, got 5\.0 GiB that are free"):
        step.make_decoder()


def test_ratios_by_hand() -> None:
    medians = {step.SPARSE: 2.0, step.DENSE: 3.0, step.SDPA: 5.0, step.REST: 1.0}
    reads = step.Reads(130.0, 4_000_000_000, 2_000_000_000, 400_000_000)
    assert reads.limit == pytest.approx(8 / 6.4)
    table = step.as_table({name: Timing(time, time / 2, 2 * time) for name, time in medians.items()}, reads)
    assert table.rows == [
        ["native top-θ", "2000", "1000 to 4000", "50%", "1.50", "2.50"],
        ["native at θ=-inf", "3000", "1500 to 6000", "67%", "1.00", "1.67"],
        ["SDPA of the model", "5000", "2500 to 10000", "80%", "0.60", "1.00"],
        ["without attention", "1000", "500 to 2000", "", "3.00", "5.00"],
    ]
    assert "keeps 130 per head and reads 4.00, 2.00, 0.40 GB" in table.title
