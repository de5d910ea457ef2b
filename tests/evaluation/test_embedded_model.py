"""What docs/results.md says of the embedded model, in the committed results and on this machine."""

import dataclasses
from typing import Any

import pytest
import torch

from benchmarks import demo_tables
from tests.tiers import full
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.results import Point
from toptheta_npu.evaluation.summary import change
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.models import calibrate_discarded_mass, model_fingerprint, sparsify


@pytest.fixture(scope="module")
def committed() -> dict[Point, Measurement]:
    return dict(demo_tables.committed())


@pytest.fixture(scope="module")
def task() -> PerplexityTask:
    model, tokenizer = load_tiny_llama()
    return PerplexityTask(model, corpus.token_windows(tokenizer, "evaluation", 2560, 2))


def of_label(results: dict[Point, Measurement], label: str, table: str | None) -> dict[int | None, Measurement]:
    return {point.k: found for point, found in results.items() if (point.label, point.table) == (label, table)}


def saves_at_no_loss(dense: Measurement, theta: Measurement, last: Measurement) -> bool:
    """At most 0.5 % above dense with 8 times fewer V rows and 25 times fewer elements, a tenth of last-k's loss."""
    loss = change(theta, dense).value
    return (
        loss <= 0.5
        and theta.reads.value_row_saving >= 8
        and theta.reads.keys_mean >= 25 * theta.reads.kept_mean
        and change(last, dense).value >= 10 * max(loss, 0.05)
    )


def test_committed_results_show_the_trade(committed: dict[Point, Measurement]) -> None:
    (dense,) = of_label(committed, "dense", None).values()
    theta, last = of_label(committed, "Top-θ post + VMC", "post_softmax"), of_label(committed, "last-k", None)
    # a group of four heads reads at most four times as many V rows as each of them keeps
    assert [k for k in (32, 64, 128) if saves_at_no_loss(dense, theta[k], last[4 * k])] == [32, 64]


@pytest.mark.parametrize("family", ["Top-θ post + VMC", "Top-θ pre + SDC + VMC"])
def test_committed_thresholds_keep_k_on_held_out_text(committed: dict[Point, Measurement], family: str) -> None:
    table = "post_softmax" if "post" in family else "pre_softmax"
    found = of_label(committed, family, table)
    assert len(found) == 5
    for k, measurement in found.items():
        assert k is not None
        if k >= 64:
            assert 0.9 <= measurement.reads.kept_mean / k <= 1.1


@full
def test_the_trade_here_and_now(task: PerplexityTask) -> None:
    table = load_tiny_llama_thresholds("post_softmax")
    dense = task.measure(make_method("dense"), task.model)
    theta = task.measure(make_method("top-theta", 64, table), task.model)
    last = task.measure(make_method("last-k", 256, targets=table.layer_targets(64)), task.model)
    assert saves_at_no_loss(dense, theta, last)
    assert theta.reads.kept_over_target == pytest.approx(1, abs=0.25)  # two windows only


def test_thresholds_belong_to_the_model(task: PerplexityTask) -> None:
    for placement in ("pre_softmax", "post_softmax"):
        table = load_tiny_llama_thresholds(placement)
        assert table.fingerprint == model_fingerprint(task.model)
        assert table.placement == placement
        assert int(table.provenance["sequences"]) >= 64


@full
@pytest.mark.filterwarnings("ignore::toptheta_npu.thresholds.MeanDiscardedMassWarning")
def test_offline_compensation_by_the_mean_harms_and_by_the_geometric_mean_does_not() -> None:
    """The discarded mass is heavy-tailed: its mean is far too large for most rows."""
    model, tokenizer = load_tiny_llama()
    table = load_tiny_llama_thresholds("pre_softmax")
    first = slice(0, 1)
    table = dataclasses.replace(table, k=table.k[first], theta=table.theta[first], std=table.std[first])
    texts = corpus.token_windows(tokenizer, "calibration", 600, 2)
    held_out = corpus.token_windows(tokenizer, "evaluation", 257, 4)

    def perplexity(**options: Any) -> float:
        with torch.inference_mode(), sparsify(model, table, k=32, vmc=False, prefill="thresholded", **options):
            logits = model(held_out[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), held_out[:, 1:].flatten()).exp().item()

    without = perplexity(sdc="none")
    table = calibrate_discarded_mass(model, table, texts)
    typical = perplexity(sdc="offline")
    table = calibrate_discarded_mass(model, table, texts, statistic="mean")
    assert typical < 1.02 * without
    assert perplexity(sdc="offline") > 1.03 * without


def test_bfloat16_model_has_the_same_fingerprint() -> None:
    half, _ = load_tiny_llama(dtype=torch.bfloat16)
    assert model_fingerprint(half) == load_tiny_llama_thresholds("post_softmax").fingerprint
