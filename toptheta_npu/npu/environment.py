"""Where the op package is, and the environment in which torch_npu and CANN find it.

torch_npu reads `ASCEND_CUSTOM_OPP_PATH` when it is imported, and CANN when its first device is initialised. So the
variable is set when this package is imported, ahead of torch, which may import torch_npu by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

VENDOR = "toptheta"
CUSTOM_PATH = "ASCEND_CUSTOM_OPP_PATH"
OPP_PATH = "ASCEND_OPP_PATH"
#: Set where the devices of torch_npu are emulated ones.
EMULATOR_VARIABLE = "ACL_EMULATOR"


@dataclass(frozen=True)
class Package:
    """A folder vendors/toptheta, as op_host/build.sh installs it, and what named it."""

    folder: Path
    found_by: str

    @property
    def library(self) -> Path:
        return self.folder / "op_api" / "lib" / "libcust_opapi.so"

    @property
    def header(self) -> Path:
        return self.folder / "op_api" / "include" / "aclnn_top_theta_incremental_attention.h"

    @property
    def adapter(self) -> Path:
        return self.folder / "torch" / "libtoptheta_npu_adapter.so"

    @property
    def export_line(self) -> str:
        return f"export {CUSTOM_PATH}={self.folder.absolute()}${{{CUSTOM_PATH}:+:${CUSTOM_PATH}}}"


@dataclass(frozen=True)
class Prepared:
    """What was done when this package was imported.

    Attributes:
        added: the folder that was put in front of `ASCEND_CUSTOM_OPP_PATH`, or None.
        too_late: torch_npu had been imported by then and had read the variable without it.
    """

    added: Path | None
    too_late: bool


def prefix_folder() -> Path:
    """Name the folder of the op package of this Python environment, for example of a virtual environment."""
    return Path(sys.prefix) / "opp" / "vendors" / VENDOR


def _candidates(environment: Mapping[str, str]) -> Iterator[Package]:
    for entry in environment.get(CUSTOM_PATH, "").split(":"):
        if Path(entry).name == VENDOR:
            yield Package(Path(entry), CUSTOM_PATH)
    yield Package(prefix_folder(), "the install prefix of Python")
    if environment.get(OPP_PATH):
        yield Package(Path(environment[OPP_PATH]).absolute() / "vendors" / VENDOR, OPP_PATH)


def find_package(environment: Mapping[str, str] | None = None) -> Package | None:
    """Find the op package: from ASCEND_CUSTOM_OPP_PATH, the install prefix, or ASCEND_OPP_PATH, in this order."""
    for package in _candidates(os.environ if environment is None else environment):
        if os.path.isdir(package.folder):  # not Path.is_dir, which raises where a folder may not be looked into
            return package
    return None


def has_emulated_devices() -> bool:
    """Tell whether NPU tensors live on emulated devices, whose times say nothing."""
    return EMULATOR_VARIABLE in os.environ


def searched_places() -> str:
    """Say in words where `find_package` looks."""
    return f"an entry of {CUSTOM_PATH} that ends in /{VENDOR}, {prefix_folder()}, or ${OPP_PATH}/vendors/{VENDOR}"


def prepare(environment: MutableMapping[str, str]) -> Prepared:
    """Put the op package in front of ASCEND_CUSTOM_OPP_PATH, and keep what is there."""
    package = find_package(environment)
    if package is None or package.found_by == CUSTOM_PATH:
        return Prepared(None, too_late=False)
    others = environment.get(CUSTOM_PATH, "")
    environment[CUSTOM_PATH] = f"{package.folder}:{others}" if others else str(package.folder)
    return Prepared(package.folder, too_late="torch_npu" in sys.modules)


PREPARED = prepare(os.environ)
