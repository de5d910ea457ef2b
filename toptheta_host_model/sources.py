"""Where the operator's sources are, and its host side for the emulator."""

from __future__ import annotations

from pathlib import Path

from emulator.cann import Operator

_REPOSITORY = Path(__file__).resolve().parents[1]
KERNEL_SOURCE = _REPOSITORY / "op_kernel" / "top_theta_incremental_attention.cpp"
OPERATOR = Operator(_REPOSITORY / "op_host", (KERNEL_SOURCE.parent,))
#: What `emulator` reads of the op package: sources, vendor and the adapter that is built into it.
PROJECT_FILE = _REPOSITORY / "emulator.json"
