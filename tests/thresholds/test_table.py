from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from toptheta_npu import thresholds as thresholds_module
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdExtrapolationWarning, ThresholdTable
from toptheta_npu.thresholds.file import checksum
from toptheta_npu.thresholds.summary import summarise

LAYERS, HEADS = 3, 2
K = (16, 64, 128)
LENGTHS = (17, 40, 65, 129, 256, 512)


def formula(length: Any, k: Any, layer: int, head: int) -> Any:
    """Linear in log n and in log k, so that interpolation between knots is exact."""
    return 0.25 * head - 0.5 * layer + 0.3 * np.log(length) - 0.2 * np.log(k)


def grid(value: Callable[[Any, Any, int, int], Any], layer_k: tuple[int, ...] = (0,) * LAYERS) -> Tensor:
    lengths = np.array(LENGTHS, dtype=np.float64)
    theta = [
        [[value(lengths, max(k, layer_k[layer]), layer, head) for head in range(HEADS)] for layer in range(LAYERS)]
        for k in K
    ]
    return torch.tensor(np.array(theta), dtype=torch.float32)


def make(**changes: Any) -> ThresholdTable:
    fields: dict[str, Any] = {
        "theta": grid(formula),
        "k": torch.tensor(K),
        "lengths": torch.tensor(LENGTHS),
        "counts": torch.full((LAYERS, HEADS, len(LENGTHS)), 5),
        "std": torch.full((len(K), LAYERS, HEADS, len(LENGTHS)), 0.1),
        "placement": "pre_softmax",
        "estimator": "algorithm1",
        "alpha": 0.1,
        "layer_k": (0,) * LAYERS,
        "fingerprint": "llama-0123",
        "provenance": {"text": "the standard library", "sequences": "8"},
    }
    return ThresholdTable(**{**fields, **changes})


# --- lookup -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_knots_are_returned_exactly(placement: str) -> None:
    theta = grid(formula) if placement == "pre_softmax" else (grid(formula) - 5).exp()
    table = make(theta=theta, placement=placement)
    for index, k in enumerate(K):
        thresholds = table.at(k)
        for layer in range(LAYERS):
            for column, length in enumerate(LENGTHS):
                want = theta[index, layer, :, column] if length > k else torch.full((HEADS,), -math.inf)
                assert torch.equal(thresholds.theta[layer][length], want)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_between_knots_theta_is_linear_in_the_logarithms(placement: str) -> None:
    post = placement == "post_softmax"
    theta = (grid(formula) - 5).exp() if post else grid(formula)
    table = make(theta=theta, placement=placement)
    for k in (16, 20, 64, 100, 128):
        thresholds = table.at(k)
        assert thresholds.longest == 512
        for layer in range(LAYERS):
            assert thresholds.theta[layer].shape == (513, HEADS)
            assert thresholds.theta[layer].dtype == torch.float32
            assert (thresholds.theta[layer][: k + 1] == -math.inf).all()
            # Above the upper of the two k knots, where both carry calibrated values
            lengths = np.arange(129, 513)
            for head in range(HEADS):
                line = formula(lengths, k, layer, head)
                want = torch.tensor(np.exp(line - 5) if post else line, dtype=torch.float32)
                torch.testing.assert_close(thresholds.theta[layer][129:, head], want, rtol=1e-5, atol=1e-6)


def test_a_row_between_two_k_stays_sparse_where_the_larger_k_is_dense() -> None:
    theta = grid(formula)
    theta[1][..., torch.tensor(LENGTHS) <= 64] = -math.inf
    thresholds = make(theta=theta).at(32)
    assert (thresholds.theta[0][:33] == -math.inf).all()
    assert thresholds.theta[0][33:].isfinite().all()
    low, high = theta[0, 0, :, 1].double(), theta[1, 0, :, 2].double()
    torch.testing.assert_close(thresholds.theta[0][40].double(), (low + high) / 2, rtol=1e-6, atol=0)


def test_layers_with_a_minimum_of_their_own() -> None:
    layer_k = (100, 0, 20)
    table = make(theta=grid(formula, layer_k), layer_k=layer_k)
    assert table.layer_targets(16) == [100, 16, 20]
    thresholds = table.at(32)
    assert thresholds.layer_targets == (100, 32, 32)
    for layer, target in enumerate(thresholds.layer_targets):
        assert (thresholds.theta[layer][: target + 1] == -math.inf).all()
        assert thresholds.theta[layer][target + 1 :].isfinite().all()
        want = torch.tensor([formula(400, target, layer, head) for head in range(HEADS)]).float()
        torch.testing.assert_close(thresholds.theta[layer][400], want, rtol=1e-5, atol=1e-6)


