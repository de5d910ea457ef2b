"""Verdicts on methods, against figures worked out by hand and tables of Student's t."""

import math
import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.test_summary import READS, answers, losses
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.results import Point
from toptheta_npu.evaluation.verdict import student_quantile, verdict, verdicts

_LOSSES = st.lists(st.floats(0.5, 9.0), min_size=3, max_size=40)


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (10, 2.228), (30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_quantiles_are_those_of_printed_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=5.1e-4)


def test_quantiles_fall_towards_that_of_the_normal_law() -> None:
    found = [student_quantile(freedom) for freedom in range(1, 1002)]
    assert all(more > fewer for more, fewer in pairwise(found))
    assert found[-1] == pytest.approx(1.959964, abs=1e-6)
    assert found[999] < 1.0013 * found[-1]


def test_losses_by_hand() -> None:
    """Differences of 0.01, 0.02, 0.03: a mean of 0.02, a deviation of 0.01, and 4.30265 * 0.01 / sqrt(3) = 0.0248414.

    For ln 1.005 = 0.00498754, sqrt(n) / t has to reach 2.005: at 17 it is 4.1231 / 2.1199, at 18 4.2426 / 2.1098.
    """
    found = verdict(losses(2.01, 3.02, 4.03), losses(2.0, 3.0, 4.0))
    assert found.loss == pytest.approx(100 * (math.exp(0.02) - 1))
    assert (found.low, found.high) == pytest.approx((-0.48297, 4.58620), abs=1e-4)
    assert (found.unit, found.samples, found.enough) == ("%", 3, 18)
    assert found.told == pytest.approx(0.5)
    assert found.in_words("windows") == "no loss seen; 3 windows cannot exclude 4.6 %; 18 would tell 0.5 %"


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ((0.02, 0.021, 0.019, 0.02), "loss seen: 2 % (95 % interval 1.9 to 2.2 %)"),
        ((-0.02, -0.021, -0.019), "no loss seen: better than dense by 1.7 to 2.2 % (95 % interval)"),
        ((0.0, 0.0, 0.0, 0.0), "no difference in 4 windows"),
        ((0.001, -0.001, 0.001, -0.001), "no loss seen; 4 windows cannot exclude 0.18 %"),  # which tell 0.5 %
        ((1e-6, -1e-6, 1e-6), "no loss seen; 3 windows cannot exclude less than 0.01 %"),
        ((0.5, 0.4), "nothing can be told from 2 windows; take more"),
        ((0.5,), "nothing can be told from 1 window; take more"),
    ],
)
def test_words_of_losses(differences: tuple[float, ...], words: str) -> None:
    dense = losses(*([2.0] * len(differences)))
    sparse = losses(*(2.0 + each for each in differences))
    assert verdict(sparse, dense).in_words("windows") == words


def test_answers_by_hand() -> None:
    """No difference in 8 answers counts as one gained or lost among 10: 1.96 * 1 / 10, and 3842 - 2 for a point."""
    found = verdict(answers([1, 0] * 4), answers([1, 0] * 4))
    assert (found.loss, found.low, found.high) == pytest.approx((0.0, -19.5996, 19.5996), abs=1e-4)
    assert found.in_words("prompts") == "no loss seen; 8 prompts cannot exclude 20 points; 3840 would tell 1 point"


def test_fewer_right_answers_are_a_loss() -> None:
    dense, sparse = answers([1] * 100), answers([1] * 80 + [0] * 20)
    found = verdict(sparse, dense)
    assert (found.loss, found.unit) == (pytest.approx(20.0), "points")
    assert found.low == pytest.approx(20.0 - 195.9964 * math.sqrt(20 + 1 - 400 / 102) / 102, abs=1e-3)
    assert found.in_words().startswith("loss seen: 20 points (95 % interval 12 to 28 points)")
    assert verdict(dense, sparse).in_words().startswith("no loss seen: better than dense by 12 to 28 points")


def test_no_more_than_all_answers_can_be_lost() -> None:
    assert verdict(answers([0] * 4), answers([1] * 4)).high == 100.0


def test_other_scores_keep_their_unit_and_have_no_number_of_samples_to_tell() -> None:
    dense, sparse = (Measurement("bits", True, scores, READS, READS) for scores in ((5.0, 6.0, 7.0), (5.5, 5.0, 7.5)))
    found = verdict(sparse, dense)
    assert (found.loss, found.unit, found.told, found.enough) == (0.0, "bits", None, None)
    half = 4.30265 * statistics.stdev([0.5, -1.0, 0.5]) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((-half, half), abs=1e-4)


