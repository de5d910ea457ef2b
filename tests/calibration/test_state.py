"""The state of a calibration as a file: it comes back as it was, or is refused by a typed error that names the file."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.calibration.parts import (
    ESTIMATORS,
    assert_merged,
    content_of,
    finish,
    make,
    observe,
    observed,
    shards,
)
from toptheta_npu import _sealed
from toptheta_npu.calibration import state as state_module
from toptheta_npu.calibration.arrays import STATE_OF
from toptheta_npu.calibration.merging import merge_shards
from toptheta_npu.calibration.shard import Shard, WholeSet
from toptheta_npu.calibration.state import KIND, CalibrationState
from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import Estimator, ThresholdTable


def test_every_estimator_is_tried():
    assert set(ESTIMATORS) == set(get_args(Estimator))


# --- there and back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_calibrator_goes_on_from_its_file_as_if_it_had_never_stopped(tmp_path, estimator, placement):
    whole = observed(range(6), estimator, placement=placement, row_fraction=0.5, seed=-3)
    first = make(observed(range(4), estimator, placement=placement, row_fraction=0.5, seed=-3))
    first.save(tmp_path / "state")
    again = CalibrationState.load(tmp_path / "state")
    assert again.calibrator.settings == whole.settings
    observe(again.calibrator, range(4, 6))
    expected = content_of(finish(whole), tmp_path / "whole")
    assert content_of(finish(again.calibrator), tmp_path / "again") == expected


def test_all_that_is_said_of_a_part_comes_back(tmp_path):
    for kept in (make(), make(seen=[], shard=Shard())):
        kept.save(tmp_path / "state")
        again = CalibrationState.load(tmp_path / "state")
        for field in dataclasses.fields(CalibrationState):
            if field.name != "calibrator":
                assert getattr(again, field.name) == getattr(kept, field.name)
        assert again.to_bytes() == kept.to_bytes() == (tmp_path / "state").read_bytes()


def test_every_array_of_a_statistic_is_in_its_state():
    for kind, names in STATE_OF.items():
        arguments = (1, 2) if kind.__name__ == "SurvivalSketch" else ((1, 2),)
        made = vars(kind(*arguments))
        assert {name for name, value in made.items() if isinstance(value, np.ndarray)} == set(names)


# --- files that are not it ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "state"


@pytest.fixture(scope="module")
def content() -> bytes:
    return make(observed(range(2), "algorithm1", k=[5])).to_bytes()


def outcome_of(path: Path, content: bytes) -> CalibrationState | None:
    """What ``content`` loads as; None where it is refused by a typed error that names the file."""
    path.write_bytes(content)
    try:
        return CalibrationState.load(path)
    except TopThetaError as error:
        message = str(error)
    assert str(path) in message
    return None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: b"", "expected a safetensors file, got something else or a damaged file"),
        (lambda content: content[:-1], "expected a safetensors file, .*; get a fresh copy, or calibrate from"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "checksum of its content, got another content"),
        (lambda content: content.replace(b'\\"schema\\": 3', b'\\"schema\\": 4'), "schema version 3, got 4; install"),
        (lambda content: content.replace(KIND.key.encode(), KIND.key.encode()[::-1]), "another kind; correct the path"),
    ],
)
def test_damaged_and_foreign_files(path, content, spoil, message):
    path.write_bytes(spoil(content))
    with pytest.raises(TopThetaValueError, match=rf"state: .*{message}"):
        CalibrationState.load(path)


def test_a_table_is_no_state_and_a_state_no_table(tmp_path):
    finish(observed(range(2))).save(tmp_path / "table")
    with pytest.raises(
        TopThetaValueError, match="expected the state of a calibration, got a threshold table; it is merged"
    ):
        CalibrationState.load(tmp_path / "table")
    make().save(tmp_path / "state")
    with pytest.raises(
        TopThetaValueError, match="expected a threshold table, got the state of a calibration, such as a shard; make a"
    ):
        ThresholdTable.load(tmp_path / "state")


def test_missing_and_too_large_files(tmp_path, monkeypatch):
    with pytest.raises(TopThetaValueError, match="nothing: expected the state of a calibration, got no such file"):
        CalibrationState.load(tmp_path / "nothing")
    make().save(tmp_path / "state")
    monkeypatch.setattr(state_module, "MAX_STATE_BYTES", 100)
    with pytest.raises(TopThetaValueError, match="the state of a calibration of at most 100 bytes, got"):
        CalibrationState.load(tmp_path / "state")


def test_no_flipped_bit_loads_as_another_state(path, content):
    # a prime step, so that over the file every bit of a byte is flipped
    for bit in range(0, 8 * len(content), 83):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        loaded = outcome_of(path, bytes(flipped))
        assert loaded is None or loaded.to_bytes() == content, f"bit {bit % 8} of byte {bit // 8}"


def resealed(content: bytes, **changes: Any) -> bytes:
    """``content`` with other header fields or tensors, and a checksum that fits."""
    header, tensors = _sealed.unseal(KIND, "state", content)
    for name, value in changes.items():
        place: dict[str, Any] = tensors if isinstance(value, torch.Tensor) or name in tensors else header
        if value is None and name in tensors:
            del place[name]
        else:
            place[name] = value
    del header["schema"]
    return _sealed.seal(KIND, header, tensors)


bounded_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted(set(KIND.fields[3]) - {"schema", "checksum"})
SETTINGS = [field.name for field in dataclasses.fields(observed(range(0)).settings)]


@settings(max_examples=150)
@given(st.sampled_from(FIELDS), bounded_json)
def test_other_values_in_the_header_of_a_well_made_file(path, content, field, value):
    loaded = outcome_of(path, resealed(content, **{field: value}))
    if loaded is not None:
        assert CalibrationState.from_bytes("again", loaded.to_bytes()).to_bytes() == loaded.to_bytes()


@settings(max_examples=150)
@given(st.sampled_from([*SETTINGS, "more"]), bounded_json)
def test_other_settings_in_a_well_made_file(path, content, field, value):
    header, _ = _sealed.unseal(KIND, "state", content)
    outcome_of(path, resealed(content, settings={**header["settings"], field: value}))


def test_settings_of_a_giant_take_no_memory(path, content):
    header, _ = _sealed.unseal(KIND, "state", content)
    giant = {**header["settings"], "num_heads": 10**9}
    path.write_bytes(resealed(content, settings=giant))
    with pytest.raises(TopThetaValueError, match="expected arrays of"):
        CalibrationState.load(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("moments.0.0.mean", lambda old: None, "expected float64 of shape .*, got nothing"),
        ("moments.0.0.mean", lambda old: old[:, :-1].clone(), "expected float64 of shape"),
        ("moments.0.0.mean", lambda old: old.float(), "expected float64 of shape"),
        ("moments.0.0.mean", lambda old: old * math.nan, "finite numbers, got nan"),
        ("moments.0.0.m2", lambda old: old + math.inf, "finite numbers, got inf"),
        ("moments.0.0.count", lambda old: old - 100, "counts of at least 0"),
        ("counts", lambda old: None, "got nothing"),
        ("observed", lambda old: old[:1].clone(), "expected int64 of shape"),
        ("seen.digests", lambda old: old[:1].clone(), "expected uint8 of shape"),
        ("seen.tokens", lambda old: old - 100, "counts of at least 0"),
        ("more", lambda old: torch.zeros(2), "no other arrays, got .'more'."),
    ],
)
def test_other_arrays_in_a_well_made_file(path, content, name, change, message):
    _, tensors = _sealed.unseal(KIND, "state", content)
    path.write_bytes(resealed(content, **{name: change(tensors.get(name))}))
    with pytest.raises(
        TopThetaValueError, match=f"state of a calibration, got other content .*{message}.*; calibrate from"
    ):
        CalibrationState.load(path)


# --- shards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_merged_shards_are_the_whole(tmp_path, count, estimator):
    expected = finish(observed(range(6), estimator))
    paths = shards(tmp_path, count, estimator)
    merged = merge_shards(paths)
    assert_merged(merged, expected)
    assert merged.provenance["sequences"] == str(count)
    # the order of the files does not matter
    assert content_of(merge_shards(paths[::-1]), tmp_path / "back") == content_of(merged, tmp_path / "there")


def test_a_text_in_which_shards_differ_stands_side_by_side(tmp_path):
    paths = shards(tmp_path, 3)
    for path, host in zip(paths, ("a", "b", "a"), strict=True):
        dataclasses.replace(CalibrationState.load(path), provenance={"host": host, "text": "noise"}).save(path)
    provenance = merge_shards(paths).provenance
    assert (provenance["host"], provenance["text"]) == ("a; b", "noise")


def spoilt(paths: list[Path], index: int, **changes: Any) -> list[Path]:
    """``paths``, after one of their files was written anew with ``changes``."""
    dataclasses.replace(CalibrationState.load(paths[index]), **changes).save(paths[index])
    return paths


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p[:1] + p[2:], "shards: expected every shard from 0 to 2, got all but 1; give every shard"),
        (lambda p: p[:1], "got all but 1, 2; give every shard"),
        (lambda p: [*p, p[1]], r"shard-1: expected another shard of the 3, got shard 1 again, which .*shard-1 is"),
        (
            lambda p: spoilt(p, 1, seen=[]),
            "shard-1: expected a finished shard, got one that stopped after 0",
        ),
        (
            lambda p: spoilt(p, 1, shard=Shard(1, 4), whole=WholeSet("cd" * 32, 4)),
            r"shard-1: .* as .*shard-0, got one with count=4 \(there 3\)",
        ),
        (lambda p: spoilt(p, 2, whole=WholeSet("ef", 3)), "shard-2: .*, got one with other sequences"),
        (lambda p: spoilt(p, 1, dtype="bfloat16"), r"shard-1: .* dtype=bfloat16 \(there float32\)"),
        (lambda p: spoilt(p, 1, run={"vmc": "False"}), r"shard-1: .* vmc=False \(there True\)"),
        (lambda p: spoilt(p, 1, fingerprint="other"), r"shard-1: .* another model \(by its fingerprint\)"),
        (
            lambda p: spoilt(p, 1, calibrator=observed(range(2), seed=7, k=[6])),
            r"shard-1: .* with k=\[6\] \(there \[3, 5\]\), seed=7 \(there 0\); give every shard of one",
        ),
        (lambda p: [*p[:2], p[2].with_name("none")], "none: expected the state of a calibration, got no such file"),
        (lambda p: [p[0].parent, *p], "expected the state of a calibration, got a folder"),
    ],
)
def test_missing_double_foreign_and_unfinished_shards_are_refused_by_name(tmp_path, spoil, message):
    with pytest.raises(TopThetaValueError, match=message):
        merge_shards(spoil(shards(tmp_path, 3)))


@pytest.mark.parametrize("paths", ["shard-0", Path("shard-0"), None, 3, [3]])
def test_shards_are_a_list_of_paths(paths):
    with pytest.raises(TopThetaTypeError, match=r"a list of the shards' files|a str or pathlib.Path"):
        merge_shards(paths)


def test_shards_are_shards():
    for index, count in ((3, 3), (-1, 2), (0, 0)):
        with pytest.raises(TopThetaValueError, match=r"index|count"):
            Shard(index, count)
    with pytest.raises(TopThetaTypeError, match="index: expected an int, got True"):
        Shard(True, 2)


def test_the_header_is_plain_json(content):
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][KIND.key])
    assert (header["schema"], header["index"], header["count"], header["total"]) == (3, 1, 3, 6)
    assert header["settings"]["k"] == [5]
