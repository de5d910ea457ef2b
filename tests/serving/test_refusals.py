"""The reason of a refusal is the last line of the log, though the process that refuses is not the first one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import only
from toptheta_npu import TopThetaValueError
from toptheta_npu.vllm import refusals

#: Like vLLM: processes start others, which log their own error and end, and the first one fails with another.
_ENGINE = """
import multiprocessing, os, sys, traceback
from toptheta_npu import TopThetaValueError
from toptheta_npu.vllm.refusals import tell_at_the_end, tells_why

@tells_why
def start_rank(number):
    if FAILS:
        raise TopThetaValueError("k", "32 to 512", "4096", f"choose another, rank {number}")

def start_engine(method):
    tell_at_the_end()
    context = multiprocessing.get_context(method)
    ranks = [context.Process(target=run, args=(start_rank, number)) for number in range(2)]
    for rank in ranks:
        rank.start()
        rank.join()
    raise SystemExit(any(rank.exitcode for rank in ranks))

def run(function, argument):
    tell_at_the_end()
    function(argument)

if __name__ == "__main__":
    tell_at_the_end()
    engine = multiprocessing.get_context(sys.argv[1]).Process(target=run, args=(start_engine, sys.argv[1]))
    engine.start()
    engine.join()
    if engine.exitcode:
        raise RuntimeError("Engine core initialization failed. See root cause above.")
    print("STARTED")
"""


def start(folder: Path, method: str, fails: bool) -> subprocess.CompletedProcess[str]:
    """Run the engine in a folder whose temporary files are its own."""
    script, temporary = folder / "engine.py", folder / "temporary"
    script.write_text(_ENGINE.replace("FAILS", str(fails)))
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, str(script), method], capture_output=True, text=True, env=environment, timeout=300
    )
    assert not list(temporary.iterdir())
    return done


@pytest.mark.parametrize("method", only({"fork"}, ["fork", "spawn"]))
def test_the_reason_is_the_last_line(method: str, tmp_path: Path) -> None:
    done = start(tmp_path, method, fails=True)
    assert done.returncode == 1
    *above, last = done.stderr.splitlines()
    assert last == "Top-Theta: the engine did not start: k: expected 32 to 512, got 4096; choose another, rank 0"
    assert "See root cause above." in above[-1]


def test_an_engine_that_starts_says_nothing(tmp_path: Path) -> None:
    done = start(tmp_path, "fork", fails=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "STARTED\n", "")


def test_the_error_itself_goes_on_where_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_TOPTHETA_REFUSAL", raising=False)

    @refusals.tells_why
    def refuse() -> None:
        raise TopThetaValueError("k", "32 to 512", "4096")

    with pytest.raises(TopThetaValueError, match="k: expected 32 to 512, got 4096"):
        refuse()


def test_other_errors_are_not_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("_TOPTHETA_REFUSAL", str(tmp_path / "reason"))

    @refusals.tells_why
    def fail() -> None:
        raise RuntimeError("something of vLLM's own")

    with pytest.raises(RuntimeError, match="own"):
        fail()
    assert not (tmp_path / "reason").exists()