def test_infinite_thresholds_do_not_turn_into_nan() -> None:
    theta = grid(formula)
    theta[:, 0, 0, 3] = -math.inf
    theta[:, 1, 0, 4] = math.inf
    thresholds = make(theta=theta).at(20)
    assert not any(rows.isnan().any() for rows in thresholds.theta)
    assert (thresholds.theta[0][66:256, 0] == -math.inf).all()
    assert thresholds.theta[1][130:256, 0].isfinite().all()
    assert thresholds.theta[1][256, 0] == math.inf


def test_rows_are_one_indexing_operation_with_lengths_clamped() -> None:
    thresholds = make().at(16)
    lengths = torch.tensor([[0, 5, 16], [17, 512, 100_000]])
    rows = thresholds.rows(1, lengths)
    assert rows.shape == (2, 3, HEADS)
    assert torch.equal(rows, thresholds.theta[1][lengths.clamp(max=512)])
    assert torch.equal(rows, thresholds.rows(1, lengths.int()))
    assert (rows[0] == -math.inf).all()
    assert torch.equal(thresholds.rows(1, torch.tensor(-3)), thresholds.theta[1][0])


def test_rows_compile_into_one_graph() -> None:
    thresholds = make().at(16)
    compiled = torch.compile(lambda lengths: thresholds.rows(2, lengths) + 1, backend="eager", fullgraph=True)
    for lengths in (torch.tensor([3, 600]), torch.tensor([20, 30, 40])):
        assert torch.equal(compiled(lengths), thresholds.rows(2, lengths) + 1)


def test_rows_check_their_arguments() -> None:
    thresholds = make().at(16)
    with pytest.raises(TopThetaValueError, match="layer: expected 0 to 2, got 3"):
        thresholds.rows(3, torch.tensor([1]))
    with pytest.raises(TopThetaTypeError, match="lengths: expected int32 or int64"):
        thresholds.rows(0, torch.tensor([1.0]))
    with pytest.raises(TopThetaTypeError, match=r"lengths: expected an int32 or int64 tensor, got \[1\]"):
        thresholds.rows(0, [1])  # type: ignore[arg-type]
    with pytest.raises(TopThetaValueError, match="discarded_mass: expected a table calibrated with it"):
        thresholds.discarded_mass_rows(0, torch.tensor([1]))


def test_thresholds_go_to_the_device_asked_for() -> None:
    thresholds = make(discarded_mass=torch.rand(3, LAYERS, HEADS, 6)).at(16, device="meta")
    assert thresholds.discarded_mass is not None
    assert {rows.device.type for rows in (*thresholds.theta, *thresholds.discarded_mass)} == {"meta"}


def test_discarded_mass_follows_theta() -> None:
    mass = grid(lambda n, k, layer, head: np.log(n) / np.log(k) + layer)
    table = make(discarded_mass=mass, layer_k=(0, 0, 100))
    with pytest.warns(ThresholdExtrapolationWarning):
        thresholds = table.at(64, max_length=600)
    assert thresholds.discarded_mass is not None
    for layer, target in enumerate((64, 64, 100)):
        rows = thresholds.discarded_mass_rows(layer, torch.arange(601))
        assert (rows[: target + 1] == 0).all()
        assert torch.equal(rows, thresholds.discarded_mass[layer])
    rows = thresholds.discarded_mass[0]
    assert torch.equal(rows[256], mass[1, 0, :, 4])
    assert rows[300, 0].item() == pytest.approx(math.log(300) / math.log(64), rel=1e-6)
    assert torch.equal(rows[600], mass[1, 0, :, 5])


@pytest.mark.parametrize(("k", "kind"), [(15, ValueError), (129, ValueError), (16.0, TypeError), (True, TypeError)])
def test_k_must_be_an_int_within_the_knots(k: Any, kind: type[Exception]) -> None:
    message = "k: expected 16 to 128, the calibrated range" if kind is ValueError else "k: expected an int"
    for use in (make().at, make().layer_targets):
        with pytest.raises(kind, match=message):
            use(k)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_length": 0}, {"max_length": 1.5}, {"max_length": 2**50}, {"max_length": 10**5000},
        {"device": "nonsense"}, {"device": "ipu"},
    ],
    ids=lambda arguments: next(iter(arguments)),
)  # fmt: skip
def test_at_checks_its_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(TopThetaValueError, match=f"^{next(iter(arguments))}: expected"):
        make().at(16, **arguments)


