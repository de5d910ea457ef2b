from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from toptheta_npu.calibration import CalibrationSettings, Calibrator, bucket_of, kth_largest, length_knots
from toptheta_npu.calibration.blocks import ScoresAtHand
from toptheta_npu.calibration.discarded import DiscardedMass
from toptheta_npu.calibration.settings import default_layer_k
from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdExtrapolationWarning, ThresholdTable

HEADS = 2
Rows = tuple[Tensor, Tensor]


def causal_rows(seed: int, count: int = 40, spread: float = 0.0) -> Rows:
    """Scores [HEADS, count, count] of one sequence, row i seeing i+1 keys, each row shifted at random."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(HEADS, count, count, generator=generator)
    scores = scores + spread * torch.randn(HEADS, count, 1, generator=generator)
    lengths = torch.arange(1, count + 1)
    return scores.masked_fill(torch.arange(count) >= lengths[:, None], -math.inf), lengths


def full_rows(seed: int, rows: int, width: int, spread: float = 0.0) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(HEADS, rows, width, generator=generator)
    scores = scores + spread * torch.randn(HEADS, rows, 1, generator=generator)
    return scores, torch.full((rows,), width)


def calibrator_of(sequences: list[Rows], layers: int = 1, **settings: Any) -> Calibrator:
    settings = {"k": [4], "longest": 40, "layer_k": [0] * layers, "placement": "pre_softmax", **settings}
    calibrator = Calibrator(CalibrationSettings(num_layers=layers, num_heads=HEADS, **settings))
    for scores, lengths in sequences:
        for layer in range(layers):
            calibrator.observe(layer, scores + layer, lengths)
    return calibrator


def finish(calibrator: Calibrator) -> ThresholdTable:
    return calibrator.finish(fingerprint="model", provenance={"text": "noise"})


def mean_kept(rows: Rows, table: ThresholdTable, k: int, layer: int = 0) -> Tensor:
    scores, lengths = rows
    if table.placement == "post_softmax":
        scores = scores.softmax(dim=-1)
    theta = table.at(k).rows(layer, lengths).T
    return (scores > theta[:, :, None]).sum(dim=-1).float().mean(dim=1)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_algorithm_1_is_that_of_the_paper(placement: str) -> None:
    sequences = [causal_rows(seed) for seed in range(5)]
    table = finish(calibrator_of(sequences, k=[9, 4], placement=placement, alpha=0.3))
    assert table.k.tolist() == [4, 9]
    assert table.lengths.tolist() == list(range(5, 41))
    for index, k in enumerate([4, 9]):
        for column, length in enumerate(range(5, 41)):
            rows = torch.stack([scores[:, length - 1, :length] for scores, _ in sequences])
            rows = rows.softmax(dim=-1) if placement == "post_softmax" else rows
            own = rows.double().sort(dim=-1, descending=True).values[..., k].numpy() if length > k else None
            got = table.theta[index, 0, :, column].numpy()
            if own is None:
                assert (got == -np.inf).all()
                continue
            np.testing.assert_allclose(got, own.mean(axis=0) + 0.3 * own.std(axis=0), rtol=2e-6, atol=1e-7)
            np.testing.assert_allclose(table.std[index, 0, :, column], own.std(axis=0), rtol=1e-4, atol=1e-7)
    assert (table.counts == 5).all()
    assert table.alpha == 0.3


def test_a_single_row_is_its_own_threshold() -> None:
    scores, lengths = full_rows(0, rows=1, width=40)
    table = finish(calibrator_of([(scores, lengths)]))
    assert table.theta.flatten().tolist() == scores[:, 0].topk(5).values[:, 4].tolist()
    assert mean_kept((scores, lengths), table, 4).tolist() == [4, 4]


def test_the_pooled_estimator_keeps_k_on_average_and_algorithm_1_does_not() -> None:
    rows = full_rows(0, rows=256, width=1024, spread=1.0)
    common: dict[str, Any] = {"k": [8, 64, 200], "longest": 1024, "alpha": 0.0}
    pooled = finish(calibrator_of([rows], estimator="pooled", **common))
    averaged = finish(calibrator_of([rows], estimator="algorithm1", **common))
    for k in (64, 200):
        assert (mean_kept(rows, pooled, k) / k - 1).abs().max() < 0.01
    # Rows shifted upwards gain more elements than those shifted downwards lose.
    assert (mean_kept(rows, averaged, 64) / 64 > 1.05).all()
    assert (mean_kept(rows, averaged, 8) / 8 > 1.5).all()
    assert (mean_kept(rows, pooled, 8) / 8 - 1).abs().max() < 0.05


def test_the_pooled_estimator_keeps_k_on_average_after_the_softmax() -> None:
    scores, lengths = full_rows(0, rows=256, width=1024)
    temperature = torch.rand(HEADS, 256, 1, generator=torch.Generator().manual_seed(1)) + 0.5
    rows = scores * 3 * temperature, lengths
    settings: dict[str, Any] = {"k": [64, 200], "longest": 1024, "placement": "post_softmax"}
    table = finish(calibrator_of([rows], estimator="pooled", **settings))
    for k in (64, 200):
        assert (mean_kept(rows, table, k) / k - 1).abs().max() < 0.01


@pytest.mark.parametrize("estimator", ["algorithm1", "pooled"])
def test_dense_rows_contribute_nothing(estimator: str) -> None:
    sequences = [causal_rows(seed) for seed in range(3)]
    poisoned = [(scores.clone(), lengths) for scores, lengths in sequences]
    for scores, _ in poisoned:
        scores[:, :12] += 1e4
    settings: dict[str, Any] = {"k": [4, 12], "layer_k": [12], "estimator": estimator}
    clean, other = (finish(calibrator_of(each, **settings)) for each in (sequences, poisoned))
    assert torch.equal(clean.theta, other.theta)
    # With a layer of its own, k=4 does use the rows 5 to 12
    settings["layer_k"] = [0]
    clean, other = (finish(calibrator_of(each, **settings)) for each in (sequences, poisoned))
    assert torch.equal(clean.theta[1], other.theta[1])
    assert not torch.equal(clean.theta[0], other.theta[0])


@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(0, 700), min_size=2, max_size=4),
    st.integers(1, 8000),
)
def test_no_bucket_holds_dense_and_sparse_rows_of_the_same_k(k: list[int], layer_k: list[int], more: int) -> None:
    settings = CalibrationSettings(
        num_layers=len(layer_k), num_heads=1, k=k, longest=max(*k, *layer_k) + more, alpha=0.0,
        placement="pre_softmax", estimator="pooled", layer_k=layer_k, row_fraction=1.0, seed=0,
    )  # fmt: skip
    knots = settings.knots()
    assert knots == sorted(set(knots))
    assert len(knots) <= 128
    assert knots[-1] == settings.longest
    for target in settings.all_targets():
        below, above = bucket_of(torch.tensor([target, target + 1]), knots).tolist()
        assert knots[above] == target + 1
        assert below < above or target < knots[0]


def test_layers_have_their_own_minimum() -> None:
    assert default_layer_k(3) == [512, 512, 0]
    sequences = [causal_rows(seed) for seed in range(3)]
    table = finish(calibrator_of(sequences, layers=3, k=[4, 8], layer_k=[16, 0, 6]))
    assert table.layer_targets(4) == [16, 4, 6]
    assert torch.equal(table.theta[0, 0], table.theta[1, 0])
    assert table.theta[0, 0, 0, table.lengths <= 16].unique().tolist() == [-math.inf]
    assert table.theta[0, 0, 0, table.lengths > 16].isfinite().all()
    for layer, target in enumerate([16, 4, 6]):
        thresholds = table.at(4).theta[layer][:, 0]
        assert thresholds.isfinite().nonzero()[0].item() == target + 1


def test_a_layer_whose_rows_are_all_short_is_dense_and_the_others_are_not() -> None:
    calibrator = calibrator_of([causal_rows(0)], layers=2, k=[4], layer_k=[64, 0])
    table = finish(calibrator)
    assert (table.counts[0] == 0).all()
    assert (table.theta[0, 0] == -math.inf).all()
    assert table.theta[0, 1].isfinite().all()
    with pytest.warns(ThresholdExtrapolationWarning, match=r"layers \[0\] have no thresholds and stay dense"):
        thresholds = table.at(4, max_length=100, lookup="fitted")
    assert (thresholds.theta[0] == -math.inf).all()
    assert thresholds.theta[1][5:].isfinite().all()


def test_lengths_without_rows_are_dropped_or_filled() -> None:
    calibrator = calibrator_of([], layers=2)
    scores, lengths = causal_rows(0)
    calibrator.observe(0, scores[:, 9:30], lengths[9:30])
    only = torch.tensor([9, 29])
    calibrator.observe(1, scores[:, only], lengths[only])
    table = finish(calibrator)
    assert table.lengths.tolist() == list(range(10, 31))
    assert (table.counts[0] == 1).all()
    assert table.counts[1, 0].tolist() == [1, *[0] * 19, 1]
    low, high = table.theta[0, 1, :, 0].double(), table.theta[0, 1, :, -1].double()
    weight = math.log(17 / 10) / math.log(30 / 10)
    torch.testing.assert_close(table.theta[0, 1, :, 7].double(), low + weight * (high - low), rtol=1e-6, atol=0)


def test_one_choice_of_rows_per_sequence_whoever_makes_it() -> None:
    def choose(seed: int, index: int, fraction: float = 0.25) -> list[int]:
        calibrator = calibrator_of([], row_fraction=fraction, seed=seed)
        rows: list[int] = calibrator.settings.rows(400, index).tolist()
        return rows

    assert choose(0, 7) == choose(0, 7)
    assert len(choose(0, 7)) == 100
    assert choose(0, 7) != choose(0, 8)
    assert choose(0, 7) != choose(1, 7)
    assert choose(0, 7, fraction=1.0) == list(range(400))


def test_memory_does_not_grow_with_the_sequences() -> None:
    for estimator in ("algorithm1", "pooled"):
        calibrator = calibrator_of([causal_rows(0)], estimator=estimator)
        before = held_bytes(calibrator)
        for seed in range(1, 5):
            calibrator.observe(0, *causal_rows(seed))
        assert held_bytes(calibrator) == before > 1000


def test_the_sketches_of_a_large_model_take_128_mib_at_most() -> None:
    settings = CalibrationSettings(
        num_layers=32, num_heads=32, k=[32, 64, 128, 256, 512], longest=2048, layer_k=[0] * 32, estimator="pooled"
    )
    calibrator = Calibrator(settings)
    assert 2**20 < held_bytes(calibrator) <= 2**27


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("estimator", ["algorithm1", "pooled"])
def test_looking_and_adding_is_observing(estimator: str, placement: str) -> None:
    settings: dict[str, Any] = {"k": [4, 9], "layers": 2, "estimator": estimator, "placement": placement}
    sequences = [causal_rows(seed) for seed in range(3)]
    calibrator = calibrator_of([], **settings)
    found = [
        calibrator.look(layer, ScoresAtHand(scores + layer, lengths))
        for scores, lengths in sequences
        for layer in range(2)
    ]
    assert (calibrator._counts == 0).all()
    for seen in found:
        calibrator.add(seen)
    known = calibrator_of([], **settings)
    for scores, lengths in sequences:
        for layer in range(2):
            ranked = kth_largest(scores + layer, [4, 9])
            known.add(known.look(layer, ScoresAtHand(scores + layer, lengths, ranked)))
    expected = finish(calibrator_of(sequences, **settings))
    for table in (finish(calibrator), finish(known)):
        assert torch.equal(table.theta, expected.theta)
        assert torch.equal(table.counts, expected.counts)


def held_bytes(thing: Any) -> int:
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if isinstance(thing, (list, tuple)):
        return sum(held_bytes(each) for each in thing)
    return held_bytes(list(vars(thing).values())) if hasattr(thing, "__dict__") else 0


def test_provenance_says_how_the_rows_were_chosen() -> None:
    table = finish(calibrator_of([causal_rows(0)], row_fraction=0.5, seed=3))
    assert table.fingerprint == "model"
    assert table.provenance["text"] == "noise"
    assert table.provenance["row_fraction"] == "0.5"
    assert table.provenance["seed"] == "3"
    assert "python" in table.provenance


def brute_force_mass(rows: Rows, table: ThresholdTable, k: int) -> Tensor:
    """[HEADS, rows]: exp-sum of what is not kept, relative to the row max."""
    scores, lengths = rows[0].double(), rows[1]
    theta = table.at(k).theta[0][lengths].T[:, :, None]
    kept = scores > theta
    largest = scores == scores.amax(dim=-1, keepdim=True)
    kept = kept | (largest & ~kept.any(dim=-1, keepdim=True))
    mass = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return mass.masked_fill(kept, 0.0).sum(dim=-1)


def discarded_of(table: ThresholdTable, sequences: list[Rows]) -> DiscardedMass:
    second_pass = DiscardedMass(table)
    for scores, lengths in sequences:
        second_pass.add(second_pass.look(0, ScoresAtHand(scores, lengths)))
    return second_pass


@pytest.mark.parametrize("statistic", ["mean", "geometric_mean"])
def test_the_second_pass_averages_the_discarded_mass(statistic: str) -> None:
    sequences = [causal_rows(seed, spread=2.0) for seed in range(4)]
    table = finish(calibrator_of(sequences, k=[4, 9]))
    full = discarded_of(table, sequences).extended(statistic)  # type: ignore[arg-type]
    assert full.discarded_statistic == statistic
    mass = full.discarded_mass
    assert mass is not None
    for index, k in enumerate([4, 9]):
        masses = torch.stack([brute_force_mass(rows, table, k) for rows in sequences])
        if statistic == "geometric_mean":
            masses = masses.clamp(min=2.0**-24).log()
        want = masses.mean(dim=0)[:, 4:]
        want = want.exp() if statistic == "geometric_mean" else want
        want = want.masked_fill(table.lengths <= k, 0.0)
        torch.testing.assert_close(mass[index, 0].double(), want, rtol=1e-5, atol=1e-6)
    emptied = [(scores.amax(dim=(0, 2)) <= table.at(4).theta[0][lengths].amin(dim=1)) for scores, lengths in sequences]
    assert torch.stack(emptied)[:, 4:].any(), "some row must keep nothing but its largest"


def test_the_geometric_mean_is_not_that_of_a_few_rows() -> None:
    """One flat row in ten discards a thousand times what the others do."""
    scores, lengths = full_rows(0, rows=100, width=40)
    scores = scores + 20 * torch.nn.functional.one_hot(torch.arange(100) % 40, 40)
    scores[:, ::10] = 0.01 * scores[:, ::10]
    table = finish(calibrator_of([(scores, lengths)]))
    second_pass = discarded_of(table, [(scores, lengths)])
    geometric, mean = (second_pass.extended(each).discarded_mass for each in ("geometric_mean", "mean"))
    assert geometric is not None
    assert mean is not None
    rows = brute_force_mass((scores, lengths), table, 4)
    assert (geometric[0, 0, :, -1] < 30 * rows.median(dim=-1).values).all()
    assert (mean[0, 0, :, -1] > 1000 * rows.median(dim=-1).values).all()


def test_a_second_pass_over_short_rows_only_says_what_is_missing() -> None:
    scores, lengths = causal_rows(0)
    second_pass = discarded_of(finish(calibrator_of([(scores, lengths)])), [(scores[:, :4], lengths[:4])])
    with pytest.raises(TopThetaValueError, match="rows longer than 4 in layer 0"):
        second_pass.extended("mean")


def test_finishing_without_the_rows_it_takes_says_what_to_feed() -> None:
    calibrator = calibrator_of([], layers=3)
    calibrator.observe(1, *causal_rows(0))
    with pytest.raises(TopThetaValueError, match=r"observe: expected rows of every layer, got none of layers \[0, 2\]"):
        finish(calibrator)
    short = calibrator_of([causal_rows(0, count=9)], k=[4, 9])
    with pytest.raises(TopThetaValueError, match=r"longer than k=9.*feed longer sequences"):
        finish(short)


def bad_rows(**changes: Any) -> dict[str, Any]:
    scores, lengths = causal_rows(0)
    return {"layer": 0, "scores": scores, "lengths": lengths, **changes}


def with_value(value: float, row: int, column: int) -> Tensor:
    scores = causal_rows(0)[0]
    scores[:, row, column] = value
    return scores


@pytest.mark.parametrize("estimator", ["algorithm1", "pooled"])
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (bad_rows(layer=1), "layer: expected 0 to 0, got 1"),
        (bad_rows(layer=-1), "layer: expected 0 to 0, got -1"),
        (bad_rows(scores=torch.zeros(HEADS, 40, 40, dtype=torch.bfloat16)), "scores: expected float32"),
        (bad_rows(scores=torch.zeros(HEADS + 1, 40, 40)), "scores: expected shape"),
        (bad_rows(scores=torch.zeros(HEADS, 39, 40)), "scores: expected shape"),
        (bad_rows(lengths=torch.ones(40)), "lengths: expected int64, got torch.float32"),
        (bad_rows(lengths=torch.full((40,), 41)), "lengths: expected at most 40, got 41"),
        (bad_rows(scores=with_value(torch.finfo(torch.float32).min, 8, 30)), "-inf in exactly the invisible"),
        (bad_rows(scores=with_value(math.nan, 30, 3)), "expected"),
        (bad_rows(scores=with_value(math.inf, 30, 3)), "expected"),
    ],
)
def test_bad_rows_are_refused(rows: dict[str, Any], message: str, placement: str, estimator: str) -> None:
    calibrator = calibrator_of([], placement=placement, estimator=estimator)
    with pytest.raises(TopThetaError, match=message):
        calibrator.observe(**rows)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"k": []}, TopThetaValueError, "k: expected one or more"),
        ({"k": [4, 4]}, TopThetaValueError, "k: expected one or more different"),
        ({"k": [0]}, TopThetaValueError, "k: expected an int from 1 to"),
        ({"k": [2**30]}, TopThetaValueError, "k: expected an int from 1 to 16777216"),
        ({"k": [4.0]}, TopThetaTypeError, "k: expected an int"),
        ({"k": 4}, TopThetaTypeError, "k: expected a list"),
        ({"k": list(range(1, 34))}, TopThetaValueError, "k: expected at most 32"),
        ({"k": [40]}, TopThetaValueError, "longest: expected more than 40"),
        ({"layer_k": [40]}, TopThetaValueError, "longest: expected more than 40"),
        ({"layer_k": [0, 0]}, TopThetaValueError, "layer_k: expected 1 numbers"),
        ({"layer_k": [-1]}, TopThetaValueError, "layer_k: expected an int from 0 to"),
        ({"placement": "pre"}, TopThetaValueError, "placement: expected one of pre_softmax, post_softmax"),
        ({"estimator": "mean"}, TopThetaValueError, "estimator: expected one of algorithm1, pooled"),
        ({"alpha": math.nan}, TopThetaValueError, "alpha: expected a finite"),
        ({"alpha": "0.1"}, TopThetaTypeError, "alpha: expected a number"),
        ({"alpha": 10**400}, TopThetaValueError, "alpha: expected a finite"),
        ({"longest": 2**25}, TopThetaValueError, "longest: expected an int from 1 to 16777216"),
        ({"longest": "40"}, TopThetaTypeError, "longest: expected an int"),
        ({"seed": "0"}, TopThetaTypeError, "seed: expected an int"),
        ({"row_fraction": "1"}, TopThetaTypeError, "row_fraction: expected a number"),
        ({"row_fraction": 0.0}, TopThetaValueError, "row_fraction: expected above 0"),
        ({"longest": 0}, TopThetaValueError, "longest: expected an int"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        calibrator_of([], **settings)


@given(st.integers(1, 3000), st.integers(0, 100_000), st.integers(2, 128))
def test_length_knots_run_from_end_to_end(shortest: int, more: int, most: int) -> None:
    knots = length_knots(shortest + more, shortest, most)
    assert knots[0] == shortest
    assert knots[-1] == shortest + more or more == 0
    assert knots == sorted(set(knots))
    assert min(most, more + 1) * 0.75 <= len(knots) <= most
    # Geometric: gaps only grow, up to the rounding to integers
    gaps = np.diff(knots)
    assert (np.diff(gaps) >= -1).all()


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=20, unique=True), st.integers(1, 6000))
def test_a_length_goes_to_the_knot_nearest_in_log(knots: list[int], length: int) -> None:
    knots = sorted(knots)
    chosen = knots[int(bucket_of(torch.tensor([length]), knots)[0])]
    nearest = min(abs(math.log(length / knot)) for knot in knots)
    assert abs(math.log(length / chosen)) <= nearest + 1e-12
