"""What each method keeps, reads and compensates, in a small random model."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.evaluation.small_model import K, logits_and_statistics, random_windows, small_model, thresholds
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.methods.method import KeyReads
from toptheta_npu.models import calibrate_discarded_mass, sparsify
from toptheta_npu.models.sparse.statistics import LayerStatistics
from toptheta_npu.thresholds import ThresholdTable

TARGETS = [2 * K, 2 * K, K, K]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return small_model()


@pytest.fixture(scope="module")
def windows() -> Tensor:
    return random_windows(2, seed=1)


@pytest.fixture(scope="module")
def pre(model: LlamaForCausalLM, windows: Tensor) -> ThresholdTable:
    return calibrate_discarded_mass(model, thresholds(model, windows, "pre_softmax"), windows)


@pytest.fixture(scope="module")
def post(model: LlamaForCausalLM, windows: Tensor) -> ThresholdTable:
    return thresholds(model, windows, "post_softmax")


@pytest.mark.parametrize(
    ("sdc", "vmc"), [("none", False), *((sdc, vmc) for sdc in ("exact", "exp_threshold", "offline") for vmc in (0, 1))]
)
def test_thresholds_take_every_compensation(
    model: LlamaForCausalLM, windows: Tensor, pre: ThresholdTable, sdc: Any, vmc: int
) -> None:
    gamma = ",gamma=0.3" if sdc == "exp_threshold" else ""
    method = make_method(f"top-theta:sdc={sdc},vmc={str(bool(vmc)).lower()}{gamma}", K, pre)
    logits, _ = logits_and_statistics(method, model, windows)
    with torch.inference_mode(), sparsify(
        model, pre, k=K, sdc=sdc, sdc_gamma=0.3 if gamma else 0.05, vmc=bool(vmc), prefill="thresholded"
    ):  # fmt: skip
        assert torch.equal(model(windows).logits, logits)


def test_no_two_compensations_are_the_same(model: LlamaForCausalLM, windows: Tensor, pre: ThresholdTable) -> None:
    texts = [
        "top-theta:sdc=none", "top-theta:vmc=false", "top-theta", "top-theta:sdc=exp_threshold",
        "top-theta:sdc=exp_threshold,gamma=1", "top-theta:sdc=exp_threshold,vmc=false", "top-theta:sdc=offline",
        "top-theta:sdc=offline,vmc=false", "top-theta:selection=union", "top-theta-capped",
        "top-theta-capped:keep=first_and_last",
    ]  # fmt: skip
    made = [make_method(text, K, pre) for text in texts]
    sums = {round(logits_and_statistics(method, model, windows)[0].abs().sum().item(), 3) for method in made}
    assert len(sums) == len({method.family for method in made}) == len(texts)


@pytest.mark.parametrize(
    ("text", "k", "name", "message"),
    [
        ("top-theta:sdc=none", K, "post", "sdc='none' needs placement='pre_softmax'"),
        ("top-theta:sdc=exp_threshold", K, "post", "sdc='exp_threshold' needs placement='pre_softmax'"),
        ("top-theta:sdc=offline", K, "bare", "discarded_mass: expected the cal"),
        ("top-theta", 3 * K, "pre", "k: expected 8 to 16, the calibrated range"),
        ("top-theta-capped", 3 * K, "pre", "k: expected 8 to 16, the calibrated range"),
    ],
)
def test_what_cannot_run_is_refused_before_it_runs(
    model: LlamaForCausalLM, windows: Tensor, request: pytest.FixtureRequest, text: str, k: int, name: str, message: str
) -> None:
    table = thresholds(model, windows, "pre_softmax") if name == "bare" else request.getfixturevalue(name)
    with pytest.raises(TopThetaValueError, match=re.escape(message)):
        make_method(text, k, table)


@pytest.mark.parametrize("selection", ["union", "own"])
def test_thresholds_of_another_model_are_refused_under_every_selection(pre: ThresholdTable, selection: Any) -> None:
    method = make_method(f"top-theta:selection={selection}", K, pre)
    other = small_model(layers=3)
    with pytest.raises(TopThetaValueError, match="3 layers x 4 heads, as the model has"), method.enter(other):
        pass


@pytest.mark.parametrize(
    "text", ["top-theta:selection=union", "top-k:selection=union", "top-k:selection=union,sdc=none"]
)
def test_heads_of_a_group_keep_its_union(
    model: LlamaForCausalLM, windows: Tensor, pre: ThresholdTable, text: str
) -> None:
    own, union = (make_method(each, K, pre, TARGETS) for each in (text.replace("union", "own"), text))
    before, after = (logits_and_statistics(method, model, windows)[1] for method in (own, union))
    for layer in after:
        assert torch.equal(layer.kept, layer.value_rows.repeat_interleave(2, dim=1))
    # the first layer has the same input
    assert torch.equal(after[0].value_rows, before[0].value_rows)
    assert (before[0].kept < after[0].kept).any()


def test_top_k_may_be_equal_in_all_layers(model: LlamaForCausalLM, windows: Tensor) -> None:
    for text, expected in (("top-k", TARGETS), ("top-k:layer_k=equal", [K] * 4)):
        _, layers = logits_and_statistics(make_method(text, K, targets=TARGETS), model, windows)
        assert [int(layer.kept.max()) for layer in layers] == expected


def check_first_layers(layers: list[LayerStatistics]) -> None:
    """Top-k at 16."""
    for layer in layers[:2]:
        assert torch.equal(layer.kept, layer.keys.clamp_max(2 * K)[:, None].expand_as(layer.kept))


def test_last_k_and_pages_keep_k_after_first_layers_of_top_k(model: LlamaForCausalLM, windows: Tensor) -> None:
    for text, key_reads in (("last-k", KeyReads(0, 1)), ("pages:page=4", KeyReads(0.5, 1))):
        method = make_method(text, K, targets=TARGETS)
        _, layers = logits_and_statistics(method, model, windows)
        check_first_layers(layers)
        # a page of 4, and the last one, of 1 to 4
        most = K if method.family == "last-k" else 4 + (layers[2].keys - 1) % 4 + 1
        for layer in layers[2:]:
            assert torch.equal(layer.kept, layer.keys.clamp(max=most)[:, None].expand_as(layer.kept))
        assert method.key_reads == key_reads
    assert KeyReads(2 / 16, 1.0).rows(160, 30) == 50
