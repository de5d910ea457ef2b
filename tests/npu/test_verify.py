"""``toptheta verify`` over emulated devices: every check passes, and each fails when its defect is planted.

Run as a program, this file makes the checks of `_DEFECTS`, one after the other, and prints what each found.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from emulator.acl.environment import in_emulator
from emulator.acl.settings import with_settings
from tests.cli.command import toptheta
from tests.tiers import full
from tests.verify.modelled_device import PLANTED, QUICK, model_runs
from toptheta_npu.timing import clocks
from toptheta_npu.timing.clocks import Timing
from toptheta_npu.timing.constants import read_constants
from toptheta_npu.timing.inputs import Inputs, make_inputs
from toptheta_npu.timing.shapes import Shape, parse_shape
from toptheta_npu.verify import times
from toptheta_npu.verify.points import POINTS, choose
from toptheta_npu.verify.runner import run_points
from toptheta_npu.verify.times import modelled

pytestmark = pytest.mark.skipif(not in_emulator(), reason="on hardware the command itself is the test")

_ROOT = Path(__file__).parents[2]
_HEADER = _ROOT / "emulator" / "ascendc" / "machine" / "defects.h"
#: What is planted for each check, and what the check says of it.
_DEFECTS = {
    ("mask-bits", "reversed-mask-bits"): r"keep the rows \[0, 9, 18, .*\], but the outputs are the V rows \[7, 14, ",
    ("gather-count", "gather-mask-counts-dropped"): r"the heads keep \[\d+, \d+\] rows, but report \[\d+, \d+\]",
    ("launch-forms", "first-key-does-not-start"): r"expected .*, got",
    ("dtypes", "first-kernel-for-all-types"): r"expected .*, got",
    ("empty-outputs", "empty-output-skips-launch"): r"expected .*, got",
    ("strided-caches", "strides-ignored"): r"expected .*, got",
    ("sync-all", "sync-all-lets-through"): r"expected .*, got",
    ("unified-buffer", "top-of-ub-taken"): r"^out\[.*expected .*, got",
    ("wide-gaps", "wide-gaps-wrap"): r"^out\[.*expected .*, got",
    ("select-strides", "select-strides-ignored"): r"the heads keep \[\d+, \d+\] rows, but report \[\d+, \d+\]",
    ("multiply-add", "multiply-add-in-half"): r"^out\[.*expected .*, got",
    ("narrow-cast", "int8-strides-ignored"): r"^(out|lse)\[.*expected .*, got",
    ("exp-ln", "exp-in-half"): r"^kept mass, a sum of Exp,\[.*expected .*, got",
    ("exp-ln", "ln-in-half"): r"^lse, a Ln,\[.*expected .*, got",
    ("infinite-bounds", "bounds-spoilt-by-infinities"): r"expected .*, got",
    ("infinite-scores", "exp-of-infinity-is-one"): r"expected .*, got",
    ("lowest-number", "exp-of-lowest-is-one"): r"expected .*, got",
    ("cube-block-index", "block-index-across-blocks"): r"expected .*, got",
    ("cube-flags", "cube-waits-for-no-flag"): r"expected .*, got",
    ("cube-fractals", "fractals-row-by-row"): r"expected .*, got",
    ("ragged-fixpipe", "fixpipe-writes-whole-fractals"): r"expected .*, got",
    ("cube-nan", "mmad-drops-nan"): r"on cube cores the heads whose lse is NaN should be \[True, .*\[False, ",
    ("cube-integers", "int8-sums-in-16-bits"): r"expected .*, got",
    ("sync-all-cube", "sync-all-lets-through"): r"expected .*, got",
    ("query-tokens", "gaps-of-outputs-ignored"): r"^out\[.*expected .*, got",
    ("shared-tokens", "sync-all-lets-through"): r"expected .*, got",
    ("graph-replay", "replay-with-captured-lengths"): r"expected .*, got",
}


def _command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toptheta_npu", "verify", *arguments]
    environment = os.environ | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    file = tmp_path_factory.mktemp("verify") / "hour.json"
    done = _command("--output", str(file))
    return done, json.loads(file.read_text())


@pytest.mark.parametrize("name", [point.name for point in POINTS])
def test_every_check_passes(
    name: str, whole_run: tuple[subprocess.CompletedProcess[str], dict[str, list[dict[str, object]]]]
) -> None:
    (entry,) = [entry for entry in whole_run[1]["checks"] if entry["check"] == name]
    assert entry["problem"] is None
    assert entry["passed"]


def test_times_are_refused(whole_run: tuple[subprocess.CompletedProcess[str], dict[str, object]]) -> None:
    done, stored = whole_run
    assert done.returncode == 2
    assert f"{len(POINTS)} of {len(POINTS)} checks passed." in done.stdout
    assert done.stderr.strip().splitlines()[-1] == (
        "error: toptheta verify: expected a device whose times are measured, got an emulated one, whose times are "
        "modelled; the checks are done; leave the times out with --no-times, or run it on an Ascend NPU"
    )
    assert "times" not in stored
    assert "constants" not in stored
    assert str(stored["device"]).endswith("(emulated)")


@pytest.fixture(scope="module")
def problems() -> dict[str, str | None]:
    # what the kernel refuses has to be an error of its own call, not of one that the task queue runs later
    environment = os.environ | {"TASK_QUEUE_ENABLE": "0"}
    command = [sys.executable, "-m", "tests.npu.test_verify"]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@full
@pytest.mark.parametrize(("name", "defect"), _DEFECTS)
def test_a_check_fails_where_its_defect_is_planted(name: str, defect: str, problems: dict[str, str | None]) -> None:
    problem = problems[f"{name} {defect}"]
    assert problem is not None
    assert re.search(_DEFECTS[name, defect], problem)


def test_every_check_has_a_defect_and_every_defect_a_check() -> None:
    assert {name for name, _ in _DEFECTS} == {point.name for point in POINTS}
    planted = set(re.findall(r'DefectName\{Defect::\w+, "([\w-]+)"\}', _HEADER.read_text()))
    assert {defect for _, defect in _DEFECTS} == planted


@full
def test_the_command_says_what_to_do_and_ends_with_1(tmp_path: Path) -> None:
    file = tmp_path / "hour.json"
    chosen = ("--only", "cube-nan", "--only", "mask-bits")
    done = _command(*chosen, "--output", str(file), **with_settings(defect="mmad-drops-nan"))
    assert done.returncode == 1
    assert re.search(r"^pass +mask-bits +bit i of byte j .*\n"
                     r"FAIL +cube-nan +a NaN in K .*\n +found: on cube cores .*\n +rests on: docs, Mmad.*\n"
                     r" +change: op_kernel/cube_scores.h: ", done.stdout, re.MULTILINE)  # fmt: skip
    assert "1 of 2 checks passed." in done.stdout
    assert "Failed: cube-nan." in done.stdout
    entries = {entry["check"]: entry["passed"] for entry in json.loads(file.read_text())["checks"]}
    assert entries == {"mask-bits": True, "cube-nan": False}


@full
def test_calibration_finds_constants_in_modelled_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it but the clock, which gives what the model says of a device with other constants."""
    shapes = [parse_shape(text) for text in QUICK]
    planted = iter(modelled(model_runs(), PLANTED))
    monkeypatch.setattr(times, "SHAPES", shapes)
    monkeypatch.setattr(times, "make_inputs", _inputs_of_the_cpu)
    monkeypatch.setattr(times, "cache_bytes", lambda device: 1 << 20)
    monkeypatch.setattr(times, "_HOST_CALLS", 1)
    monkeypatch.setattr(times, "make_timer", lambda device: None)
    monkeypatch.setattr(times, "npu_task_durations", lambda calls, copies, rounds: {})
    monkeypatch.setattr(
        times, "interleaved_medians",
        lambda calls, copies, rounds, timer: {name: Timing(*[next(planted) / 1e6] * 3) for name in calls},
    )  # fmt: skip
    monkeypatch.setattr(clocks, "is_emulated", lambda device: False)
    command, file = import_module("toptheta_npu.cli.verify"), tmp_path / "hour.json"
    command._calibrate(command.make_console(), command._header(), file)
    stored = json.loads(file.read_text())
    assert len(stored["times"]) == len(shapes) * len(times.VARIANTS)
    assert all(entry["host"] > 0 for entry in stored["times"])
    assert list(stored).index("gather_mask") < list(stored).index("constants")
    assert stored["gather_mask"].endswith("the figure of pto-isa (14).")
    found = read_constants(file).by_name
    assert found.keys() == PLANTED.keys()
    for name, constant in found.items():
        assert constant.value == pytest.approx(PLANTED[name], rel=0.05), name
    assert toptheta("benchmark", "--device", "host-model", "--constants", str(file), "--shape", QUICK[0]) == 0


def _inputs_of_the_cpu(shape: Shape, device: str, copies: int) -> Inputs:
    """A device would draw other queries and keys than the planted times are for."""
    inputs = make_inputs(shape, "cpu", copies)
    tensors = {
        name: getattr(inputs, name).to(device) for name in ("query", "threshold", "value_mean", "kept", "value_rows")
    }
    layers = [(key.to(device), value.to(device)) for key, value in inputs.layers]
    return replace(inputs, layers=layers, answers={k: v.to(device) for k, v in inputs.answers.items()}, **tensors)


def _main() -> None:
    found = {}
    for name, defect in _DEFECTS:
        os.environ.update(with_settings(defect=defect))
        (outcome,) = run_points(choose([name]), "npu", 300, lambda outcome: None, lambda: None)
        found[f"{name} {defect}"] = outcome.problem
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # after an error, torch_npu sometimes waits for ever when Python ends


if __name__ == "__main__":
    import torch_npu  # noqa: F401 (registers torch.npu)

    _main()
