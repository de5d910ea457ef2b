"""Where the emulator keeps what it installs and builds."""

from __future__ import annotations

from ..compile_cache import BUILD_ROOT

TORCH_NPU_VERSION = "2.13.0"
#: A folder of its own, because in a virtual environment torch_npu would make `import torch` fail without CANN.
TORCH_NPU_PLACE = BUILD_ROOT / f"torch_npu-{TORCH_NPU_VERSION}"
