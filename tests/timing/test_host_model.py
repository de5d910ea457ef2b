"""``toptheta benchmark --device host-model``, and the files of constants that it takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import toptheta
from toptheta_npu import TopThetaValueError
from toptheta_npu.timing.constants import read_constants
from toptheta_npu.timing.host_model import known_constants

SHAPE = "heads=4/2,n=256,k=16,head_dim=64"
GROUPED = "heads=8/2,n=256,k=16,head_dim=64"


def write(folder: Path, constants: Any, **changes: Any) -> Path:
    file = folder / "hour.json"
    file.write_text(json.dumps({"schema": 1, "device": "Ascend910B4", "constants": constants} | changes))
    return file


def entry(value: Any, error: Any = 0.1) -> dict[str, Any]:
    return {"value": value, "standard_error": error, "unit": "us"}


def modelled(folder: Path, *arguments: str, shape: str = SHAPE) -> dict[str, Any]:
    file = folder / "times.json"
    assert toptheta("benchmark", "--device", "host-model", "--shape", shape, "--json", str(file), *arguments) == 0
    stored: dict[str, Any] = json.loads(file.read_text())
    return stored


def test_a_file_of_constants_is_read(tmp_path: Path) -> None:
    constants = read_constants(write(tmp_path, {"sync_all_microseconds": entry(2.5)}))
    assert constants.device == "Ascend910B4"
    assert constants.values == {"sync_all_microseconds": 2.5}
    assert constants.by_name["sync_all_microseconds"].standard_error == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "expected JSON of toptheta verify, got something else"),
        ("[1]", "expected a file of toptheta verify with schema 1, got schema None"),
        ('{"schema": 2}', "with schema 1, got schema 2"),
        ('{"schema": 1, "device": "x"}', "expected constants that were fitted, got none; run toptheta verify without"),
        ('{"schema": 1, "constants": {"rate_cold": 3}}', "value, standard_error and unit of rate_cold, got 3"),
    ],
)
def test_another_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "hour.json"
    file.write_text(text)
    with pytest.raises(TopThetaValueError, match=re.escape(message)):
        read_constants(file)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_numbers_must_be_numbers_from_0(number: Any, tmp_path: Path) -> None:
    for entries in (entry(number), entry(1.0, number)):
        with pytest.raises(TopThetaValueError, match="a value and a standard_error from 0 for rate_cold, got"):
            read_constants(write(tmp_path, {"rate_cold": entries}))


@pytest.mark.parametrize(("shape", "launch"), [(SHAPE, "launch_microseconds"), (GROUPED, "launch_mixed_microseconds")])
def test_constants_change_the_times(
    shape: str, launch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [
        modelled(tmp_path, "--constants", str(write(tmp_path, {launch: entry(value)})), shape=shape)
        for value in (10.0, 25.0)
    ]
    assert times[0]["values"] == {launch: 10.0}
    for short, long in zip(times[0]["results"], times[1]["results"], strict=True):
        assert long["kept"] - short["kept"] == pytest.approx(15)
        assert long["dense"] - short["dense"] == pytest.approx(15)
    said = " ".join(capsys.readouterr().out.split())
    assert f"Modelled, calibrated on Ascend910B4: {launch} were fitted there." in said


def test_without_a_file_the_times_are_uncalibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = modelled(tmp_path, "--cache", "hot")
    assert stored["values"] == {}
    (result,) = stored["results"]
    assert result["cache"] == "hot"
    assert 0 < result["kept"] < 100
    assert "Modelled, uncalibrated" in capsys.readouterr().out


def test_several_tokens_take_longer_than_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, four = (modelled(tmp_path, "--cache", "hot", "--query-tokens", tokens)["results"][0] for tokens in "14")
    assert (one["shape"]["query_tokens"], four["shape"]["query_tokens"]) == (1, 4)
    assert four["kept"] > one["kept"]
    assert four["dense"] > four["kept"]
    assert "4/2 n=256 k=16 f16, head_dim 64, 4 tokens" in capsys.readouterr().out


def test_the_model_knows_its_launches() -> None:
    assert {"launch_microseconds", "launch_mixed_microseconds", "sync_all_microseconds"} <= known_constants()


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = str(write(tmp_path, {"warp_size": entry(32)}))
    for arguments, message in (
        (("--device", "cpu", "--constants", strange), "--constants needs --device host-model; leave it out"),
        (("--device", "host-model", "--rounds", "3"),
         "--rounds excludes --device host-model; leave it out"),
        (("--device", "host-model", "--constants", strange), "--constants: expected constants of this clone's model "
         "(emulator/ascendc/machine/cost.h), got warp_size; use the clone that toptheta verify ran in"),
    ):  # fmt: skip
        assert toptheta("benchmark", *arguments) == 2
        assert message in re.sub(r"\s+", " ", capsys.readouterr().err)