def test_at_checks_the_type_of_the_device() -> None:
    with pytest.raises(TopThetaTypeError, match=r"device: expected a torch.device or its name, got int"):
        make().at(16, device=0)  # type: ignore[arg-type]


def test_rows_of_all_lengths_have_to_fit_into_memory() -> None:
    layers, heads = 100, 100
    shape = (1, layers, heads, 1)
    table = make(
        theta=torch.zeros(shape), std=torch.zeros(shape), counts=torch.ones(shape[1:]).long(), layer_k=[0] * layers,
        k=torch.tensor([16]), lengths=torch.tensor([2**24]),
    )  # fmt: skip
    with pytest.raises(
        TopThetaValueError, match="thresholds of at most 32 GiB, got 625 GiB for rows of up to 16777216"
    ):
        table.at(16)
    assert table.at(16, max_length=20).longest == 20


# --- beyond the calibrated lengths --------------------------------------------------------------------


def test_beyond_the_knots_the_nearest_length_is_used_with_a_warning() -> None:
    with pytest.warns(ThresholdExtrapolationWarning) as caught:
        thresholds = make().at(16, max_length=2000)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    text = str(caught[0].message)
    for part in ("17 to 512", "max_length=2000", "the thresholds of length 512"):
        assert part in text
    assert thresholds.longest == 2000
    assert torch.equal(thresholds.theta[0][513:], thresholds.theta[0][512].expand(1488, HEADS))


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_beyond_the_knots_the_fitted_function_is_used_when_asked(placement: str) -> None:
    post = placement == "post_softmax"
    theta = (grid(formula) - 5).exp() if post else grid(formula)
    table = make(theta=theta, placement=placement)
    with pytest.warns(ThresholdExtrapolationWarning, match="longer rows use the fitted function"):
        thresholds = table.at(100, max_length=5000, lookup="fitted")
    for length in (513, 5000):
        line = np.array([formula(length, 100, 1, head) for head in range(HEADS)])
        want = torch.tensor(np.exp(line - 5) if post else line, dtype=torch.float32)
        torch.testing.assert_close(thresholds.theta[1][length], want, rtol=1e-4, atol=1e-5)


def test_within_the_knots_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thresholds = make().at(16, max_length=300)
    assert thresholds.longest == 300
    assert torch.equal(thresholds.rows(0, torch.tensor([400]))[0], thresholds.theta[0][300])


# --- fit ----------------------------------------------------------------------------------------------


def test_the_fit_recovers_the_function() -> None:
    n = torch.tensor([20, 30, 50, 80, 200, 400])
    shape = (1, 1, 1, 6)
    common: dict[str, Any] = {
        "k": torch.tensor([8]), "lengths": n, "counts": torch.full((1, 1, 6), 3), "std": torch.zeros(shape),
        "layer_k": (0,),
    }  # fmt: skip
    pre = make(theta=(1.5 - 20 / n + 0.25 * n.log()).view(shape), **common).fit()
    torch.testing.assert_close(pre.coefficients[0, 0, 0], torch.tensor([1.5, -20, 0.25]).double(), rtol=1e-4, atol=0)
    post = make(theta=(0.7 * n.float() ** -0.9).view(shape), placement="post_softmax", **common).fit()
    want = torch.tensor([math.log(0.7), -0.9]).double()
    torch.testing.assert_close(post.coefficients[0, 0, 0], want, rtol=1e-4, atol=0)
    predicted = post.predict(torch.tensor([1000, 10]))
    assert predicted.dtype == torch.float32
    torch.testing.assert_close(predicted.flatten(), 0.7 * torch.tensor([1000.0, 10.0]) ** -0.9, rtol=1e-4, atol=0)
    with pytest.raises(TopThetaValueError, match="lengths: expected numbers of at least 1"):
        post.predict(torch.tensor([0]))


def test_the_fit_weighs_by_counts() -> None:
    theta = grid(formula)
    theta[..., -1] += 10
    counts = torch.full((LAYERS, HEADS, len(LENGTHS)), 1_000_000)
    counts[..., -1] = 1
    weighted, even = (make(theta=theta, counts=each).fit() for each in (counts, torch.ones_like(counts)))
    want = torch.tensor(formula(128, 16, 0, 0)).float()
    error = [abs(fit.predict(torch.tensor([128]))[0, 0, 0, 0] - want).item() for fit in (weighted, even)]
    assert error[0] < 1e-3 < 0.5 < error[1]


