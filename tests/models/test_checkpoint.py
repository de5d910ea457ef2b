"""A calibration that stops goes on from its file, and its table is that of one that never stopped."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.calibration.parts import ESTIMATORS, content_of, seen_in
from tests.models.tiny import K, model_of, new_model, tokens
from tests.models.wrapped_weights import adapt
from tests.tiers import full, only
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import calibrate, model_fingerprint

ROOT = Path(__file__).parents[2]
TEXTS = list(tokens(7, 40, seed=1))
OPTIONS: dict[str, Any] = {
    "k": K,
    "layer_k": [0, 0],
    "row_fraction": 0.5,
    "placement": "pre_softmax",
}


class Stop(Exception):
    """Interrupts a calibration."""


def stopped_after(count: int, path: Path, **options: Any) -> None:
    """A calibration that ends with an exception after ``count`` sequences."""

    def progress(done: int) -> None:
        if done == count:
            raise Stop

    with pytest.raises(Stop):
        calibrate(
            model_of(), TEXTS, **{**OPTIONS, "checkpoint": path, "checkpoint_every": 1, **options}, progress=progress
        )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state of a calibration that stopped after three sequences."""
    stopped_after(3, tmp_path / "state")
    return tmp_path / "state"


# --- going on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"row_fraction": 1.0, "placement": "post_softmax"}])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_table_is_that_of_an_uninterrupted_run(tmp_path, estimator, more, monkeypatch):
    options = {**OPTIONS, "estimator": estimator, "provenance": {"text": "noise"}, **more}
    expected = content_of(calibrate(model_of(), TEXTS, **options), tmp_path / "whole")
    stopped_after(4, tmp_path / "state", **{**options, "checkpoint_every": 3})
    stopped_after(6, tmp_path / "state", **options)
    done: list[int] = []
    kept = {"checkpoint": str(tmp_path / "state"), "checkpoint_every": 100}
    table = calibrate(model_of(), iter(TEXTS), **options, **kept, progress=done.append)
    assert content_of(table, tmp_path / "again") == expected
    assert done == [7]
    # what is left has everything: the table again, without the model
    monkeypatch.setattr(type(model_of().base_model), "forward", None)
    assert content_of(calibrate(model_of(), TEXTS, **options, **kept), tmp_path / "third") == expected


def test_the_state_is_written_after_every_so_many_sequences(tmp_path):
    seen, path = [], tmp_path / "state"
    calibrate(
        model_of(), DataLoader(TEXTS), **OPTIONS, checkpoint=path, checkpoint_every=3,
        progress=lambda done: seen.append(seen_in(path).sequences if path.exists() else 0),
    )  # fmt: skip
    assert seen == [0, 0, 3, 3, 3, 6, 6]
    assert seen_in(path)[:2] == (7, 7 * 40)


def test_more_texts_may_follow(tmp_path):
    kept = {"checkpoint": tmp_path / "state"}
    calibrate(model_of(), TEXTS[:4], **OPTIONS, **kept)
    done: list[int] = []
    table = calibrate(model_of(), TEXTS, **OPTIONS, **kept, progress=done.append)
    assert done == [5, 6, 7]
    expected = content_of(calibrate(model_of(), TEXTS, **OPTIONS), tmp_path / "expected")
    assert content_of(table, tmp_path / "table") == expected


@full
@pytest.mark.parametrize(("by", "count"), only({(signal.SIGINT, 12)}, [(signal.SIGKILL, 20), (signal.SIGINT, 12)]))
def test_a_signal_at_any_point_changes_nothing(tmp_path, by, count):
    command = [sys.executable, "-m", "tests.models.killed_calibration", str(tmp_path), str(int(by)), str(count)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report) == count
    for kill in report:
        assert kill["killed"]
        assert kill["same"]
        assert kill["left"] == ["state", "table"]
    # they came before the first state, and between any two
    assert len({kill["seen"] for kill in report}) >= 4
    # while one was written, too: a killed process leaves a part beside the state, an interrupted one cleans up
    assert any(kill["beside"] for kill in report) == (by == signal.SIGKILL)


