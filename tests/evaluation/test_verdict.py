"""Verdicts on methods, against figures worked out by hand and tables of Student's t."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.evaluation.test_summary import READS, answers, losses
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.results import Point
from toptheta_npu.evaluation.student import student_quantile
from toptheta_npu.evaluation.verdict import verdict, verdicts


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (10, 2.228), (30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_quantiles_are_those_of_printed_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=5.1e-4)


def test_quantiles_fall_towards_that_of_the_normal_law() -> None:
    found = [student_quantile(freedom) for freedom in (*range(1, 1002), None)]
    assert all(more >= fewer for more, fewer in pairwise(found))
    assert found[-1] == pytest.approx(1.959964, abs=1e-6)
    assert found[999] < 1.0013 * found[-1]


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ((0.02, 0.021, 0.019, 0.02), "loss seen: 2 % (95 % interval 1.9 to 2.2 %)"),
        ((-0.02, -0.021, -0.019), "no loss seen: better than dense by 1.7 to 2.2 % (95 % interval)"),
        ((0.0, 0.0, 0.0, 0.0), "no difference in 4 windows"),
        ((0.001, -0.001, 0.001, -0.001), "no loss seen; 4 windows cannot exclude 0.18 %"),
        ((1e-6, -1e-6, 1e-6), "no loss seen; 3 windows cannot exclude less than 0.01 %"),
        ((0.5, 0.4), "nothing can be told from 2 windows; take more"),
        ((0.5,), "nothing can be told from 1 window; take more"),
    ],
)
def test_words_of_losses(differences: tuple[float, ...], words: str) -> None:
    dense = losses(*([2.0] * len(differences)))
    assert verdict(losses(*(2.0 + each for each in differences)), dense, "windows") == words


def test_a_method_that_left_nothing_out_is_not_judged() -> None:
    point, whole = Point("perplexity", "tau", "tau"), replace(READS, kept_mean=READS.keys_mean)
    measurements = {
        Point("perplexity", "dense", "dense"): losses(1.0, 2.0, 3.0),
        point: replace(losses(1.0, 2.0, 3.0), reads=whole),
    }
    expected = "tau: nothing was left out: every row kept all of its keys, as dense attention does"
    assert verdicts("perplexity", measurements) == [expected]


def test_a_tau_of_zero_is_judged_since_it_may_have_an_int8_cache() -> None:
    whole = replace(READS, kept_mean=READS.keys_mean)
    measurements = {
        Point("perplexity", "dense", "dense"): losses(2.0, 2.0, 2.0, 2.0),
        Point("perplexity", "tau:tau=0", "tau"): replace(losses(2.02, 2.021, 2.019, 2.02), reads=whole),
    }
    assert verdicts("perplexity", measurements) == ["tau: loss seen: 2 % (95 % interval 1.9 to 2.2 %)"]


def test_fewer_right_answers_are_a_loss() -> None:
    dense, sparse = answers([1] * 100), answers([1] * 80 + [0] * 20)
    assert verdict(sparse, dense) == "loss seen: 20 points (95 % interval 12 to 28 points)"
    assert verdict(dense, sparse) == "no loss seen: better than dense by 12 to 28 points (95 % interval)"
    same = answers([1, 0] * 4)
    assert verdict(same, same, "prompts") == "no loss seen; 8 prompts cannot exclude 20 points"
    assert verdict(answers([0] * 4), answers([1] * 4)).endswith("to 100 points)")


def test_other_scores_keep_their_unit() -> None:
    dense, sparse = (Measurement("bits", True, scores, READS, READS) for scores in ((5.0, 6.0, 7.0), (5.5, 5.0, 7.5)))
    assert verdict(sparse, dense) == "no loss seen; 3 samples cannot exclude 2.2 bits"


def test_a_line_for_every_method_but_dense() -> None:
    dense, sparse = losses(1.0, 2.0, 3.0), losses(1.01, 2.02, 3.06)
    measurements = {
        Point("perplexity", "dense", "dense"): dense,
        Point("perplexity", "top-theta", "Top-θ", "books", 128): sparse,
        Point("perplexity", "last-k", "last-k", None, 128): dense,
    }
    assert verdicts("perplexity", measurements) == [
        "Top-θ, k = 128: no loss seen; 3 windows cannot exclude 10 %", "last-k, k = 128: no difference in 3 windows"
    ]  # fmt: skip
    measurements[Point("perplexity", "top-theta", "Top-θ", "code", 128)] = sparse
    assert [line.split(":")[0] for line in verdicts("perplexity", measurements)][:1] == ["Top-θ, k = 128, books"]
    del measurements[Point("perplexity", "dense", "dense")]
    assert verdicts("perplexity", measurements) == []


@pytest.mark.parametrize("scores", [(1.0, math.nan, 3.0), (1.0, math.inf, 3.0), (math.nan,) * 3])
def test_of_losses_that_are_not_finite_nothing_is_told(scores: tuple[float, ...]) -> None:
    expected = "nothing can be told from 3 windows: a score, or its difference to dense, is not finite"
    assert verdict(losses(*scores), losses(1.0, 2.0, 3.0), "windows") == expected


def test_a_loss_whose_perplexity_is_beyond_a_float_is_a_loss() -> None:
    found = verdict(losses(900.0, 901.0, 902.0), losses(1.0, 2.0, 3.0), "windows")
    assert found.startswith("loss seen: inf %")
