"""Top-Theta attention in vLLM: sparse decode steps; vLLM's own attention does everything else.

vLLM loads the plug-in through its entry point ``vllm.general_plugins``. It does nothing until vLLM's own configuration
has the key ``top_theta`` with ``tau``, or with a table of calibrated thresholds instead: ::

    vllm serve MODEL --additional-config '{"top_theta": {"tau": 0.0005}}'
    vllm serve MODEL --additional-config '{"top_theta": {"table": "model.theta", "k": 64}}'

``LLM(..., additional_config={"top_theta": {...}})`` takes the same. `settings.Settings` lists all settings.

A sequence with one new token is sparse in every full-attention layer. A sequence with drafts to verify is sparse in all
its new tokens. Prompts and chunks of them are dense unless ``prefill`` is "thresholded". Layers with a sliding window
stay dense, and so do drafts that an NPU cannot verify; the log names both. The engine refuses to start with a table of
another model, an untried version of vLLM, attention that Top-Theta does not cover, quantised caches or KV connectors.
"""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import Any

from ..errors import TopThetaNotImplementedError
from .settings import SECTION, is_configured

#: The module for each of vLLM's platforms, by the type of its device.
_SHIMS = {"cpu": "cpu", "npu": "ascend"}


def register() -> None:
    """Make vLLM's attention backend ask for the settings of an engine; vLLM calls this in each of its processes."""
    from vllm.platforms import current_platform

    shim = _SHIMS.get(current_platform.device_type)
    if shim is None:
        _refuse_on(current_platform)
    else:
        import_module(f".{shim}", __name__).install()


def _refuse_on(platform: Any) -> None:
    """Let no engine with settings start on a platform without a shim; works once in a process."""
    update = type(platform).check_and_update_config
    if hasattr(update, "__wrapped__"):
        return

    @wraps(update.__func__)
    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        if is_configured(vllm_config.additional_config):
            raise TopThetaNotImplementedError(
                "vllm", f"one of its platforms {', '.join(_SHIMS)}", platform.device_type,
                f"leave {SECTION!r} out of additional_config",
            )  # fmt: skip
        update.__func__(cls, vllm_config)

    type(platform).check_and_update_config = classmethod(check_and_update_config)
