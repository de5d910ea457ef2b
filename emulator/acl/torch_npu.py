"""The unmodified torch_npu wheel, installed beside the virtual environment instead of into it."""

from __future__ import annotations

import fcntl
import logging
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..compile_cache import BUILD_ROOT
from .settings import TORCH_NPU_PLACE, TORCH_NPU_VERSION

_logger = logging.getLogger(__name__)


class SetupError(RuntimeError):
    """The emulator cannot be set up on this machine; the text has the reason and the remedy."""


def install_torch_npu() -> bool:
    """Install the pinned torch_npu without its dependencies; False if it is there already.

    Raises:
        SetupError: another version of torch is installed, or pip fails.
    """
    _check_torch()
    BUILD_ROOT.mkdir(parents=True, exist_ok=True)
    with (BUILD_ROOT / "torch_npu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if torch_npu_package().is_dir():
            return False
        _logger.info("installing torch_npu %s, a download of 40 MB", TORCH_NPU_VERSION)
        scratch = Path(tempfile.mkdtemp(prefix="torch_npu-", dir=BUILD_ROOT))
        try:
            _pip_install(scratch)
            shutil.rmtree(TORCH_NPU_PLACE, ignore_errors=True)
            scratch.rename(TORCH_NPU_PLACE)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return True


def torch_npu_package() -> Path:
    """Name the folder of the installed Python package."""
    return TORCH_NPU_PLACE / "torch_npu"


def torch_package() -> Path:
    """Find the folder of the torch that this Python imports, without importing it."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise SetupError(f"torch: expected version {TORCH_NPU_VERSION} for {sys.executable}, but there is none")
    return Path(spec.origin).parent


def _check_torch() -> None:
    try:
        installed = version("torch").split("+")[0]
    except PackageNotFoundError:
        installed = "none"
    if installed != TORCH_NPU_VERSION:
        raise SetupError(
            f"torch: expected {TORCH_NPU_VERSION}, for which torch_npu {TORCH_NPU_VERSION} was built, got {installed}; "
            f"pip install torch=={TORCH_NPU_VERSION}"
        )


def _pip_install(target: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--target", str(target), f"torch_npu=={TORCH_NPU_VERSION}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"pip cannot install torch_npu {TORCH_NPU_VERSION}\n{' '.join(command)}\n{done.stderr}")
    # pip's own bytecode is stale once it has moved the files here, and every import would compile them again
    subprocess.run([sys.executable, "-m", "compileall", "-qq", str(target)], capture_output=True, check=False)
