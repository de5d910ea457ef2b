"""Kills calibrations and starts them again; run as ``python -m tests.models.killed_calibration FOLDER SIGNAL COUNT``.

Writes FOLDER/report.json: per kill, what was left, and whether the table was the same in the end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from tests.calibration.parts import ESTIMATORS, seen_in
from tests.models.tiny import new_model, tokens
from toptheta_npu import _files
from toptheta_npu.models import calibrate

SEQUENCES = 7
OPTIONS: list[dict[str, Any]] = [
    {"estimator": estimator, **more}
    for estimator in ESTIMATORS
    for more in ({"row_fraction": 0.5}, {"placement": "post_softmax"})
]


MODEL = new_model()
INTERRUPTED = 9


def run(folder: Path, options: dict[str, Any], checkpoint_every: int | None) -> bytes:
    """Calibrates with its state in ``folder``, or without one, and returns the table's file."""
    kept = {"checkpoint": folder / "state", "checkpoint_every": checkpoint_every} if checkpoint_every else {}
    table = calibrate(MODEL, tokens(SEQUENCES, 14, seed=1), k=6, layer_k=[0, 0], **options, **kept)
    table.save(folder / "table")
    return (folder / "table").read_bytes()


def count_events(
    folder: Path,
    options: dict[str, Any],
    every: int,
    writing: bool,
    die_at: int | None = None,
    by: int = signal.SIGKILL,
) -> int:
    """Calls and returns of functions in a calibration; at the one numbered ``die_at`` the process sends itself ``by``.

    With ``writing`` only those count that write files.
    """
    events = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal events
        events += not writing or frame.f_code.co_filename == _files.__file__
        if die_at is not None and events >= die_at and frame.f_code is not again.__code__:
            os.kill(os.getpid(), by)

    def again(ignored: sys.UnraisableHookArgs) -> None:
        # Python drops an interrupt that falls into a generator's end or a finaliser, and the profile with it
        sys.setprofile(count)

    sys.unraisablehook = again
    sys.setprofile(count)
    run(folder, options, every)
    sys.setprofile(None)
    sys.unraisablehook = sys.__unraisablehook__
    return events


def kill(*arguments: Any) -> bool:
    """Whether a process of its own was killed in the middle of its calibration."""
    child = os.fork()
    if child == 0:
        try:
            count_events(*arguments)
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status in (signal.SIGKILL, INTERRUPTED << 8)


def main(folder: Path, by: int, kills: int) -> None:
    torch.set_num_threads(1)
    expected = []
    for index, options in enumerate(OPTIONS):
        (folder / f"whole-{index}").mkdir()
        expected.append(run(folder / f"whole-{index}", options, None))
    report, draw = [], random.Random(0)
    for number in range(kills):
        which, every, writing = number % len(OPTIONS), 1 + number % 2, number % 3 == 2
        counted, work = folder / f"counted-{number}", folder / f"kill-{number}"
        counted.mkdir()
        work.mkdir()
        events = count_events(counted, OPTIONS[which], every, writing)
        # spread over the work: one in each of as many parts of it
        die_at = 1 + int(events * (number + draw.random()) / kills)
        killed = kill(work, OPTIONS[which], every, writing, die_at, by)
        state = work / "state"
        seen = seen_in(state).sequences if state.exists() else 0
        beside = len([path for path in work.iterdir() if path.name.startswith(".toptheta")])
        same = run(work, OPTIONS[which], every) == expected[which]
        left = sorted(path.name for path in work.iterdir() if not path.name.startswith(".toptheta"))
        report.append({"killed": killed, "seen": seen, "beside": beside, "same": same, "left": left})
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
