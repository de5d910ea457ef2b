"""Differences to dense and their errors, against figures worked out by other means."""

import math
import random
import statistics

import pytest

from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.reads import Reads
from toptheta_npu.evaluation.results import Header, Point, Results
from toptheta_npu.evaluation.summary import change, key_value_share, score, tables_of

READS = Reads(kept_mean=60.0, value_rows_mean=150.0, value_rows_p95=300.0, value_rows_max=900.0, keys_mean=2000.0,
              key_rows_mean=2000.0, kept_over_target=0.94)  # fmt: skip


def losses(*scores: float) -> Measurement:
    return Measurement("nats per token", False, scores, READS, READS)


def answers(scores: list[int]) -> Measurement:
    return Measurement("accuracy", True, tuple(map(float, scores)), READS, READS)


def test_losses_change_by_perplexity_window_by_window() -> None:
    dense, sparse = losses(1.0, 2.0, 3.0), losses(1.01, 2.02, 3.06)
    found = change(sparse, dense)
    assert found.value == pytest.approx(100 * (math.exp(0.03) - 1))
    assert found.standard_error == pytest.approx(
        100 * math.exp(0.03) * statistics.stdev([0.01, 0.02, 0.06]) / math.sqrt(3)
    )
    assert found.unit == "%"
    assert change(losses(1.0), losses(2.0)).standard_error is None
    assert change(losses(1.0), losses(2.0))[2:4] == (-100.0, math.inf)


def test_the_interval_of_losses_by_hand() -> None:
    """Differences of 0.01, 0.02, 0.03: mean 0.02, deviation 0.01, and 4.30265 * 0.01 / sqrt(3) = 0.0248414."""
    found = change(losses(2.01, 3.02, 4.03), losses(2.0, 3.0, 4.0))
    assert (found.low, found.high) == pytest.approx((-0.48297, 4.58620), abs=1e-4)


def test_the_interval_of_few_windows_holds_the_true_loss_19_times_in_20() -> None:
    """With the quantile of the normal law it would hold it 17.6 times in 20."""
    generator = random.Random(3)
    held = 0
    for _ in range(1000):
        differences = [generator.gauss(0.01, 0.02) for _ in range(5)]
        found = change(losses(*(2.0 + each for each in differences)), losses(*([2.0] * 5)))
        held += found.low <= 100 * math.expm1(0.01) <= found.high
    assert 0.93 <= held / 1000 <= 0.97


def test_a_loss_common_to_all_windows_has_no_error() -> None:
    assert change(losses(1.5, 2.5, 9.5), losses(1.0, 2.0, 9.0)).standard_error == pytest.approx(0, abs=1e-12)


def test_answers_differ_in_points_and_no_difference_has_an_error_too() -> None:
    same = answers([1, 0] * 200)
    found = change(same, same)
    assert (found.value, found.unit) == (0.0, "points")
    assert found.standard_error == pytest.approx(100 / 402)
    assert (found.low, found.high) == pytest.approx((-1.95996 * 100 / 402, 1.95996 * 100 / 402), rel=1e-5)


@pytest.mark.parametrize(("gain", "loss"), [(0.02, 0.02), (0.0, 0.01), (0.05, 0.2)])
def test_the_interval_of_answers_holds_the_true_difference_19_times_in_20(gain: float, loss: float) -> None:
    generator = random.Random(5)
    held = 0
    for _ in range(400):
        draws = [generator.random() for _ in range(300)]
        dense = answers([0 if draw < gain else 1 for draw in draws])
        sparse = answers([1 if draw < gain else 0 if draw < gain + loss else 1 for draw in draws])
        found = change(sparse, dense)
        held += found.low <= 100 * (gain - loss) <= found.high
    assert held / 400 >= 0.92


def test_other_samples_are_refused() -> None:
    with pytest.raises(TopThetaValueError, match="scores: expected 2, as dense has them, got 1"):
        change(losses(1.0), losses(1.0, 2.0))


def test_scores_for_people() -> None:
    assert score(losses(0.0, 0.0)) == "1.000"
    assert score(answers([1, 1, 0])) == "66.7 %"


def test_a_table_per_task_with_the_reads_of_every_method() -> None:
    sparse = Measurement("nats per token", False, (1.01, 2.02), READS, READS)
    dense_point = Point("perplexity", "dense", "dense")
    last = Point("needle", "last-k", "last-k", None, 64)
    measurements = {
        dense_point: losses(1.0, 2.0),
        Point("perplexity", "top-theta", "Top-θ pre + SDC + VMC", "pre", 64): sparse,
        Point("needle", "dense", "dense"): answers([1, 1]),
        last: answers([0, 1]),
    }
    perplexity, needle = tables_of(Results(Header("tiny", "f"), measurements))
    assert [perplexity.title, needle.title] == ["perplexity", "needle"]
    assert list(perplexity.rows[1])[:4] == ["Top-θ pre + SDC + VMC", "pre", "64", "4.549"]
    assert perplexity.rows[1][4] == "+1.51 ± 0.51 %"
    assert list(perplexity.rows[1])[5:] == ["60", "150 / 300 / 900", "54 %", "0.94"]
    assert needle.rows[1][3:5] == ["50.0 %", "-50.00 ± 33.07 points"]


def test_bytes_of_keys_and_values_are_a_share_of_dense() -> None:
    assert key_value_share(losses(1.0)) == pytest.approx((2000 + 150) / 4000)
    unknown = Reads(60.0, 150.0, 300.0, 900.0, 2000.0)
    assert key_value_share(Measurement("accuracy", True, (1.0,), unknown, unknown)) is None


@pytest.mark.parametrize(
    ("scores", "shown", "changed"),
    [
        ((1.0, math.nan, 3.0), "nan", "+nan ± nan %"),
        ((1.0, math.inf, 3.0), "inf", "+inf ± nan %"),
        ((700.0, 700.0, 700.0), "1.01e+304", "+1.4e+305 ± 7.9e+304 %"),
        ((800.0, 900.0, 1000.0), "inf", "+inf ± inf %"),
    ],
)
def test_losses_that_are_not_finite_or_whose_perplexity_is_not_are_shown_so(
    scores: tuple[float, ...], shown: str, changed: str
) -> None:
    dense, sparse = losses(1.0, 2.0, 3.0), losses(*scores)
    assert score(sparse) == shown
    found = change(sparse, dense)
    assert str(found) == changed
    points = {Point("perplexity", "dense", "dense"): dense, Point("perplexity", "top-k", "Top-k", k=8): sparse}
    (table,) = tables_of(Results(Header("tiny", "llama:0"), points))
    assert table.rows[1][3] == shown
