"""The file of a table: whatever happens to its bytes, it loads as the same table or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdTable, file
from toptheta_npu.thresholds.fingerprint import Fingerprint


def make(value: float = 0.5, **changes: Any) -> ThresholdTable:
    shape = (1, 2, 1, 3)
    fields: dict[str, Any] = {
        "theta": torch.full(shape, value), "k": torch.tensor([4]), "lengths": torch.tensor([8, 16, 32]),
        "counts": torch.ones(2, 1, 3, dtype=torch.int64), "std": torch.zeros(shape), "placement": "pre_softmax",
        "estimator": "algorithm1", "alpha": 0.1, "layer_k": [0, 4], "fingerprint": f"model {value}",
        "provenance": {"text": "the standard library"}, "discarded_mass": torch.full(shape, 0.25),
        "discarded_statistic": "geometric_mean",
    }  # fmt: skip
    return ThresholdTable(**{**fields, **changes})


def same(one: ThresholdTable, other: ThresholdTable) -> bool:
    for field in dataclasses.fields(ThresholdTable):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if not (torch.equal(mine, theirs) if isinstance(mine, Tensor) else mine == theirs):
            return False
    return True


def outcome_of(path: Path, content: bytes) -> ThresholdTable | None:
    """The table that ``content`` loads as; None where it is refused by a typed error that names the file."""
    path.write_bytes(content)
    try:
        return ThresholdTable.load(path)
    except TopThetaError as error:
        message = str(error)
    assert str(path) in message
    return None


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds ``make()`` before every use."""
    return tmp_path_factory.mktemp("table") / "table"


@pytest.fixture(scope="module")
def content(saved: Path) -> bytes:
    make().save(saved)
    return saved.read_bytes()


def test_no_flipped_bit_loads_as_another_table(saved: Path, content: bytes) -> None:
    table = make()
    # a prime step, so that over the file every bit of a byte is flipped
    for bit in range(0, 8 * len(content), 11):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        loaded = outcome_of(saved, bytes(flipped))
        assert loaded is None or same(loaded, table), f"bit {bit % 8} of byte {bit // 8}"


def test_a_table_is_of_one_file_while_another_process_replaces_it(saved: Path) -> None:
    tables = [make(0.25), make(0.75)]
    tables[0].save(saved)
    writer = os.fork()
    if writer == 0:
        while True:
            for table in tables:
                table.save(saved)
    try:
        seen = set()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            loaded = ThresholdTable.load(saved)
            assert loaded.fingerprint == f"model {loaded.theta[0, 0, 0, 0].item()}"
            seen.add(loaded.fingerprint)
        assert len(seen) == 2, "the other process did nothing"
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


def test_too_large_a_file_is_not_read(saved: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.write_bytes(content)
    monkeypatch.setattr(file, "MAX_FILE_BYTES", len(content) - 1)
    with pytest.raises(TopThetaValueError, match=f"a threshold table of at most {len(content) - 1} bytes, got"):
        ThresholdTable.load(saved)


# --- drawn damage -------------------------------------------------------------------------------------

DRAWN = settings(max_examples=100, deadline=None)
bounded_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@DRAWN
@given(st.data())
def test_changed_bytes(saved: Path, content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        damaged[start : start + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    loaded = outcome_of(saved, bytes(damaged))
    assert loaded is None or same(loaded, make())


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(outer: Any, tensors: bytes) -> bytes:
    text = json.dumps(outer).encode()
    return len(text).to_bytes(8, "little") + text + tensors


@DRAWN
@given(st.data())
@pytest.mark.parametrize("checksum", ["left", "made to fit"])
def test_other_values_in_our_header(saved: Path, content: bytes, checksum: str, data: st.DataObject) -> None:
    """Also with a checksum that fits: then whatever loads is a table that passes all checks."""
    outer, tensors = split(content)
    header = json.loads(outer["__metadata__"][file.METADATA_KEY])
    header[data.draw(st.sampled_from(sorted(header)) | st.text(max_size=5))] = data.draw(bounded_json)
    if checksum == "made to fit":
        header.pop("checksum", None)
        parts = {name: getattr(make(), name) for name in outer if name != "__metadata__"}
        header["checksum"] = file.checksum(header, parts)
    outer["__metadata__"][file.METADATA_KEY] = json.dumps(header)
    loaded = outcome_of(saved, joined(outer, tensors))
    if loaded is not None:
        assert checksum == "made to fit" or same(loaded, make())
        loaded.save(saved)


# --- fingerprints -------------------------------------------------------------------------------------

MODEL = Fingerprint("llama", "0" * 16, "1" * 16, ("2" * 32, "3" * 32))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (MODEL, None),
        (MODEL._replace(weights=("3" * 32,)), None),
        (MODEL._replace(weights=("4" * 32, "2" * 32)), None),
        (MODEL._replace(weights=("4" * 32,)), "weights"),
        (MODEL._replace(geometry="4" * 16), "geometry"),
        (MODEL._replace(rotary="4" * 16, model_type="qwen3"), "model type and rotary parameters"),
        ("llama-0123", "fingerprint"),
    ],
)
def test_an_error_says_what_differs(tmp_path: Path, other: Fingerprint | str, difference: str | None) -> None:
    make(fingerprint=str(MODEL)).save(tmp_path / "table")
    if difference is None:
        ThresholdTable.load(tmp_path / "table", fingerprint=str(other))
        return
    with pytest.raises(TopThetaValueError, match=f"expected thresholds of the model .*which differs in {difference};"):
        ThresholdTable.load(tmp_path / "table", fingerprint=str(other))


def test_a_fingerprint_is_text(tmp_path: Path) -> None:
    make().save(tmp_path / "table")
    with pytest.raises(TopThetaTypeError, match="fingerprint: expected a str or None, got int"):
        ThresholdTable.load(tmp_path / "table", fingerprint=5)  # type: ignore[arg-type]
