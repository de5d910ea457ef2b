"""The version and place of torch_npu, and the settings of emulated devices in the environment's one variable."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..compile_cache import BUILD_ROOT

TORCH_NPU_VERSION = "2.13.0"
#: A folder of its own, because in a virtual environment torch_npu would make `import torch` fail without CANN.
TORCH_NPU_PLACE = BUILD_ROOT / f"torch_npu-{TORCH_NPU_VERSION}"
#: "libraries=FOLDER;devices=2", for runtime/settings.cpp and the import hook; only the emulator's environment has it.
VARIABLE = "ACL_EMULATOR"
#: Those of the devices, in the order of the page that explains them.
NAMES = ("soc", "devices", "memory_mb", "vector_cores", "asynchronous", "checks", "fill", "trace", "defect")


def current_settings(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Read the settings of this process, or of another environment."""
    return dict(part.split("=", 1) for part in base.get(VARIABLE, "").split(";") if part)


def with_settings(base: Mapping[str, str] = os.environ, **changes: object) -> dict[str, str]:
    """Make the variable for a process whose settings differ from those of `base`.

    Args:
        base: an environment.
        **changes: by name, as the options of `python -m emulator run`; None takes a setting away.

    Raises:
        ValueError: a setting that there is not, or a value that the variable cannot hold.

    Example:
        >>> with_settings({}, devices=2, fill=None)
        {'ACL_EMULATOR': 'devices=2'}
    """
    wanted = {name: value for name, value in (current_settings(base) | changes).items() if value is not None}
    for name, value in wanted.items():
        if name not in (*NAMES, "libraries"):
            raise ValueError(f"settings: expected some of {', '.join(NAMES)}, got {name!r}")
        if ";" in str(value):
            raise ValueError(f"{name}: expected a value without a semicolon, got {value!r}")
    return {VARIABLE: ";".join(f"{name}={int(value) if isinstance(value, bool) else value}"
                               for name, value in wanted.items())}  # fmt: skip
