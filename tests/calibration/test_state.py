"""The state of a calibration as a file: it is gone on from as if it had never stopped, or refused by name."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.calibration.parts import ESTIMATORS, LAYERS, content_of, finish, make, observe, observed, seen_in
from toptheta_npu import _sealed
from toptheta_npu.calibration import state as state_module
from toptheta_npu.calibration.state import KIND, CalibrationState
from toptheta_npu.errors import TopThetaError, TopThetaValueError
from toptheta_npu.thresholds import Estimator, ThresholdTable

TEXTS = [torch.arange(5), torch.arange(9), torch.arange(3)]


def written(path: Path, state: CalibrationState) -> Path:
    """The file of a state that has seen the first two of `TEXTS`."""
    state.seen = state.seen.then(TEXTS[0]).then(TEXTS[1])
    state.save(path)
    return path


def resumed(path: Path, **options: Any) -> CalibrationState:
    """A new calibration that goes on from ``path``."""
    state = make(observed(range(0), **options))
    state.resume(path, TEXTS)
    return state


def test_every_estimator_is_tried():
    assert set(ESTIMATORS) == set(get_args(Estimator))


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_calibrator_goes_on_from_its_file_as_if_it_had_never_stopped(tmp_path, estimator, placement):
    options = {"estimator": estimator, "placement": placement, "row_fraction": 0.5, "seed": -3}
    whole = observed(range(6), **options)
    path = written(tmp_path / "state", make(observed(range(4), **options)))
    again = resumed(path, **options)
    assert again.seen == seen_in(path)
    assert again.seen[:2] == (2, 14)
    again.save(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    observe(again.calibrator, range(4, 6))
    expected = content_of(finish(whole), tmp_path / "whole")
    assert content_of(finish(again.calibrator), tmp_path / "again") == expected


# --- files that are not it ----------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "state", make(observed(range(2))))


@pytest.mark.parametrize(
    "texts", [
        [TEXTS[0], TEXTS[1].flip(0)],
        [TEXTS[0].flip(0), TEXTS[1]],  # an earlier one alone
        [TEXTS[0] + torch.tensor([0, 0, 0, 0, 9]), TEXTS[1]],  # the last token alone
        [TEXTS[0] + 256, TEXTS[1]],
        [TEXTS[0] + 2**32, TEXTS[1]],
        [torch.arange(4), torch.arange(10)],
        [torch.cat([TEXTS[0], TEXTS[1][:1]]), TEXTS[1][1:]],  # the same tokens, cut elsewhere
    ],
)  # fmt: skip
def test_it_is_not_gone_on_from_with_other_texts(path, texts):
    with pytest.raises(TopThetaValueError, match="got one with other texts, of 2 sequences and 14 tokens so far; pass"):
        make(observed(range(0))).resume(path, texts)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: b"", "expected a safetensors file, got something else or a damaged file"),
        (lambda content: content[:-1], "expected a safetensors file, .*; get a fresh copy, or calibrate from"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "checksum of its content, got another content"),
        (lambda content: content.replace(b'\\"schema\\": 4', b'\\"schema\\": 3'), "schema version 4, got 3; install"),
        (lambda content: content.replace(KIND.key.encode(), KIND.key.encode()[::-1]), "another kind; correct the path"),
    ],
)
def test_damaged_and_foreign_files(path, spoil, message):
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(TopThetaValueError, match=rf"state: .*{message}"):
        resumed(path)


def test_a_table_is_no_state_and_a_state_no_table(tmp_path, path):
    finish(observed(range(2))).save(tmp_path / "table")
    with pytest.raises(TopThetaValueError, match="expected the state of a calibration, got a threshold table; see"):
        resumed(tmp_path / "table")
    with pytest.raises(TopThetaValueError, match="expected a threshold table, got the state of a calibration; calib"):
        ThresholdTable.load(path)


def test_too_large_files(path, monkeypatch):
    monkeypatch.setattr(state_module, "MAX_STATE_BYTES", 100)
    with pytest.raises(TopThetaValueError, match="the state of a calibration of at most 100 bytes, got"):
        resumed(path)


def test_no_flipped_bit_is_taken_for_another_state(path):
    content = path.read_bytes()
    # a prime step, so that over the file every bit of a byte is flipped
    for bit in range(0, 8 * len(content), 997):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(flipped))
        with suppress(TopThetaError):
            resumed(path).save(path)
            assert path.read_bytes() == content, f"bit {bit % 8} of byte {bit // 8}"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sketch.0.counts", lambda old: None),
        ("sketch.0.rows", lambda old: old[:-1].clone()),
        ("sketch.0.smallest", lambda old: old.double()),
        ("more", lambda old: torch.full((LAYERS,), math.nan)),
    ],
)
def test_other_arrays_in_a_well_made_file(path, name, change):
    header, tensors = _sealed.unseal(KIND, "state", path.read_bytes())
    changed = {**tensors, name: change(tensors.get(name))}
    del header["schema"]
    path.write_bytes(_sealed.seal(KIND, header, {key: each for key, each in changed.items() if each is not None}))
    with pytest.raises(TopThetaValueError, match=rf"state of a calibration, got other content .*\['{name}'\].*; calib"):
        resumed(path)
