"""Methods with a target in place of k: thresholds and ranks by the same budget."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.tiny import new_model, tokens
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.methods.names import parse_method
from toptheta_npu.evaluation.methods.spec import make_method
from toptheta_npu.evaluation.methods.top_k import select_top_k_of_heads
from toptheta_npu.evaluation.sweep import Plan, table_digest
from toptheta_npu.fallback.prefill import RowChunk
from toptheta_npu.models import calibrate, calibrate_error_curves, sparsify
from toptheta_npu.thresholds import ThresholdTable

TEXTS = tokens(4, 80, seed=5)


@lru_cache
def model() -> Any:
    return new_model(initializer_range=0.3)


@lru_cache
def plain_table() -> ThresholdTable:
    return calibrate(model(), tokens(6, 80, seed=1), k=[4, 8, 16, 32], layer_k=[0, 0], top_k_at_calibration=False)


@lru_cache
def table() -> ThresholdTable:
    return calibrate_error_curves(model(), plain_table(), TEXTS, row_fraction=1.0)


def _logits(context: Any) -> tuple[Tensor, Any]:
    with context as run, torch.no_grad():
        return model()(TEXTS[:1]).logits, run


def test_top_theta_with_a_target_is_sparsify_with_it() -> None:
    method = make_method(parse_method("top-theta:target_value_rows=15"), table=table())
    got, _ = _logits(method.enter(model()))
    expected, _ = _logits(sparsify(model(), table(), target_value_rows=15, prefill="thresholded"))
    assert torch.equal(got, expected)
    assert method.k is None
    assert method.family == "Top-θ pre + SDC + VMC, 15 V rows"


def test_top_k_with_a_target_keeps_the_k_of_every_head() -> None:
    head_k = table().budget(target_value_rows=15).head_k
    scores = torch.randn(1, 4, 3, 40, generator=torch.Generator().manual_seed(0))
    rows = {name: torch.ones(1) for name in ("query", "key", "first", "n")}
    chunk = RowChunk(rows=slice(0, 3), scores=scores, visible=torch.ones(1, 1, 3, 40, dtype=torch.bool), **rows)
    keep = select_top_k_of_heads(head_k[0].tolist())(chunk)
    assert torch.equal(keep.sum(-1)[0], head_k[0][:, None].expand(4, 3))
    assert bool((scores.masked_fill(~keep, torch.inf).amin(-1) > scores.masked_fill(keep, -torch.inf).amax(-1)).all())
    method = make_method(parse_method("top-k:target_value_rows=15"), table=table(), targets=[4, 4])
    _, run = _logits(method.enter(model()))
    kept = [float(summary.kept.double().mean() / summary.rows) for summary in run.summaries()]
    assert method.family == "Top-k + SDC + VMC, 15 V rows"
    assert float(torch.tensor(kept).mean()) == pytest.approx(float(head_k.double().mean()), rel=0.25)


def test_such_methods_stand_once_for_every_table_and_not_for_every_k() -> None:
    specs = tuple(map(parse_method, ("dense", "top-theta", "top-theta:target_error=0.05", "top-k:target_error=0.05")))
    plan = Plan(("perplexity",), specs, (4, 8), {"one": table()}, layers=2)
    points = [(point.method, point.k, point.table) for point, _ in plan.points("perplexity")]
    assert points == [
        ("dense", None, None), ("top-theta", 4, "one"), ("top-theta", 8, "one"),
        ("top-theta:target_error=0.05", None, "one"), ("top-k:target_error=0.05", None, "one"),
    ]  # fmt: skip
    with pytest.raises(TopThetaValueError, match="a table with error curves"):
        Plan(("perplexity",), specs[2:3], (), {"one": plain_table()}, layers=2)


def test_the_digest_of_a_table_knows_its_curves() -> None:
    assert table_digest(table()) != table_digest(plain_table())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top-theta:target_error=0", "target_error: expected a number > 0, got '0'"),
        ("top-theta:target_error=0.1,target_value_rows=3", "method top-theta: target_error excludes target_value_rows"),
        ("top-k:target_error=0.1,layer_k=equal", "target_error excludes layer_k=equal; leave one of them out"),
        ("top-theta:target_error=0.1,selection=union", "target_error excludes selection=union; leave one of them out"),
        ("last-k:target_error=0.05", "expected an option that it has, got 'target_error'"),
    ],
)
def test_bad_targets_are_named(text: str, message: str) -> None:
    with pytest.raises(TopThetaValueError) as caught:
        parse_method(text)
    assert message in str(caught.value)
