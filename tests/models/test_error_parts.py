"""Error curves that were interrupted, or measured in parts, are those of one process, byte for byte."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.calibration.parts import content_of
from tests.models.curves import OPTIONS, TEXTS, model, table
from tests.models.tiny import new_model
from tests.ranks import run_ranks
from tests.tiers import full
from toptheta_npu.calibration.error_state import ErrorState
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import (
    calibrate_error_curves,
    calibrate_error_curves_distributed,
    calibrate_error_curves_shard,
    merge_error_curves,
)
from toptheta_npu.models.calibration.error_job import ErrorOptions

SHARE = "expected its share of the calibration"


class Stop(Exception):
    """Interrupts a measurement."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    found = calibrate_error_curves(model(), table(), TEXTS, **OPTIONS)
    assert found.provenance["curve_sequences"] == "5"
    assert found.provenance["curve_tokens"] == str(5 * 48)
    assert found.provenance["curves"] == "noise"
    return content_of(found, tmp_path_factory.mktemp("whole") / "table")


def stopped_after(count: int, path: Path, every: int = 1, **options: Any) -> None:
    def progress(done: int) -> None:
        if done == count:
            raise Stop

    with pytest.raises(Stop):
        calibrate_error_curves(
            model(), table(), TEXTS, **{**OPTIONS, **options}, checkpoint=path, checkpoint_every=every,
            progress=progress,
        )  # fmt: skip


# --- going on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [(1,), (4, 5), (5,), (6,), (3, 7, 9), (10,)])
@pytest.mark.parametrize("every", [1, 2])
def test_a_measurement_that_stopped_goes_on_in_either_pass(
    tmp_path: Path, whole: bytes, stops: tuple[int, ...], every: int
) -> None:
    for stop in stops:
        stopped_after(stop, tmp_path / "state", every)
    done: list[int] = []
    found = calibrate_error_curves(
        model(), table(), TEXTS, **OPTIONS, checkpoint=tmp_path / "state", progress=done.append
    )
    assert content_of(found, tmp_path / "table") == whole
    # stopped while it was told of a sequence: what was written before is not run again
    passes, seen = divmod(stops[-1] - 1, 5)
    written = 5 * passes + (seen + 1) // every * every
    assert done == list(range(written + 1, 11))


def test_a_finished_state_has_everything(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {**OPTIONS, "checkpoint": tmp_path / "state"}
    calibrate_error_curves(model(), table(), TEXTS, **kept)
    monkeypatch.setattr(type(model().base_model), "forward", None)
    assert content_of(calibrate_error_curves(model(), table(), TEXTS, **kept), tmp_path / "table") == whole
    # it is the only shard of one, too
    assert content_of(merge_error_curves(table(), [tmp_path / "state"]), tmp_path / "merged") == whole


def test_the_state_comes_back_as_it_was(tmp_path: Path) -> None:
    for stop in (3, 8):
        stopped_after(stop, tmp_path / str(stop))
        state = ErrorState.load(tmp_path / str(stop))
        assert (state.first is None, len(state.seen)) == (stop == 3, 3)
        assert state.to_bytes() == (tmp_path / str(stop)).read_bytes()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lengths": [24, 48]}, r"lengths=\[12, 24, 48\] \(here \[24, 48\]\)"),
        ({"sdc": "none", "vmc": False}, r"sdc=exact \(here none\), vmc=True \(here False\)"),
        ({"row_fraction": 0.25}, r"row_fraction=0.5 \(here 0.25\)"),
        ({"seed": 1}, r"seed=0 \(here 1\)"),
    ],
)
@pytest.mark.parametrize("stop", [2, 7])
def test_the_state_of_other_arguments_is_refused(tmp_path: Path, options: Any, named: str, stop: int) -> None:
    stopped_after(stop, tmp_path / "state")
    with pytest.raises(
        TopThetaValueError, match=f"state: expected the state of this calibration, got one with {named}"
    ):
        calibrate_error_curves(model(), table(), TEXTS, **{**OPTIONS, **options}, checkpoint=tmp_path / "state")


def test_the_state_of_other_thresholds_models_and_texts_is_refused(tmp_path: Path) -> None:
    stopped_after(7, tmp_path / "state")
    kept = {**OPTIONS, "checkpoint": tmp_path / "state"}
    with pytest.raises(TopThetaValueError, match="got one with thresholds="):
        calibrate_error_curves(model(), replace(table(), theta=table().theta + 1), TEXTS, **kept)
    with pytest.raises(TopThetaValueError, match=r"thresholds: expected those of this model, .* differs in weights"):
        calibrate_error_curves(new_model(seed=3), table(), TEXTS, **kept)
    with pytest.raises(TopThetaValueError, match=r"got one with dtype=float32 \(here bfloat16\)"):
        calibrate_error_curves(new_model().bfloat16(), table(), TEXTS, **kept)
    with pytest.raises(TopThetaValueError, match="got one with another sequence 0"):
        calibrate_error_curves(model(), table(), TEXTS.flip(0), **kept)
    with pytest.raises(
        TopThetaValueError, match="sequences: expected the same in both passes, got others in the second"
    ):
        calibrate_error_curves(model(), table(), TEXTS[:4], **kept)


