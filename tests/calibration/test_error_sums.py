"""Sums of errors: exact in any order, merged as one, and kept in files that nothing is trusted of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toptheta_npu import _sealed
from toptheta_npu.calibration.error_state import KIND, ErrorState
from toptheta_npu.calibration.error_sums import PATH, ErrorSettings, ErrorSums, HeadErrors, PathErrors
from toptheta_npu.calibration.fixed_point import FixedPointSums
from toptheta_npu.calibration.part import Part, WholeSet
from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdTable

SETTINGS: dict[str, Any] = {
    "thresholds": "ab", "levels": 3, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "lengths": [10, 40],
    "dense_layers": [], "sdc": "exact", "vmc": True, "row_fraction": 0.5, "seed": 0,
}  # fmt: skip
LENGTHS = torch.tensor([9, 12, 35, 41])


def table() -> ThresholdTable:
    shape = (2, 2, 2, 2)
    return ThresholdTable(
        theta=torch.zeros(shape), k=torch.tensor([4, 8]), lengths=torch.tensor([10, 40]), std=torch.zeros(shape),
        counts=torch.ones(shape[1:], dtype=torch.int64), placement="pre_softmax", estimator="pooled", alpha=0.0,
        layer_k=[0, 0], fingerprint="demo",
    )  # fmt: skip


def heads(seed: int) -> list[HeadErrors]:
    generator = torch.Generator().manual_seed(seed)
    falling = torch.tensor([1.0, 0.1, 0.01]).view(3, 1, 1)
    return [HeadErrors(layer, falling * torch.rand(3, 2, 4, generator=generator), LENGTHS) for layer in range(2)]


def budgets(seed: int, count: int) -> list[PathErrors]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, 9, (count, 1, 4), generator=generator)
    return [PathErrors(layer, torch.rand(count, 4, generator=generator), rows, LENGTHS) for layer in range(2)]


def first_pass(*seeds: int) -> ErrorSums:
    sums = ErrorSums(ErrorSettings(**SETTINGS))
    for seed in seeds:
        for seen in heads(seed):
            sums.add(seen)
    return sums


def second_pass(first: ErrorSums, *seeds: int) -> ErrorSums:
    sums = first.second(table())
    for seed in seeds:
        for seen in budgets(seed, len(sums.prices)):
            sums.add(seen)
    return sums


def same(one: ErrorSums, other: ErrorSums) -> bool:
    mine, theirs = one.state(), other.state()
    return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)


# --- sums ---------------------------------------------------------------------------------------------


def test_neither_order_nor_pieces_matter() -> None:
    values = np.random.default_rng(0).random((3, 1000)) ** 8
    buckets = np.arange(1000) % 4
    whole, pieces = FixedPointSums((3, 4)), FixedPointSums((3, 4))
    whole.add(values, buckets)
    order = np.random.default_rng(1).permutation(1000)
    for part in np.array_split(order, 7):
        other = FixedPointSums((3, 4))
        other.add(values[:, part], buckets[part])
        pieces.merge(other)
    assert np.array_equal(whole.cells, pieces.cells)
    expected = [[row[buckets == bucket].sum() for bucket in range(4)] for row in values]
    np.testing.assert_allclose(whole.values(), expected, rtol=0, atol=250 * 2.0**-37)


def test_a_sum_that_overflows_is_refused() -> None:
    sums, more = FixedPointSums((1,)), FixedPointSums((1,))
    sums.cells[0], more.cells[0] = 2**62, 2**62
    with pytest.raises(TopThetaValueError, match="row_fraction: expected fewer rows, got so many that a sum overflows"):
        sums.merge(more)
    sums.cells[0] = 2**63 - 1
    with pytest.raises(TopThetaValueError, match="so many that a sum overflows; lower it"):
        sums.add(np.array([1.0]), np.array([0]))
    with pytest.raises(TopThetaValueError, match="values: expected numbers of at least 0, got NaN or others"):
        more.add(np.array([np.nan]), np.array([0]))


def test_parts_of_both_passes_merge_to_the_whole() -> None:
    first = first_pass(1, 2, 3)
    parts = [first_pass(2), first_pass(3, 1)]
    parts[0].merge(parts[1])
    assert same(parts[0], first)
    whole = second_pass(first, 4, 5, 6)
    halves = [second_pass(first_pass(3, 2, 1), 6), second_pass(first_pass(1, 2, 3), 4, 5)]
    assert halves[0].first_pass() == whole.first_pass() != second_pass(first_pass(1), 4).first_pass()
    halves[0].merge(halves[1])
    assert same(halves[0], whole)


def test_the_second_pass_can_begin_from_one_that_has_begun() -> None:
    begun = second_pass(first_pass(1, 2), 4)
    assert same(second_pass(begun), second_pass(first_pass(1, 2)))


def test_a_length_without_rows_is_named() -> None:
    sums = ErrorSums(ErrorSettings(**{**SETTINGS, "lengths": [2, 10, 40]}))
    for seen in heads(1):
        sums.add(seen)
    with pytest.raises(TopThetaValueError, match=r"rows near every length, got 0.5, with none near 2; raise it"):
        second_pass(sums, 4).curves()


# --- files --------------------------------------------------------------------------------------------


def state(sums: ErrorSums | None = None, **changes: Any) -> ErrorState:
    fields: dict[str, Any] = {
        "sums": sums or first_pass(1), "fingerprint": "demo", "dtype": "float32", "run": {}, "provenance": {},
        "part": Part(0, 2), "whole": WholeSet("ab", 3),
    }  # fmt: skip
    return ErrorState(**{**fields, **changes})


@pytest.mark.parametrize("first", [None, WholeSet("ab", 3)])
def test_it_comes_back_from_its_file(tmp_path: Path, first: WholeSet | None) -> None:
    kept = state(second_pass(first_pass(1), 4) if first else None, first=first)
    kept.save(tmp_path / "state")
    again = ErrorState.load(tmp_path / "state")
    assert (again.first, again.whole, again.part) == (first, WholeSet("ab", 3), Part(0, 2))
    assert same(again.sums, kept.sums)
    assert again.to_bytes() == kept.to_bytes()


def resealed(header_changes: dict[str, Any], tensor_changes: dict[str, Any]) -> bytes:
    header, tensors = _sealed.unseal(
        KIND, "state", state(second_pass(first_pass(1), 4), first=WholeSet("", 3)).to_bytes()
    )
    header["settings"] |= header_changes.pop("settings", {})
    return _sealed.seal(KIND, {**header, **header_changes}, {**tensors, **tensor_changes})


@pytest.mark.parametrize(
    ("header", "tensors", "message"),
    [
        ({"settings": {"levels": 10**9}}, {}, "numbers and more, got fewer"),
        ({"settings": {"levels": 0}}, {}, "levels: expected an int"),
        ({"settings": {"lengths": [40, 10]}}, {}, "ascending row lengths"),
        ({"settings": {"unknown": 1}}, {}, "unknown"),
        ({"settings": {"sdc": "offline"}}, {}, "sdc"),
        ({"settings": {"row_fraction": 0.0}}, {}, "row_fraction"),
        ({"first": [1]}, {}, "not enough values"),
        ({}, {"heads": torch.full((3, 2, 2, 2), -1)}, "heads: expected counts of at least 0"),
        ({}, {"value_rows": torch.zeros(3)}, "value_rows: expected int64 of shape"),
        ({}, {"prices": torch.zeros(PATH + 1, dtype=torch.float64)}, f"prices: expected at most {PATH}"),
        ({}, {"more": torch.zeros(3)}, "no other arrays"),
    ],
)
def test_nothing_of_a_file_is_trusted(tmp_path: Path, header: Any, tensors: Any, message: str) -> None:
    (tmp_path / "state").write_bytes(resealed(header, tensors))
    with pytest.raises(
        TopThetaError, match=f"state: expected the state of error curves, got other content .*{message}"
    ):
        ErrorState.load(tmp_path / "state")


def test_the_header_is_plain_json() -> None:
    content = state().to_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][KIND.key])
    assert (header["schema"], header["first"], header["settings"]["lengths"]) == (1, None, [10, 40])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"lengths": []}, TopThetaValueError), ({"lengths": [3, 3]}, TopThetaValueError),
        ({"lengths": [0]}, TopThetaValueError), ({"row_fraction": 1.5}, TopThetaValueError),
        ({"seed": 0.5}, TopThetaTypeError),
    ],
)  # fmt: skip
def test_settings_are_checked(changes: dict[str, Any], error: type[TopThetaError]) -> None:
    with pytest.raises(error, match=next(iter(changes))):
        ErrorSettings(**{**SETTINGS, **changes})
