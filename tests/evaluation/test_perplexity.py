"""The comparison harness against what it claims to measure."""

import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.methods import kinds
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.evaluation.tasks.prefix import run_prefix, score
from toptheta_npu.models import calibrate, sparsify
from toptheta_npu.thresholds import ThresholdTable

LENGTH, POSITIONS = 96, 24


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, initializer_range=0.4,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def windows() -> torch.Tensor:
    return torch.randint(64, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def task(model: LlamaForCausalLM, windows: torch.Tensor) -> PerplexityTask:
    return PerplexityTask(model, windows, POSITIONS)


@pytest.fixture(scope="module")
def table(model: LlamaForCausalLM, windows: torch.Tensor) -> ThresholdTable:
    return calibrate(
        model,
        windows,
        k=(8, 16),
        layer_k=[16, 16, 0, 0],
        estimator="pooled",
        top_k_at_calibration=False,
        placement="pre_softmax",
    )


def families(task: PerplexityTask, table: ThresholdTable) -> Iterator[Method]:
    targets = table.layer_targets(8)
    yield kinds.top_theta(table, 8, compensated=True)
    yield kinds.top_theta(table, 8, compensated=False)
    yield kinds.top_k(8, targets)
    yield kinds.last_k(8, targets)


def test_dense_is_the_plain_model(task: PerplexityTask, model: LlamaForCausalLM, windows: torch.Tensor) -> None:
    with torch.no_grad():
        logits = model(windows).logits[:, -POSITIONS - 1 : -1]
    expected = math.exp(F.cross_entropy(logits.flatten(0, 1), windows[:, -POSITIONS:].flatten()).item())
    result = task.evaluate(kinds.dense())
    assert result.perplexity == pytest.approx(expected, rel=1e-5)
    # rows of 72 to 95 keys, all of them kept and read
    assert result.reads.kept_mean == result.reads.keys_mean == (LENGTH - POSITIONS + LENGTH - 1) / 2
    assert result.reads.value_rows_max == LENGTH - 1


def test_methods_differ_and_leave_the_prefix_alone(task: PerplexityTask, table: ThresholdTable) -> None:
    before = task.evaluate(kinds.dense())
    results = [task.evaluate(method) for method in families(task, table)]
    assert len({round(result.perplexity, 6) for result in results}) == len(results)
    assert task.evaluate(kinds.dense()) == before


def test_counts_follow_the_rule(task: PerplexityTask, table: ThresholdTable) -> None:
    targets = table.layer_targets(8)
    top = task.evaluate(kinds.top_k(8, targets))
    assert top.reads.kept_mean == 8
    assert top.kept_over_k == 1
    assert top.reads_all.kept_mean == 12  # two layers at 16, two at 8
    last = task.evaluate(kinds.last_k(8, targets))
    assert last.reads.value_rows_mean == last.reads.kept_mean == last.reads.key_rows_mean == 8
    theta = task.evaluate(kinds.top_theta(table, 8, compensated=True))
    assert theta.kept_over_k == pytest.approx(1, abs=0.25)
    assert theta.reads.value_rows_mean <= 2 * theta.reads.kept_mean


def test_capped_thresholds_keep_at_most_k(task: PerplexityTask, table: ThresholdTable) -> None:
    plain = task.evaluate(kinds.top_theta(table, 8, compensated=True))
    for keep in ("recent", "first_and_last"):
        capped = task.evaluate(kinds.top_theta_capped(table, 8, keep))
        assert capped.reads.value_rows_max <= 2 * 8  # two query heads
        assert capped.reads.empty_share
        assert capped.reads.kept_mean < plain.reads.kept_mean


def test_results_are_measurements(task: PerplexityTask, table: ThresholdTable) -> None:
    for method in (kinds.dense(), kinds.top_k(8, table.layer_targets(8))):
        result, measurement = task.evaluate(method), task.measure(method, task.model)
        assert result.measurement == dataclasses.replace(measurement, layers=(), details={})


@pytest.mark.parametrize("positions", [0, LENGTH - 1, LENGTH + 50])
def test_positions_must_leave_a_prefix(model: LlamaForCausalLM, windows: torch.Tensor, positions: int) -> None:
    with pytest.raises(TopThetaValueError, match="positions: expected 1 to 94, for windows of 96 tokens"):
        PerplexityTask(model, windows, positions)


@pytest.mark.parametrize("prefix_bytes", [0, 20_000])
def test_prefixes_that_do_not_fit_run_again_densely(
    task: PerplexityTask, table: ThresholdTable, prefix_bytes: int
) -> None:
    method = kinds.top_theta(table, 8, compensated=True)
    small = PerplexityTask(task.model, task.windows, POSITIONS, prefix_bytes=prefix_bytes)
    assert small.evaluate(method).nats == task.evaluate(method).nats


def test_the_spread_of_what_is_kept_is_that_of_its_rows(task: PerplexityTask, table: ThresholdTable) -> None:
    method = kinds.top_theta(table, 8, compensated=True)
    result = task.evaluate(method)
    whole = sparsify(task.model, table, k=8, prefill="thresholded", statistics="rows")
    with torch.inference_mode(), whole as recording:
        for window in task.windows:
            task.model(window[None])
        layers = recording.statistics()[2:]
    kept = torch.stack([layer.kept.view(3, LENGTH, 4)[:, -POSITIONS - 1 : -1] for layer in layers]) / 8
    spread = result.spread
    assert spread is not None
    assert result.kept_over_k == pytest.approx(kept.mean().item(), rel=0.02)
    assert spread.std == pytest.approx(kept.std().item(), rel=0.1)
    assert spread.least_head <= result.kept_over_k <= spread.most_head
    assert spread.least_window <= result.kept_over_k <= spread.most_window
    assert spread.p95 * 8 == round(spread.p95 * 8)
    assert (kept > spread.p95).float().mean() < 0.1


def test_a_method_that_does_not_aim_at_k_has_no_spread(task: PerplexityTask) -> None:
    assert task.evaluate(kinds.dense()).spread is None


def test_a_measurement_is_what_evaluate_tells_and_more(task: PerplexityTask, table: ThresholdTable) -> None:
    method, seen = kinds.top_theta(table, 8, compensated=True), []
    result, found = task.evaluate(method), task.measure(method, task.model, seen.append)
    assert (task.name, task.samples, seen) == ("perplexity", 3, [1, 2, 3])
    assert (found.metric, found.higher_is_better) == ("nats per token", False)
    assert (found.scores, found.reads, found.reads_all, found.spread) == (
        result.nats, result.reads, result.reads_all, result.spread,
    )  # fmt: skip
    assert len(found.layers) == 4
    assert found.layers[3].kept_over_target == pytest.approx([result.kept_over_k] * 4, rel=0.3)
    assert sum(count for _, count in found.layers[3].kept_histogram) == 3 * POSITIONS * 4


@pytest.mark.parametrize("token", [-1, 1])
def test_a_token_without_an_embedding_is_refused(model: LlamaForCausalLM, windows: torch.Tensor, token: int) -> None:
    most = model.get_input_embeddings().num_embeddings
    token = most if token > 0 else token
    wrong = windows.clone()
    wrong[-1, -1] = token
    message = f"tokenizer: expected tokens from 0 to {most - 1}, which the model embeds, got token {token}; use the"
    with pytest.raises(TopThetaValueError, match=message):
        PerplexityTask(model, wrong, 8)
    prefix = run_prefix(model, windows[0, :8])
    for tokens in ([token], [1, token], [token, 1]):
        with pytest.raises(TopThetaValueError, match=message):
            score(model, prefix, tokens)