def test_the_fit_leaves_out_filled_and_dense_entries() -> None:
    theta = grid(formula)
    theta[..., 4] = 1e6
    theta[1:][..., :2] = 1e6
    counts = torch.full((LAYERS, HEADS, len(LENGTHS)), 5)
    counts[..., 4] = 0
    fit = make(theta=theta, counts=counts).fit()
    want = torch.tensor(formula(300, 64, 1, 1)).float()
    torch.testing.assert_close(fit.predict(torch.tensor([300]))[1, 1, 1, 0], want, rtol=1e-4, atol=1e-4)


def test_the_fit_of_few_points_has_few_terms() -> None:
    theta = grid(formula)
    theta[:, 0, 0, :] = -math.inf
    theta[:, 0, 1, :5] = -math.inf
    fit = make(theta=theta).fit()
    far = fit.predict(torch.tensor([100, 10_000]))[0, 0]
    assert (far[0] == -math.inf).all()
    assert far[1].tolist() == [theta[0, 0, 1, 5].item()] * 2
    counts = torch.zeros(LAYERS, HEADS, len(LENGTHS), dtype=torch.int64)
    counts[..., 3] = 7
    lonely = make(counts=counts).fit().predict(torch.tensor([10_000]))
    torch.testing.assert_close(lonely[..., 0], grid(formula)[..., 3])


# --- construction -------------------------------------------------------------------------------------