def test_texts_that_can_be_read_only_once_are_refused() -> None:
    with pytest.raises(TopThetaTypeError, match="sequences: expected texts that can be read twice, got list_iterator"):
        calibrate_error_curves(model(), table(), iter(list(TEXTS)), longest=48)


def test_the_options_are_those_of_the_function() -> None:
    wanted = {field.name: field.default for field in fields(ErrorOptions)}
    signature = inspect.signature(calibrate_error_curves).parameters
    own = {"model", "table", "sequences", "checkpoint", "checkpoint_every"}
    assert {name: each.default for name, each in signature.items() if name not in own} == wanted


# --- shards -------------------------------------------------------------------------------------------


def shard(index: int, paths: list[Path], **options: Any) -> bool:
    texts = options.pop("texts", TEXTS)
    return calibrate_error_curves_shard(model(), table(), texts, index=index, paths=paths, **{**OPTIONS, **options})


@pytest.mark.parametrize("count", [2, 3, 7])  # with seven, two have nothing to do
def test_shards_merge_to_the_whole(tmp_path: Path, whole: bytes, count: int) -> None:
    paths = [tmp_path / str(index) for index in range(count)]
    first = [shard(index, paths) for index in range(count)]
    assert first == [False] * (count - 1) + [True]  # the last finds all others
    with pytest.raises(TopThetaValueError, match=r"sums of the (first|second) pass"):
        merge_error_curves(table(), paths)
    assert all(shard(index, paths) for index in range(count - 1))
    assert content_of(merge_error_curves(table(), paths[::-1]), tmp_path / "merged") == whole


def test_a_shard_waits_for_an_unfinished_one_and_goes_on(tmp_path: Path, whole: bytes) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]

    def stop(done: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        shard(1, paths, progress=stop, checkpoint_every=1)
    assert not shard(0, paths)
    assert shard(1, paths)
    with pytest.raises(Stop):
        shard(0, paths, progress=stop, checkpoint_every=1)
    with pytest.raises(TopThetaValueError, match="0: expected a finished shard, got one that stopped after 1 of its"):
        merge_error_curves(table(), paths)
    assert shard(0, paths)
    assert content_of(merge_error_curves(table(), paths), tmp_path / "merged") == whole


def test_foreign_shards_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]
    assert not shard(0, paths, seed=1)
    with pytest.raises(TopThetaValueError, match=r"expected a shard of the same calibration as .*, got one with seed="):
        shard(1, paths)
    assert not shard(0, [tmp_path / "2", tmp_path / "3"])
    with pytest.raises(TopThetaValueError, match="got one with other sequences"):
        shard(1, [tmp_path / "2", tmp_path / "3"], texts=TEXTS.flip(0))
    with pytest.raises(TopThetaTypeError, match="paths: expected a list of the shards' files, got 'shard'"):
        shard(0, "shard")  # type: ignore[arg-type]


def test_shards_of_other_thresholds_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "0"]
    assert shard(0, paths)
    with pytest.raises(
        TopThetaValueError, match="table: expected the table whose thresholds were measured, got another"
    ):
        merge_error_curves(replace(table(), theta=table().theta + 1), paths)


# --- ranks --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("tests.models.two_ranks_curves", folder, [0, 0], 120)
    return folder


@full
def test_two_ranks_get_the_table_of_one_process(played: Path, whole: bytes, tmp_path: Path) -> None:
    for scene in ("whole", "resumed"):
        assert (played / f"{scene}.0").read_bytes() == (played / f"{scene}.1").read_bytes() == whole
    alone = content_of(calibrate_error_curves(model(), table(), TEXTS[:1], **OPTIONS), tmp_path / "alone")
    assert (played / "one_sequence.0").read_bytes() == (played / "one_sequence.1").read_bytes() == alone


def test_two_processes_with_a_disk_get_the_table_of_one(played: Path, whole: bytes, tmp_path: Path) -> None:
    assert (
        content_of(merge_error_curves(table(), [played / "shard.1", played / "shard.0"]), tmp_path / "merged") == whole
    )


@pytest.mark.parametrize(
    ("scene", "first", "second"),
    [
        ("other_options", "rank 1: expected what rank 0 was given, got seed=1", "rank 1: expected what rank 0 was"),
        ("early_failure", "Broken: after 1 sequences", f"rank 0: {SHARE}, got Broken: after 1"),
        ("stopped_in_the_first_pass", f"rank 1: {SHARE}, got Broken: after 2", "Broken: after 2"),
        ("stopped_in_the_second_pass", f"rank 1: {SHARE}, got Broken: after 3", "Broken: after 3"),
    ],
)
def test_a_rank_that_fails_is_named(played: Path, scene: str, first: str, second: str) -> None:
    texts = [(played / f"{scene}.{rank}").read_text() for rank in range(2)]
    assert first in texts[0]
    assert second in texts[1]


def test_without_a_process_group() -> None:
    with pytest.raises(TopThetaValueError, match=r"torch.distributed: .*, got none; start with torchrun and call"):
        calibrate_error_curves_distributed(model(), table(), TEXTS)