# --- other work ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"k": 9}, r"k=\[8\] \(here \[9\]\)"),
        ({"k": [8, 9], "top_k_at_calibration": False}, r"k=\[8\] .*, top_k_at_calibration='True' \(here 'False'\)"),
        ({"placement": "post_softmax"}, r"placement='pre_softmax' \(here 'post_softmax'\)"),
        ({"estimator": "pooled"}, r"estimator='algorithm1' \(here 'pooled'\), alpha=0.1 \(here 0.0\)"),
        ({"alpha": 0.2}, r"alpha=0.1 \(here 0.2\)"),
        ({"layer_k": [0, 9]}, r"layer_k=\[0, 0\] \(here \[0, 9\]\)"),
        ({"row_fraction": 0.25}, r"row_fraction=0.5 \(here 0.25\)"),
        ({"seed": 1}, r"seed=0 \(here 1\)"),
        ({"sdc": "none", "vmc": False}, r"sdc='exact' \(here 'none'\), vmc='True' \(here 'False'\)"),
    ],
)
def test_the_state_of_other_arguments_is_refused(state, options, named):
    before = state.read_bytes()
    arguments = {**OPTIONS, **options, "checkpoint": state}
    remedy = "pass the model and the arguments that it was made with, name another file, or delete this one"
    with pytest.raises(
        TopThetaValueError, match=f"state: expected the state of this .*, got one with {named}; {remedy}"
    ):
        calibrate(model_of(), TEXTS, **arguments)
    assert state.read_bytes() == before


def test_the_state_of_another_model_is_refused(state):
    arguments = {**OPTIONS, "checkpoint": state}
    with pytest.raises(TopThetaValueError, match=r"got one with another model \(by its weights\); pass"):
        calibrate(new_model(seed=3), TEXTS, **arguments)
    with pytest.raises(TopThetaValueError, match=r"got one with dtype='float32' \(here 'bfloat16'\); pass"):
        calibrate(new_model().bfloat16(), TEXTS, **arguments)
    with pytest.raises(TopThetaValueError, match=r"num_layers=2 \(here 3\).*another model"):
        calibrate(new_model(layers=3), TEXTS, **{**arguments, "layer_k": [0] * 3})


@pytest.mark.parametrize("part", ["self_attn.v_proj", "mlp.down_proj", "self_attn.o_proj"])
def test_the_state_of_a_model_of_other_weights_is_refused(state, part):
    """Thresholds of later layers change with any weight, though the fingerprint is the same."""
    before, model = state.read_bytes(), new_model()
    model.model.layers[0].get_submodule(part).weight.data[-1, -1] += 1
    assert model_fingerprint(model) == model_fingerprint(model_of())
    remedy = "pass the model and the arguments that it was made with, name another file"
    with pytest.raises(TopThetaValueError, match=rf"got one with another model \(by its weights\); {remedy}"):
        calibrate(model, TEXTS, **OPTIONS, checkpoint=state)
    assert state.read_bytes() == before


def test_the_state_of_another_adapter_or_configuration_is_refused(tmp_path):
    model, kept = new_model(), {**OPTIONS, "checkpoint": tmp_path / "state"}
    layers = adapt(model, "v_proj", first=1, second=2)
    calibrate(model, TEXTS[:3], **kept)
    for layer in layers:
        layer.active_adapters = ["second"]
    with pytest.raises(TopThetaValueError, match=r"another model \(by its weights and adapters\); pass the model"):
        calibrate(model, TEXTS, **kept)
    for layer in layers:
        layer.active_adapters, layer.scaling["first"] = ["first"], 0.5
    with pytest.raises(TopThetaValueError, match=r"another model \(by its adapters\); pass the model"):
        calibrate(model, TEXTS, **kept)
    for layer in layers:
        layer.scaling["first"] = 1.0
    model.config.rms_norm_eps *= 2
    with pytest.raises(TopThetaValueError, match=r"another model \(by its configuration\); pass the model"):
        calibrate(model, TEXTS, **kept)
    model.config.rms_norm_eps /= 2
    done: list[int] = []
    calibrate(model, TEXTS, **kept, progress=done.append)
    assert done == [4, 5, 6, 7]


