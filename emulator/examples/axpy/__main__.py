"""Runs the operator of this folder on the host model, and again with a mistake: python -m emulator.examples.axpy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from emulator.ascendc import KernelRun, run_kernel
from emulator.cann import Operator, Platform, TensorSpec

_HERE = Path(__file__).resolve().parent
KERNEL = _HERE / "op_kernel" / "axpy.cpp"
OPERATOR = Operator(_HERE / "op_host", (_HERE / "op_kernel",))
#: A queue that is not waited for: the tensor of AllocTensor instead of that of DeQue.
MISTAKE = ("xs = xQueue.DeQue<float>()", "xs = xIn")
_PLATFORM = Platform()


def run(kernel: Path) -> KernelRun:
    """Tile and run z = 2 x + y, and compare it with numpy."""
    x = np.random.default_rng(0).random(48 * 4 * 1024, dtype=np.float32)
    y, z = np.ones_like(x), np.empty_like(x)
    spec = TensorSpec(x.shape, "float32")
    tiling = OPERATOR.run_tiling({"x": spec, "y": spec}, {"alpha": 2.0}, _PLATFORM)
    done = run_kernel(
        kernel,
        [("x", x, "in"), ("y", y, "in"), ("z", z, "out"),
         ("workspace", tiling.workspace - _PLATFORM.system_workspace, "workspace"), ("tiling", tiling.tiling, "in")],
        blocks=tiling.block_dim,
    )  # fmt: skip
    print("z is", "right" if (z == 2 * x + y).all() else "wrong")
    return done


def run_with_mistake(folder: Path) -> KernelRun:
    """Run a copy of the kernel in `folder`, without the wait."""
    copy = folder / KERNEL.name
    text = KERNEL.read_text()
    assert text.count(MISTAKE[0]) == 1
    copy.write_text(text.replace(*MISTAKE))
    (folder / "axpy_tiling.h").write_text(KERNEL.with_name("axpy_tiling.h").read_text())
    return run(copy)


if __name__ == "__main__":
    print(run(KERNEL).summary())
    with tempfile.TemporaryDirectory() as scratch:
        for finding in run_with_mistake(Path(scratch)).findings:
            print(finding)
