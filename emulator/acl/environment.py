"""The environment of a process in which `import torch_npu` gives emulated devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..compile_cache import IMPORT_ROOT
from .settings import TORCH_NPU_PLACE, VARIABLE, with_settings

#: Of an installed CANN; with them torch_npu would look for parts of it.
REMOVED = ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_AICPU_PATH")
#: Of sitecustomize and the import hook.
HOOK = Path(__file__).resolve().parent / "hook"


def emulator_variables(
    libraries: Path,
    op_package: Path | None,
    settings: Mapping[str, object] | None = None,
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """List the variables to set on top of `base`; those in `REMOVED` are to be removed from it.

    Args:
        libraries: the folder that `build_libraries` returned.
        op_package: a vendor folder from `make_op_package`; None leaves ASCEND_CUSTOM_OPP_PATH as it is.
        settings: of the devices; those of `base` stay where none is given.
    """
    variables = {
        "PYTHONPATH": _join([HOOK, TORCH_NPU_PLACE, IMPORT_ROOT], base.get("PYTHONPATH")),
        "LD_LIBRARY_PATH": _join([libraries], base.get("LD_LIBRARY_PATH")),
        "PATH": _join([Path(sys.executable).parent], base.get("PATH")),
        # torch would import torch_npu in `import torch`, before anyone has asked for it
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        **with_settings(base, **{**(settings or {}), "libraries": libraries}),
    }
    if op_package is not None:
        variables["ASCEND_CUSTOM_OPP_PATH"] = _join([op_package], base.get("ASCEND_CUSTOM_OPP_PATH"))
    return variables


def in_emulator() -> bool:
    """Tell whether this process runs in the emulator's environment."""
    return VARIABLE in os.environ


def _join(paths: list[Path], existing: str | None) -> str:
    """Make a search path with `paths` first, each entry once."""
    entries = [*map(str, paths), *(existing or "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if entry))