def changed(name: str, index: Any, value: float) -> Tensor:
    tensor: Tensor = getattr(make(), name).clone()
    tensor[index] = value
    return tensor


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"theta": grid(formula).double()},
            TopThetaTypeError,
            "theta: expected torch.float32, got torch.float64",
        ),
        (
            {"theta": grid(formula).numpy()},
            TopThetaTypeError,
            "theta: expected a dense torch.float32 tensor, got array",
        ),
        ({"theta": grid(formula).to("meta")}, TopThetaTypeError, "theta: expected a dense torch.float32 tensor"),
        ({"theta": grid(formula).to_sparse()}, TopThetaTypeError, "theta: expected a dense torch.float32 tensor"),
        ({"theta": grid(formula)[0]}, TopThetaValueError, "theta: expected four dimensions"),
        ({"theta": grid(formula)[..., :5]}, TopThetaValueError, r"theta: expected shape \(3, 3, 2, 6\)"),
        (
            {"theta": changed("theta", (0, 0, 0, 0), math.nan)},
            TopThetaValueError,
            "theta: expected numbers, got NaN",
        ),
        ({"k": torch.tensor([16, 128, 64])}, TopThetaValueError, "k: expected ascending"),
        (
            {"k": torch.tensor([0, 64, 128])},
            TopThetaValueError,
            "k: expected ascending numbers of at least 1",
        ),
        ({"k": torch.tensor(K).int()}, TopThetaTypeError, "k: expected torch.int64"),
        ({"k": torch.tensor(16)}, TopThetaValueError, "k: expected one dimension"),
        ({"lengths": torch.tensor(LENGTHS).flip(0)}, TopThetaValueError, "lengths: expected ascending"),
        (
            {"lengths": torch.arange(1, 130)},
            TopThetaValueError,
            "lengths: expected at most 128 lengths, got 129",
        ),
        ({"counts": torch.ones(LAYERS, HEADS, 5).long()}, TopThetaValueError, "counts: expected shape"),
        (
            {"counts": changed("counts", (0, 0, 0), -1)},
            TopThetaValueError,
            "counts: expected numbers of at least 0",
        ),
        (
            {"counts": changed("counts", (2, 1), 0)},
            TopThetaValueError,
            "layer 2, head 1, got 0 for all lengths",
        ),
        ({"std": torch.ones(1)}, TopThetaValueError, "std: expected shape"),
        (
            {"std": changed("std", (0, 0, 0, 0), -1)},
            TopThetaValueError,
            "std: expected finite numbers of at least 0",
        ),
        (
            {"discarded_mass": torch.ones(3, LAYERS, HEADS, 5)},
            TopThetaValueError,
            "discarded_mass: expected shape",
        ),
        ({"placement": "middle"}, TopThetaValueError, "placement: expected one of pre_softmax, post_softmax"),
        ({"estimator": "median"}, TopThetaValueError, "estimator: expected one of algorithm1, pooled"),
        ({"alpha": math.nan}, TopThetaValueError, "alpha: expected a finite number"),
        ({"layer_k": (0, 0)}, TopThetaValueError, "layer_k: expected 3 numbers, one per layer, got 2"),
        ({"layer_k": (0, 0, -1)}, TopThetaValueError, "layer_k: expected an int from 0 to 16777216"),
        ({"layer_k": (0, 0, 10**5000)}, TopThetaValueError, "got a value of type int that cannot be shown"),
        ({"lengths": torch.tensor([17, 40, 65, 129, 256, 2**31])}, TopThetaValueError, "numbers up to 16777216"),
        (
            {"placement": "post_softmax", "theta": grid(formula).exp()},
            TopThetaValueError,
            "theta: expected probabilities of at most 1, got",
        ),
        ({"discarded_statistic": "mode"}, TopThetaValueError, "discarded_statistic: expected one of"),
        ({"discarded_statistic": "mean"}, TopThetaValueError, "discarded_statistic needs discarded_mass"),
        ({"layer_k": 0}, TopThetaTypeError, "layer_k: expected a list"),
        ({"fingerprint": None}, TopThetaTypeError, "fingerprint: expected a str"),
        ({"provenance": {"sequences": 8}}, TopThetaTypeError, "provenance: expected str to str"),
        ({"provenance": "text"}, TopThetaTypeError, "provenance: expected a mapping"),
    ],
)
def test_a_table_checks_what_it_is_given(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(**fields)


def test_a_table_does_not_change_after_construction() -> None:
    theta, layer_k, provenance = grid(formula), [0, 0, 0], {"text": "a"}
    table = make(theta=theta, layer_k=layer_k, provenance=provenance)
    theta += 1
    layer_k[0] = 99
    provenance["text"] = "b"
    assert torch.equal(table.theta, grid(formula))
    assert table.layer_k == (0, 0, 0)
    assert table.provenance == {"text": "a"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.theta = theta  # type: ignore[misc]


def test_a_table_can_be_copied_and_sent_to_another_process(tmp_path: Path) -> None:
    table = make()
    for index, twin in enumerate((copy.deepcopy(table), pickle.loads(pickle.dumps(table)))):
        table.save(tmp_path / "a")
        twin.save(tmp_path / f"{index}")
        assert (tmp_path / "a").read_bytes() == (tmp_path / f"{index}").read_bytes()


def test_the_unit_goes_with_the_placement() -> None:
    assert make().unit == "scaled score"
    assert make(theta=(grid(formula) - 5).exp(), placement="post_softmax").unit == "probability"
    assert "3 layers x 2 heads, lengths 17 to 512 (6 stored)" in repr(make())


# --- files --------------------------------------------------------------------------------------------

any_theta = st.one_of(st.floats(allow_nan=False, width=32), st.sampled_from([math.inf, -math.inf]))
not_negative = st.floats(0, 2.0**100, width=32)


@st.composite
def tables(draw: st.DrawFn) -> ThresholdTable:
    knots = st.lists(st.integers(1, 2**24), min_size=1, max_size=4, unique=True).map(sorted)
    k, lengths = draw(knots), draw(knots)
    layers, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = (len(k), layers, heads, len(lengths))
    counts = draw(npst.arrays(np.int64, shape[1:], elements=st.integers(1, 2**62)))

    def floats(of: st.SearchStrategy[float], shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(draw(npst.arrays(np.float32, shape, elements=of)))

    placement = draw(st.sampled_from(["pre_softmax", "post_softmax"]))
    mass = floats(not_negative, shape) if draw(st.booleans()) else None
    layer_k = draw(st.lists(st.integers(0, 10**6), min_size=layers, max_size=layers))
    scales = floats(st.floats(2.0**-100, 2.0**100, width=32), (2, layers, 1, 3)) if draw(st.booleans()) else [None] * 2
    return ThresholdTable(
        theta=floats(any_theta if placement == "pre_softmax" else any_theta.filter(lambda theta: theta <= 1), shape),
        k=torch.tensor(k),
        lengths=torch.tensor(lengths),
        counts=torch.from_numpy(counts),
        std=floats(not_negative, shape),
        placement=placement,
        estimator=draw(st.sampled_from(["algorithm1", "pooled"])),
        alpha=draw(st.floats(allow_nan=False, allow_infinity=False)),
        layer_k=layer_k,
        key_cache_scale=scales[0],
        value_cache_scale=scales[1],
        fingerprint=draw(st.text()),
        provenance=draw(st.dictionaries(st.text(), st.text(), max_size=3)),
        discarded_mass=mass,
        discarded_statistic=None if mass is None else draw(st.sampled_from([None, "geometric_mean", "mean"])),
    )


@given(tables())
def test_save_and_load_give_the_same_table_and_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, table: ThresholdTable
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    table.save(folder / "first")
    loaded = ThresholdTable.load(folder / "first", fingerprint=table.fingerprint)
    loaded.save(folder / "second")
    assert (folder / "first").read_bytes() == (folder / "second").read_bytes()
    for field in dataclasses.fields(ThresholdTable):
        before, after = getattr(table, field.name), getattr(loaded, field.name)
        assert torch.equal(before, after) if isinstance(before, Tensor) else before == after
    assert {path.name for path in folder.iterdir()} == {"first", "second"}


def test_the_bytes_do_not_depend_on_the_order_of_the_provenance(tmp_path: Path) -> None:
    make(provenance={"a": "1", "b": "2"}).save(tmp_path / "one")
    make(provenance={"b": "2", "a": "1"}).save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "table.theta"
    make().save(target)
    before = target.read_bytes()

    def fail(self: Path, other: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(TopThetaValueError, match="disk full"):
        make(alpha=0.2).save(target)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_saving_needs_a_folder(tmp_path: Path) -> None:
    for write in (
        make().save,
        lambda path: make().export_text(path, 16),
    ):
        with pytest.raises(TopThetaValueError, match="expected a file in an existing folder"):
            write(tmp_path / "none" / "table")
        with pytest.raises(TopThetaTypeError, match=r"path: expected a str or pathlib.Path, got NoneType"):
            write(None)  # type: ignore[arg-type]
    with pytest.raises(TopThetaTypeError, match=r"path: expected a str or pathlib.Path, got NoneType"):
        ThresholdTable.load(None)  # type: ignore[arg-type]


def test_another_models_table_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path / "table")
    assert ThresholdTable.load(tmp_path / "table", fingerprint="llama-0123").num_heads == HEADS
    assert ThresholdTable.load(tmp_path / "table").num_layers == LAYERS
    expected = "table: expected thresholds of the model gpt-9, got those of llama-0123, which differs in fingerprint; "
    with pytest.raises(TopThetaValueError, match=expected):
        ThresholdTable.load(tmp_path / "table", fingerprint="gpt-9")


def parts_of(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    make().save(path)
    with safetensors.safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    (text,) = metadata.values()
    return safetensors.torch.load_file(path), json.loads(text)


def write_parts(path: Path, tensors: dict[str, Tensor], header: Any) -> None:
    if isinstance(header, dict) and "checksum" in header:
        del header["checksum"]
        header["checksum"] = checksum(header, tensors)
    text = header if isinstance(header, str) else json.dumps(header)
    safetensors.torch.save_file(tensors, path, {"toptheta_thresholds": text})


def spoil(part: str, value: Any) -> Callable[[Path], None]:
    """A writer of a table file in which one tensor or header field is another (None: missing)."""

    def write(path: Path) -> None:
        tensors, header = parts_of(path)
        place = tensors if part in tensors or isinstance(value, Tensor) else header
        place[part] = value
        if value is None:
            del place[part]
        write_parts(path, tensors, header)

    return write


def truncate(size: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        make().save(path)
        path.write_bytes(path.read_bytes()[:size])

    return write


def append(path: Path) -> None:
    make().save(path)
    path.write_bytes(path.read_bytes() + b"more")


def foreign(path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path)


def pickled(path: Path) -> None:
    torch.save({"theta": torch.zeros(3)}, path)


def other_header(header: Any) -> Callable[[Path], None]:
    return lambda path: write_parts(path, parts_of(path)[0], header)


NAN = grid(formula).index_fill(3, torch.tensor([2]), math.nan)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda path: None, "expected a threshold table, got no such file"),
        (lambda path: path.mkdir(), "expected a threshold table, got a folder"),
        (os.mkfifo, "expected a threshold table, got a device or pipe"),
        (lambda path: path.write_bytes(b"garbage" * 100), "expected a safetensors file"),
        (pickled, "expected a safetensors file"),
        (truncate(-1), "expected a safetensors file"),
        (append, "expected a safetensors file"),
        (foreign, "got a safetensors file of another kind"),
        (other_header("{"), "expected a JSON header"),
        (other_header("[1]"), "expected a JSON object"),
        (other_header("[" * 100_000), "expected a JSON header, got"),
        (spoil("schema", 7), "expected schema version 6, got 7"),
        (
            spoil("schema", 5),
            "schema version 6, got 5; install the toptheta_npu that wrote it, or calibrate the model again",
        ),
        (
            spoil("checksum", None),
            "expected the header fields alpha, checksum, discarded_statistic, estimator",
        ),
        (spoil("alpha", "0.1"), "header field alpha"),
        (spoil("layer_k", [0, 0]), "layer_k: expected 3 numbers"),
        (spoil("provenance", {"sequences": 3}), "provenance: expected str to str"),
        (spoil("unit", "probability"), "'pre_softmax' in 'probability'"),
        (spoil("placement", "middle"), "'middle' in 'scaled score'"),
        (spoil("estimator", "median"), "estimator: expected one of"),
        (spoil("theta", None), "expected a valid threshold table, got .*theta"),
        (spoil("weights", torch.zeros(3)), "expected a valid threshold table, got .*weights"),
        (spoil("theta", grid(formula).half()), "theta: expected torch.float32, got torch.float16"),
        (spoil("theta", NAN), "theta: expected numbers, got NaN"),
    ],
)
def test_files_that_are_not_a_table_are_refused(tmp_path: Path, write: Callable[[Path], None], expected: str) -> None:
    path = tmp_path / "table.theta"
    write(path)
    with pytest.raises(TopThetaValueError, match=expected) as caught:
        ThresholdTable.load(path)
    assert str(path) in str(caught.value)
    assert ";" in str(caught.value), "no remedy"


# --- cache scales -------------------------------------------------------------------------------------


def scales(**changes: Any) -> dict[str, Any]:
    made = {name: torch.full((LAYERS, 1, 4), value) for name, value in (("key", 0.5), ("value", 0.25))}
    return {f"{name}_cache_scale": tensor for name, tensor in made.items()} | changes


def test_cache_scales_are_kept_and_summarised(tmp_path: Path) -> None:
    table = make(**scales())
    table.save(tmp_path / "table")
    loaded = ThresholdTable.load(tmp_path / "table")
    for name, tensor in scales().items():
        assert torch.equal(getattr(loaded, name), tensor)
    assert summarise(loaded)["header"]["has_cache_scales"]
    assert not summarise(make())["header"]["has_cache_scales"]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"key_cache_scale": None}, TopThetaValueError,
            "expected all or none of key_cache_scale, value_cache_scale, got None; give the others, too",
        ),
        ({"value_cache_scale": None}, TopThetaValueError, "value_cache_scale: expected all or none of"),
        ({"value_cache_scale": [1.0]}, TopThetaTypeError, "expected a dense torch.float32 tensor, got .1.0."),
        ({"key_cache_scale": torch.ones(3, 1, 4).half()}, TopThetaTypeError, "key_cache_scale: expected torch.float32"),
        (
            {"key_cache_scale": torch.ones(2, 1, 4)}, TopThetaValueError,
            r"key_cache_scale: expected shape \[3 layers, KV heads that divide 2 heads, head_dim\], got \(2, 1, 4\)",
        ),
        ({"key_cache_scale": torch.ones(3, 4, 4)}, TopThetaValueError, r"KV heads that divide 2.*got \(3, 4, 4\)"),
        ({"key_cache_scale": torch.ones(3, 0, 4)}, TopThetaValueError, r"KV heads that divide 2.*got \(3, 0, 4\)"),
        ({"key_cache_scale": torch.ones(3, 1, 0)}, TopThetaValueError, r"head_dim\], got \(3, 1, 0\)"),
        ({"key_cache_scale": torch.ones(3, 4)}, TopThetaValueError, r"head_dim\], got \(3, 4\)"),
        ({"value_cache_scale": torch.ones(3, 2, 4)}, TopThetaValueError, r"value_cache_scale: .* shape \(3, 1, 4\)"),
        *(
            ({name: torch.full((3, 1, 4), bad)}, TopThetaValueError, f"{name}: expected finite numbers above 0")
            for name in ("key_cache_scale", "value_cache_scale") for bad in (0.0, -1.0, math.inf, math.nan)
        ),
    ],
)  # fmt: skip
def test_cache_scales_that_cannot_be_are_refused(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make(**scales(**changes))


# --- text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_text_round_trip(tmp_path: Path, placement: str) -> None:
    theta = (grid(formula) - 5).exp() if placement == "post_softmax" else grid(formula)
    table = make(theta=theta, layer_k=(100, 0, 0), placement=placement)
    path = tmp_path / "th.txt"
    table.export_text(path, 64)
    back = ThresholdTable.from_text(path, fingerprint="llama-0123", placement=placement)
    assert (back.layer_k, back.k.tolist(), back.alpha) == ((100, 0, 0), [64], 0.1)
    assert back.lengths.tolist() == [65, 129, 256, 512]
    ours, theirs = table.at(64), back.at(64)
    for layer in range(LAYERS):
        assert torch.equal(ours.theta[layer][129:], theirs.theta[layer][129:])
    assert back.counts[1].tolist() == [[5] * 4] * HEADS
    again = tmp_path / "again.txt"
    back.export_text(again, 64)
    assert again.read_bytes() == path.read_bytes()


def test_text_lines_are_those_of_the_authors(tmp_path: Path) -> None:
    theta = torch.full((3, LAYERS, HEADS, 6), 0.1)
    make(theta=theta, layer_k=(256, 0, 0)).export_text(tmp_path / "th.txt", 64)
    lines = (tmp_path / "th.txt").read_text().splitlines()
    assert lines[:2] == ["L0_H0:512 0.1 5 256", "L0_H1:512 0.1 5 256"]
    assert lines[2:6] == [f"L1_H0:{length} 0.1 5 64" for length in (65, 129, 256, 512)]
    assert len(lines) == 2 + 4 * HEADS * 2


def from_lines(tmp_path: Path, *lines: str, **options: Any) -> ThresholdTable:
    path = tmp_path / "th.txt"
    path.write_text("\n".join(lines) + "\n")
    return ThresholdTable.from_text(path, fingerprint="model", **options)


def test_missing_lengths_of_a_head_are_filled_and_say_so(tmp_path: Path) -> None:
    table = from_lines(
        tmp_path,
        "L0_H0:8 1.0 3 4",
        "L0_H0:16 2.0 4 4",
        "L0_H0:32 3.0 5 4",
        "",
        "L0_H1:8 -1 2 4",
        "L0_H1:32 -3 2 4",
    )
    assert table.counts.tolist() == [[[3, 4, 5], [2, 0, 2]]]
    torch.testing.assert_close(table.theta[0, 0], torch.tensor([[1.0, 2, 3], [-1, -2, -3]]), rtol=1e-6, atol=0)


def test_many_lengths_are_pooled_by_their_counts(tmp_path: Path) -> None:
    lines = [f"L0_H0:{n} {1.0 if n % 2 else 4.0} {2 if n % 2 else 1} 4" for n in range(5, 2005)]
    table = from_lines(tmp_path, *lines)
    assert len(table.lengths) > 100
    assert table.lengths[[0, -1]].tolist() == [5, 2004]
    assert table.counts.sum() == sum(2 if n % 2 else 1 for n in range(5, 2005))
    # Long knots pool many lengths: two parts of 1 and one part of 4
    torch.testing.assert_close(table.theta[0, 0, 0, -20:], torch.full((20,), 2.0), rtol=0.05, atol=0)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["L0_H0:8 1.0 3 4", "", "L0_H0:9 1.0 3"], "line 3: expected L<layer>_H<head>:<length> <threshold> <samples>"),
        (["L0_H0:8 nan 3 4"], "line 1: expected L<layer>_H<head>"),
        (["L0_H0:8 \u0661\u0662 3 4"], "line 1: expected L<layer>_H<head>"),
        (["L0_H0:8 1e999 3 4"], "line 1: expected a number that float32 holds, or inf, got 'L0_H0:8 1e999 3 4'"),
        (["L0_H0:8 -4e38 3 4"], "line 1: expected a number that float32 holds, or inf"),
        (["L0_H0:99999999 1.0 3 4"], "line 1: expected a length from 1 to 16777216"),
        (["L0_H0:8 1.0 3 8"], "line 1: expected 1 <= k < length"),
        (["L0_H0:8 1.0 3 4", "L0_H0:9 1.0 3 5"], "line 2: expected one k in each layer"),
        (["L0_H0:8 1.0 3 4", "L0_H0:9 1.0 3 4", "L0_H0:8 1.5 3 4"], "line 3: expected one line for a layer, head and"),
        (["L0_H0:8 1.0 3 4", "L1_H1:8 1.0 3 4"], "expected lines for 2 layers x 2 heads, got none for L0_H1"),
        ([""], "line 1: expected L<layer>_H<head>.*, got ''"),
    ],
)
def test_unusable_text_is_refused_with_its_line(tmp_path: Path, lines: list[str], expected: str) -> None:
    with pytest.raises(TopThetaValueError, match=expected) as caught:
        from_lines(tmp_path, *lines)
    assert "th.txt" in str(caught.value)


def test_text_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopThetaValueError, match="got no such file"):
        ThresholdTable.from_text(tmp_path / "none", fingerprint="model")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopThetaValueError, match="expected a text file"):
        ThresholdTable.from_text(tmp_path / "bytes", fingerprint="model")
    with pytest.raises(TopThetaValueError, match="placement: expected one of"):
        from_lines(tmp_path, "L0_H0:8 1.0 3 4", placement="middle")


def test_public_names_exist() -> None:
    for name in thresholds_module.__all__:
        assert hasattr(thresholds_module, name)