def test_only_a_calibration_that_is_kept_reads_all_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[calibrate.__module__], "model_digests", None)
    calibrate(model_of(), TEXTS[:1], **OPTIONS)
    with pytest.raises(TypeError):
        calibrate(model_of(), TEXTS[:1], **OPTIONS, checkpoint=tmp_path / "state")


@pytest.mark.parametrize(
    "texts",
    [
        [TEXTS[0], TEXTS[2], TEXTS[1], *TEXTS[3:]], [*TEXTS[:2], TEXTS[2].flip(0), *TEXTS[3:]],
        [TEXTS[0][:30], *TEXTS[1:]], TEXTS[:2],
    ],
)  # fmt: skip
def test_the_state_of_other_texts_is_refused(state, texts):
    before = state.read_bytes()
    named = "other texts, of 3 sequences and 120 tokens so far"
    with pytest.raises(TopThetaValueError, match=f"state: .*, got one with {named}; pass the model"):
        calibrate(model_of(), texts, **OPTIONS, checkpoint=state)
    assert state.read_bytes() == before


def test_another_file_is_refused_and_stays(tmp_path):
    calibrate(model_of(), TEXTS, **OPTIONS).save(tmp_path / "table")
    before = (tmp_path / "table").read_bytes()
    with pytest.raises(TopThetaValueError, match="table: expected the state of a calibration, got a threshold table"):
        calibrate(model_of(), TEXTS, **OPTIONS, checkpoint=tmp_path / "table")
    assert (tmp_path / "table").read_bytes() == before


# --- places that cannot be written --------------------------------------------------------------------


def test_a_place_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(type(model_of().base_model), "forward", None)
    for path, message in ((tmp_path / "none" / "state", "no such folder; create"), (tmp_path, "got a folder")):
        with pytest.raises(TopThetaValueError, match=message):
            calibrate(model_of(), TEXTS, **OPTIONS, checkpoint=path)
    with pytest.raises(TopThetaTypeError, match=r"path: expected a str or pathlib.Path, got int"):
        calibrate(model_of(), TEXTS, **OPTIONS, checkpoint=3)
    for every, error in ((0, TopThetaValueError), ("1", TopThetaTypeError)):
        with pytest.raises(error, match="checkpoint_every: expected an int"):
            calibrate(model_of(), TEXTS, **OPTIONS, checkpoint=tmp_path / "state", checkpoint_every=every)
    with pytest.raises(TopThetaTypeError, match="provenance: expected a mapping of str to str"):
        calibrate(model_of(), TEXTS, **OPTIONS, provenance={"texts": 3})


@pytest.fixture
def limited() -> Iterator[Any]:
    """Sets the size that files may have, as a disk that fills up does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_state_and_says_so(state, limited, tmp_path):
    before = state.read_bytes()
    limited(len(before) // 2)
    message = "state: expected a place for the state, got File too large after 5 sequences; what was written before is"
    with pytest.raises(TopThetaValueError, match=f"{message} intact: make room and call again, and the work goes on"):
        calibrate(model_of(), TEXTS, **OPTIONS, checkpoint=state, checkpoint_every=5)
    limited(resource.RLIM_INFINITY)
    assert state.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    done: list[int] = []
    table = calibrate(model_of(), TEXTS, **OPTIONS, checkpoint=state, progress=done.append)
    assert done == [4, 5, 6, 7]
    expected = content_of(calibrate(model_of(), TEXTS, **OPTIONS), tmp_path / "expected")
    assert content_of(table, tmp_path / "table") == expected


def test_no_space_left(state, monkeypatch):
    before = state.read_bytes()

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(TopThetaValueError, match="got No space left on device after 4 sequences; what was written"):
        calibrate(model_of(), TEXTS, **OPTIONS, checkpoint=state, checkpoint_every=1)
    assert state.read_bytes() == before
