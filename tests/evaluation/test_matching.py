"""Matched methods read what they are to read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.evaluation.small_model import LENGTH, K, random_windows, small_model, thresholds
from tests.tiers import full, only
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.methods import kinds
from toptheta_npu.evaluation.methods.blasst import match_scale_factor, select_tiles
from toptheta_npu.evaluation.methods.dense import select_all
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.methods.names import parse_method
from toptheta_npu.evaluation.methods.quest import match_pages, select_pages
from toptheta_npu.evaluation.methods.spec import matched_method
from toptheta_npu.evaluation.reads import Reads
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask, Result
from toptheta_npu.fallback.prefill import Selector
from toptheta_npu.models import apply_selection

TARGETS = [2 * K, 2 * K, K, K]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return small_model()


@pytest.fixture(scope="module")
def task(model: LlamaForCausalLM) -> PerplexityTask:
    return PerplexityTask(model, random_windows(6, seed=1), positions=24)


@pytest.fixture(scope="module")
def theta(task: PerplexityTask) -> Result:
    table = thresholds(task.model, task.windows, "post_softmax")
    return task.evaluate(kinds.top_theta(table, K, compensated=True))


def rows_read(method: Method, result: Result) -> float:
    """K and V rows."""
    return method.key_reads.rows(result.reads.keys_mean, result.reads.value_rows_mean) + result.reads.value_rows_mean


@pytest.mark.parametrize(
    "text",
    ["pages:page=2", "pages:page=2,selection=union", "pages:page=2,sdc=exact,vmc=true", "blasst:tile=1",
     "blasst:tile=1,sdc=exact", "random-k"],
)  # fmt: skip
def test_a_method_reads_what_top_theta_reads(task: PerplexityTask, theta: Result, text: str) -> None:
    windows = random_windows(4, seed=2)
    method = matched_method(parse_method(text), K, theta.reads, task.model, windows, TARGETS)
    result = task.evaluate(method)
    assert rows_read(method, result) == pytest.approx(theta.reads.keys_mean + theta.reads.value_rows_mean, rel=0.05)
    assert result.reads.value_rows_mean == pytest.approx(method.settings["expected_value_rows"], rel=0.05)
    assert (method.k, method.family) == (K, parse_method(text).label)
    assert result.reads_all.kept_mean != result.reads.kept_mean


def test_last_k_reads_the_same_number_of_value_rows(task: PerplexityTask, theta: Result) -> None:
    method = matched_method(parse_method("last-k"), K, theta.reads, task.model, random_windows(1, seed=2), TARGETS)
    assert task.evaluate(method).reads.value_rows_mean == round(theta.reads.value_rows_mean) == method.settings["rows"]


def value_rows(model: LlamaForCausalLM, windows: Tensor, rule: Selector, least: int, most: int) -> float:
    """Mean V rows of the rows of ``least`` to ``most`` keys in the third layer, behind two dense ones."""
    with torch.inference_mode(), apply_selection(
        model, lambda layer: rule if layer == 2 else select_all(), sdc="none", vmc=False, statistics=True
    ) as recording:  # fmt: skip
        model(windows)
        layer = recording.statistics()[2]
    wanted = (layer.keys >= least) & (layer.keys <= most)
    return layer.value_rows[wanted].float().mean().item()


@pytest.mark.parametrize(("wanted", "tile"), [(20.0, 1), (40.0, 4), (75.0, 7)])
def test_the_expected_value_rows_of_a_scale_factor_are_exact_behind_dense_layers(wanted: float, tile: int) -> None:
    model, windows = small_model(layers=3), random_windows(2, seed=3)
    # rows of 69 to 96 keys
    factor, expected = match_scale_factor(model, windows, 82.5, wanted, tile)
    found = value_rows(model, windows, select_tiles(factor, tile), 69, 96)
    assert found == pytest.approx(expected, rel=1e-4)
    assert expected == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize(("wanted", "page"), [(20.0, 1), (40.0, 2), (75.0, 5)])
def test_the_expected_value_rows_of_pages_are_exact_behind_dense_layers(wanted: float, page: int) -> None:
    model, windows = small_model(layers=3), random_windows(2, seed=3)
    count, expected = match_pages(model, windows, 60.0, wanted, page)
    found = value_rows(model, windows, select_pages(count, page), 24, 96)
    assert found == pytest.approx(expected, rel=1e-6)
    for other in (count - 1, count + 1):
        if other:
            rows = value_rows(model, windows, select_pages(other, page), 24, 96)
            assert abs(rows - wanted) >= abs(found - wanted)


def test_what_is_out_of_reach_is_as_near_as_it_gets(model: LlamaForCausalLM) -> None:
    windows = random_windows(1, seed=3)
    factor, least = match_scale_factor(model, windows, 80.0, 1.0, tile=16)
    assert least > 16  # the tiles that raise the maximum
    assert match_scale_factor(model, windows, 80.0, least, tile=16) == (factor, least)
    factor, most = match_scale_factor(model, windows, 80.0, 1e6, tile=16)
    assert factor < 1
    assert most == 80
    assert match_pages(model, windows, 80.0, 0.0, page=16)[0] == 1
    assert match_pages(model, windows, 80.0, 1e6, page=16) == (LENGTH // 16, 80.0)


def test_matching_is_deterministic_and_leaves_the_model_alone(model: LlamaForCausalLM) -> None:
    windows = random_windows(2, seed=3)
    with torch.inference_mode():
        before = model(windows).logits
        first, again = (match_scale_factor(model, windows, 80.0, 30.0, tile=4) for _ in range(2))
        assert torch.equal(model(windows).logits, before)
    assert first == again


@pytest.mark.parametrize("text", ["pages", "blasst"])
def test_windows_shorter_than_the_rows_are_refused(model: LlamaForCausalLM, text: str) -> None:
    target = Reads(8.0, 20.0, 30.0, 40.0, keys_mean=200.5)
    message = "calibration_windows: expected at least 201 tokens, the mean number of keys of the target's rows, got 96"
    with pytest.raises(TopThetaValueError, match=message):
        matched_method(parse_method(text), K, target, model, random_windows(1, seed=3), TARGETS)


def test_a_method_of_its_own_k_is_not_matched(model: LlamaForCausalLM, theta: Result) -> None:
    with pytest.raises(TopThetaValueError, match=r"got top-k; use spec\.make_method"):
        matched_method(parse_method("top-k"), K, theta.reads, model, random_windows(1, seed=3), TARGETS)


@full
@pytest.mark.parametrize(
    ("text", "k"), only({("pages", 64)}, [("pages", 64), ("blasst:tile=32", 256), ("random-k", 64)])
)
def test_methods_match_on_the_embedded_model(text: str, k: int) -> None:
    model, tokenizer = load_tiny_llama()
    table = load_tiny_llama_thresholds("post_softmax")
    task = PerplexityTask(model, corpus.token_windows(tokenizer, "evaluation", 1024, 2), positions=64)
    reads = task.evaluate(kinds.top_theta(table, k, compensated=True)).reads
    windows = corpus.token_windows(tokenizer, "calibration", 1024, 4)
    method = matched_method(parse_method(text), k, reads, model, windows, table.layer_targets(k))
    result = task.evaluate(method)
    assert rows_read(method, result) == pytest.approx(reads.keys_mean + reads.value_rows_mean, rel=0.05)
    assert result.reads.value_rows_mean == pytest.approx(method.settings["expected_value_rows"], rel=0.05)
