"""Two processes calibrate together, over gloo or over nothing but files, and get the table of a single one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.calibration.parts import ESTIMATORS, assert_merged, content_of, of_estimator
from tests.models.tiny import model_of
from tests.models.two_ranks import OPTIONS, TEXTS, scenes
from tests.ranks import run_ranks
from toptheta_npu.calibration.shards import merge_shards
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.models import calibrate, calibrate_distributed
from toptheta_npu.thresholds import ThresholdTable

SECONDS = 120
SHARE = "expected its share of the calibration"
GIVEN = "expected what rank 0 was given"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what both ranks got of every scene."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("tests.models.two_ranks", folder, [0, 3], SECONDS)
    return folder


def alone(**arguments: Any) -> ThresholdTable:
    sequences = arguments.pop("sequences", TEXTS)
    return calibrate(model_of(), sequences, **{**OPTIONS, **arguments})


@pytest.mark.parametrize("scene", [*ESTIMATORS, "decode", "stream", "one_sequence"])
def test_the_table_is_that_of_one_process(played, tmp_path, scene):
    """Also of an odd number of sequences, and of one, which leaves a rank with none."""
    arguments = scenes(0, played)[scene]
    first, second = (played / f"{scene}.{rank}" for rank in range(2))
    assert first.read_bytes() == second.read_bytes()
    expected = alone(**arguments)
    table = ThresholdTable.load(first)
    assert_merged(table, expected)
    assert (table.provenance, table.fingerprint) == (expected.provenance, expected.fingerprint)
    if table.estimator == "pooled":
        assert first.read_bytes() == content_of(expected, tmp_path / "alone")


def test_shards_in_two_processes_are_the_whole(played, tmp_path):
    for estimator in ESTIMATORS:
        merged = merge_shards([played / f"shard.{estimator}.{rank}" for rank in (1, 0)])
        expected = alone(**of_estimator(estimator))
        assert_merged(merged, expected)
        if estimator == "pooled":
            assert content_of(merged, tmp_path / "two") == content_of(expected, tmp_path / "one")


@pytest.mark.parametrize(
    ("scene", "first", "second"),
    [
        ("bad_tokens", f"rank 1: {SHARE}, got TopThetaValueError: sequences[0", "sequences[0"),
        ("bad_option", f"rank 1: {SHARE}, got TopThetaValueError: k: expected", "k: expected"),
        ("unknown_option", f"rank 1: {SHARE}, got TypeError: ", "'unknown'"),
        ("other_options", f"rank 1: {GIVEN}, got seed=1 (there 0); pass the same", f"rank 1: {GIVEN}, got seed=1"),
        ("other_texts", f"rank 1: {GIVEN}, got sequences=", f"rank 1: {GIVEN}, got sequences="),
        ("other_streams", "rank 1: expected a shard of the same calibration as rank 0, got one with other s", "rank 1"),
        ("late_failure", f"rank 1: {SHARE}, got Broken: after 3 sequences; mend that, and start", "Broken: after 3"),
        ("early_failure", "Broken: after 1 sequences", f"rank 0: {SHARE}, got Broken: after 1 sequences; mend that"),
        ("both_fail", "Broken: after 1 sequences", "Broken: after 1 sequences"),
        ("dead", "group: expected every rank until the end of the calibration, got one that is gone or late", None),
    ],
)  # fmt: skip
def test_a_rank_that_fails_is_named_and_no_other_hangs(played, scene, first, second):
    texts = [played / f"{scene}.{rank}" for rank in range(2)]
    assert first in texts[0].read_text()
    if second is None:
        assert not texts[1].exists()
    else:
        assert second in texts[1].read_text()


def test_ranks_go_on_from_their_own_files(played, tmp_path):
    assert "got Broken: after 3 sequences" in (played / "stopped.0").read_text()
    assert {path.name for path in played.glob("state*")} == {"state.rank0", "state.rank1"}
    expected = content_of(alone(estimator="pooled"), tmp_path / "alone")
    assert (played / "resumed.0").read_bytes() == (played / "resumed.1").read_bytes() == expected
    # they are shards, too
    merged = merge_shards(sorted(played.glob("state*")))
    assert content_of(merged, tmp_path / "merged") == expected


def test_without_a_process_group():
    with pytest.raises(TopThetaValueError, match=r"torch.distributed: .*, got none; start with torchrun and call"):
        calibrate_distributed(model_of(), TEXTS, **OPTIONS)
