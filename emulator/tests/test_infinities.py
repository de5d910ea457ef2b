"""Infinities in the lanes of vector instructions: found on request; no document says what a board makes of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emulator.ascendc import Kernel, KernelRun, run_kernel

SOURCE = Path(__file__).parent / "kernels" / "infinities.cpp"


def run(entry: str, lowest: float, *, refuse: bool) -> KernelRun:
    x = np.zeros(64, dtype=np.float32)
    x[5] = lowest
    y = np.empty_like(x)
    found = run_kernel(Kernel(SOURCE, entry, refuse_infinities=refuse), [("x", x, "in"), ("y", y, "out")])
    assert y[4:7].tolist() == [1.0, 0.0, 1.0]
    return found


def test_an_infinity_that_is_exponentiated_is_found_on_request() -> None:
    (finding,) = run("exponentiated", -np.inf, refuse=True).findings
    assert (finding.check, finding.call) == ("Parameter", "Exp")
    assert "holds an infinity" in str(finding)
    run("exponentiated", -np.inf, refuse=False).require_clean()


@pytest.mark.parametrize(("entry", "lowest"), [("bounded", -np.inf), ("exponentiated", -200.0)])
def test_one_that_a_bound_takes_away_is_none(entry: str, lowest: float) -> None:
    run(entry, lowest, refuse=True).require_clean()
