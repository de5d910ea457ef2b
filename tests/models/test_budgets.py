"""Budgets: the choice of k for every head, and `sparsify` with a target in place of k."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.models.tiny import new_model, tokens
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import calibrate, calibrate_error_curves, sparsify
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.thresholds.budget import aims_of, levels_at, path_of_prices

KS = [4, 8, 16, 32]
TEXTS = tokens(4, 80, seed=5)


@lru_cache
def model() -> Any:
    return new_model(initializer_range=0.3)


@lru_cache
def table() -> ThresholdTable:
    made = calibrate(model(), tokens(6, 80, seed=1), k=KS, layer_k=[0, 0], top_k_at_calibration=False)
    return calibrate_error_curves(model(), made, TEXTS, row_fraction=1.0)


@given(st.lists(st.floats(0, 1), min_size=15, max_size=15), st.floats(1e-6, 0.2), st.booleans())
def test_the_choice_at_a_price_is_the_best_of_all_budgets(errors: list[float], price: float, alone: bool) -> None:
    error = torch.tensor(errors, dtype=torch.float64).view(5, 1, 3)
    aims = torch.tensor([[1], [4], [8], [16], [32]])
    falling = error.cummin(0).values
    first = 0 if alone else 1
    best = min(
        sum(float(falling[level, 0, head]) + price * int(aims[level, 0]) for head, level in enumerate(levels))
        for levels in itertools.product(range(first, 5), repeat=3)
    )
    levels = levels_at(error, aims, price, alone)[0].tolist()
    got = sum(float(falling[level, 0, head]) + price * int(aims[level, 0]) for head, level in enumerate(levels))
    assert got == pytest.approx(best, rel=1e-12)
    assert min(levels) >= first


@given(st.lists(st.floats(1e-6, 1), min_size=30, max_size=30), st.booleans())
def test_budgets_of_falling_prices_are_nested(errors: list[float], alone: bool) -> None:
    error = torch.tensor(errors).view(5, 2, 3).float()
    aims = torch.tensor([[1], [4], [8], [16], [32]]).expand(5, 2)
    prices = path_of_prices(error, aims, 8, alone)
    assert prices == sorted(prices, reverse=True)
    levels = [levels_at(error, aims, price, alone) for price in prices]
    assert all(bool((fewer <= more).all()) for fewer, more in itertools.pairwise(levels))


def test_a_target_is_met_between_the_measured_budgets() -> None:
    curves = table().curves
    assert curves is not None
    rows, error = curves.mean_value_rows()[:, -1], curves.mean_error()[:, -1].sqrt()
    for index in range(1, len(rows)):
        wanted = float(rows[index - 1 : index + 1].mean())
        budget = table().budget(target_value_rows=wanted)
        assert budget.value_rows == pytest.approx(wanted, rel=1e-6)
        assert float(error[index - 1 : index + 1].min()) <= budget.error <= float(error[index - 1 : index + 1].max())
        assert float(curves.price[index]) <= budget.price <= float(curves.price[index - 1])
        levels = levels_at(curves.error[..., -1], aims_of(table()), budget.price)
        assert torch.equal(budget.head_k, torch.tensor([1, *KS])[levels])
    budget = table().budget(target_error=float(error[3]))
    assert budget.error == pytest.approx(float(error[3]), rel=1e-5)


def test_a_run_reads_and_loses_what_the_curves_say_of_the_texts_that_made_them() -> None:
    budget = table().budget(target_value_rows=20)
    rows = []
    with (
        sparsify(model(), table(), target_value_rows=20, prefill="thresholded", statistics=True) as run,
        torch.no_grad(),
    ):
        assert run.budget is not None
        assert torch.equal(run.budget.head_k, budget.head_k)
        for text in TEXTS:
            model()(text[None])
    for layer in run.statistics():
        long = 2 * layer.keys**2 > 40 * 80 * 2
        rows.append(layer.value_rows.float()[long].mean())
    # the layers' inputs are thresholded here, those of the curves dense
    assert float(torch.stack(rows).mean()) == pytest.approx(budget.value_rows, rel=0.15)


def test_targets_change_between_two_steps() -> None:
    text = tokens(1, 70)
    with sparsify(model(), table(), target_value_rows=30, statistics=True) as run:
        for change in (lambda: None, lambda: run.set_target_value_rows(10), lambda: run.set_target_error(0.2)):
            change()
            model().generate(text, max_new_tokens=2, min_new_tokens=2, do_sample=False)
        assert run.budget is not None
        assert run.budget.error == pytest.approx(0.2)
        run.set_k(8)
        assert run.budget is None
        assert run.k == 8
    first, second, *_ = run.statistics()[-1].value_rows.float().mean(-1).flatten()
    assert second < first


ERRORS = [
    ({"target_error": 0.1, "k": 8}, TopThetaValueError, "expected one of target_error, target_value_rows, k"),
    ({"target_error": 0.1, "target_value_rows": 8}, TopThetaValueError, "target_error and target_value_rows; pass one"),
    ({"target_error": "low"}, TopThetaTypeError, "target_error: expected a number, got 'low'"),
    ({"target_value_rows": 1e6}, TopThetaValueError, "which the measured budgets reach, got 1000000.0; the nearest is"),
    ({"target_value_rows": 20, "vmc": False}, TopThetaValueError, "vmc: expected True, with which the error curves"),
    ({"target_value_rows": 20, "sdc": "none", "vmc": False}, TopThetaValueError, "sdc: expected 'exact', with which"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "message"), ERRORS)
def test_bad_targets_are_refused_before_anything_changes(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught, sparsify(model(), table(), **arguments):
        pass
    assert message in str(caught.value)


def test_a_table_without_curves_has_no_budgets() -> None:
    with pytest.raises(TopThetaValueError, match="a table with error curves for target_error, got one without"):
        replace(table(), curves=None).budget(target_error=0.1)


def test_without_vmc_no_head_keeps_its_largest_element_alone() -> None:
    plain = replace(table(), curves=None)
    made = calibrate_error_curves(model(), plain, TEXTS, sdc="none", vmc=False, row_fraction=1.0)
    assert made.curves is not None
    fewest = made.budget(target_value_rows=float(made.curves.mean_value_rows()[0, -1]), sdc="none", vmc=False)
    assert int(fewest.head_k.min()) == 4
    options = {"target_value_rows": fewest.value_rows + 1, "sdc": "none", "vmc": False}
    with sparsify(model(), made, **options, prefill="thresholded"), torch.no_grad():
        model()(TEXTS[:1])


def test_curves_are_saved_and_loaded(tmp_path: Any) -> None:
    table().save(tmp_path / "table")
    again = ThresholdTable.load(tmp_path / "table")
    assert torch.equal(again.budget(target_value_rows=15).head_k, table().budget(target_value_rows=15).head_k)
    again.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "table").read_bytes()
