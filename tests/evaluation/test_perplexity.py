"""The comparison harness against what it claims to measure."""

import math
from collections.abc import Iterator
from statistics import fmean

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.measurement import Measurement, perplexity
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.evaluation.tasks.prefix import run_prefix, score
from toptheta_npu.models import calibrate
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
    yield make_method("top-theta", 8, table)
    yield make_method("top-theta:sdc=none", 8, table)
    yield make_method("top-k", 8, targets=targets)
    yield make_method("last-k", 8, targets=targets)


def measured(task: PerplexityTask, method: Method) -> Measurement:
    return task.measure(method, task.model)


def test_dense_is_the_plain_model(task: PerplexityTask, model: LlamaForCausalLM, windows: torch.Tensor) -> None:
    with torch.no_grad():
        logits = model(windows).logits[:, -POSITIONS - 1 : -1]
    expected = math.exp(F.cross_entropy(logits.flatten(0, 1), windows[:, -POSITIONS:].flatten()).item())
    result = measured(task, make_method("dense"))
    assert perplexity(fmean(result.scores)) == pytest.approx(expected, rel=1e-5)
    # rows of 72 to 95 keys, all of them kept and read
    assert result.reads.kept_mean == result.reads.keys_mean == (LENGTH - POSITIONS + LENGTH - 1) / 2
    assert result.reads.value_rows_max == LENGTH - 1


def test_methods_differ_and_leave_the_prefix_alone(task: PerplexityTask, table: ThresholdTable) -> None:
    before = measured(task, make_method("dense"))
    results = [measured(task, method) for method in families(task, table)]
    assert len({result.scores for result in results}) == len(results)
    assert measured(task, make_method("dense")) == before


def test_counts_follow_the_rule(task: PerplexityTask, table: ThresholdTable) -> None:
    targets = table.layer_targets(8)
    top = measured(task, make_method("top-k", 8, targets=targets))
    assert top.reads.kept_mean == 8
    assert top.reads.kept_over_target == 1
    assert top.reads_all.kept_mean == 12  # two layers at 16, two at 8
    last = measured(task, make_method("last-k", 8, targets=targets))
    assert last.reads.value_rows_mean == last.reads.kept_mean == last.reads.key_rows_mean == 8
    theta = measured(task, make_method("top-theta", 8, table))
    assert theta.reads.kept_over_target == pytest.approx(1, abs=0.25)
    assert theta.reads.value_rows_mean <= 2 * theta.reads.kept_mean


def test_capped_thresholds_keep_at_most_k(task: PerplexityTask, table: ThresholdTable) -> None:
    plain = measured(task, make_method("top-theta", 8, table))
    for keep in ("recent", "first_and_last"):
        capped = measured(task, make_method(f"top-theta-capped:keep={keep}", 8, table))
        assert capped.reads.value_rows_max <= 2 * 8  # two query heads
        assert capped.reads.empty_share
        assert capped.reads.kept_mean < plain.reads.kept_mean


@pytest.mark.parametrize("positions", [0, LENGTH - 1, LENGTH + 50])
def test_positions_must_leave_a_prefix(model: LlamaForCausalLM, windows: torch.Tensor, positions: int) -> None:
    with pytest.raises(TopThetaValueError, match="positions: expected 1 to 94, for windows of 96 tokens"):
        PerplexityTask(model, windows, positions)


@pytest.mark.parametrize("prefix_bytes", [0, 20_000])
def test_prefixes_that_do_not_fit_run_again_densely(
    task: PerplexityTask, table: ThresholdTable, prefix_bytes: int
) -> None:
    method = make_method("top-theta", 8, table)
    small = PerplexityTask(task.model, task.windows, POSITIONS, prefix_bytes=prefix_bytes)
    assert measured(small, method).scores == measured(task, method).scores


def test_a_measurement_has_its_samples_and_layers(task: PerplexityTask, table: ThresholdTable) -> None:
    seen: list[int] = []
    found = task.measure(make_method("top-theta", 8, table), task.model, seen.append)
    assert (task.name, task.samples, seen) == ("perplexity", 3, [1, 2, 3])
    assert (found.metric, found.higher_is_better) == ("nats per token", False)
    assert len(found.layers) == 4
    assert found.layers[3].kept_over_target == pytest.approx([found.reads.kept_mean / 8] * 4, rel=0.3)


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