def test_other_samples_are_refused() -> None:
    with pytest.raises(TopThetaValueError, match="scores: expected 2, as dense has them, got 1"):
        verdict(losses(1.0), losses(1.0, 2.0))


def test_the_interval_of_few_windows_holds_the_true_loss_19_times_in_20() -> None:
    """With the quantile of the normal law it would hold it 17.6 times in 20."""
    generator = random.Random(3)
    held = 0
    for _ in range(1000):
        differences = [generator.gauss(0.01, 0.02) for _ in range(5)]
        found = verdict(losses(*(2.0 + each for each in differences)), losses(*([2.0] * 5)))
        held += found.low <= 100 * math.expm1(0.01) <= found.high
    assert 0.93 <= held / 1000 <= 0.97


@given(dense=_LOSSES, data=st.data())
def test_verdict_depends_on_differences_alone_and_turns_with_them(dense: list[float], data: st.DataObject) -> None:
    change = data.draw(st.lists(st.floats(-0.5, 0.5), min_size=len(dense), max_size=len(dense)))
    sparse = [each + more for each, more in zip(dense, change, strict=True)]
    found, turned = verdict(losses(*sparse), losses(*dense)), verdict(losses(*dense), losses(*sparse))
    assert found.low <= found.loss <= found.high
    # in nats, turned round
    for one, other in ((found.low, turned.high), (found.loss, turned.loss), (found.high, turned.low)):
        assert math.log1p(one / 100) == pytest.approx(-math.log1p(other / 100), abs=1e-9)
    shifted = verdict(losses(*(each + 1 for each in sparse)), losses(*(each + 1 for each in dense)))
    assert (shifted.low, shifted.high) == pytest.approx((found.low, found.high), abs=1e-6)


@given(change=st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=40))
def test_enough_samples_are_the_fewest_that_tell_half_a_percent(change: list[float]) -> None:
    found = verdict(losses(*(2.0 + each for each in change)), losses(*([2.0] * len(change))))
    assert found.enough is not None
    spread = statistics.stdev(2.0 + each - 2.0 for each in change)
    width = [student_quantile(n - 1) * spread / math.sqrt(n) for n in (found.enough, max(3, found.enough - 1))]
    assert width[0] <= math.log(1.005) * (1 + 1e-9)
    assert found.enough == 3 or width[1] > math.log(1.005) * (1 - 1e-9)


def test_a_line_for_every_method_but_dense() -> None:
    dense, sparse = losses(1.0, 2.0, 3.0), losses(1.01, 2.02, 3.06)
    measurements = {
        Point("perplexity", "dense", "dense"): dense,
        Point("perplexity", "top-theta", "Top-θ", "books", 128): sparse,
        Point("perplexity", "last-k", "last-k", None, 128): dense,
        Point("perplexity", "value-mean", "V mean"): dense,
    }
    assert verdicts("perplexity", measurements) == [
        "Top-θ, k = 128: no loss seen; 3 windows cannot exclude 10 %; 111 would tell 0.5 %",
        "last-k, k = 128: no difference in 3 windows",
        "V mean: no difference in 3 windows",
    ]
    measurements[Point("perplexity", "top-theta", "Top-θ", "code", 128)] = sparse
    assert [line.split(":")[0] for line in verdicts("perplexity", measurements)][:1] == ["Top-θ, k = 128, books"]
    del measurements[Point("perplexity", "dense", "dense")]
    assert verdicts("perplexity", measurements) == []


@pytest.mark.parametrize("scores", [(1.0, math.nan, 3.0), (1.0, math.inf, 3.0), (math.nan,) * 3])
def test_of_losses_that_are_not_finite_nothing_is_told(scores: tuple[float, ...]) -> None:
    expected = "nothing can be told from 3 windows: a score, or its difference to dense, is not finite"
    assert verdict(losses(*scores), losses(1.0, 2.0, 3.0)).in_words("windows") == expected
    if math.isnan(sum(scores)):
        assert verdict(losses(1.0, 2.0, 3.0), losses(*scores)).in_words("windows") == expected


def test_a_loss_whose_perplexity_is_beyond_a_float_is_a_loss() -> None:
    found = verdict(losses(900.0, 901.0, 902.0), losses(1.0, 2.0, 3.0))
    assert found.loss == found.low == math.inf
    assert found.in_words("windows").startswith("loss seen: inf %")
