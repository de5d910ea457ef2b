"""Top-Theta attention in vLLM: decode rows by calibrated thresholds, everything else in vLLM's own attention.

vLLM finds the plug-in by its entry point ``vllm.general_plugins``. It does nothing until it is told ``tau``, or a table
of calibrated thresholds in its place, by environment variables, ::

    TOPTHETA_VLLM_TAU=0.0005 vllm serve MODEL
    TOPTHETA_VLLM_TABLE=model.theta TOPTHETA_VLLM_K=64 vllm serve MODEL

or in vLLM's own configuration, which wins over the environment: ::

    vllm serve MODEL --additional-config '{"toptheta": {"table": "model.theta", "k": 64}}'

``LLM(..., additional_config={"toptheta": {...}})`` takes the same. The settings are those of `settings.Settings`; as
variables they are written in capitals after ``TOPTHETA_VLLM_``. Among them are ``tau``, ``table``, ``k`` or
``target_kept``, ``dense_below``, ``sdc``, ``vmc``, ``prefill`` and ``dense_layers``.

A sequence with one new token is sparse in every layer that sees all tokens, and so is each token of one whose drafts
are verified. Prompts and chunks of them are dense unless ``prefill`` is "thresholded". Layers with a sliding window
stay dense and are named in the log, as are drafts that an NPU cannot verify. On a CPU, ``--kv-cache-dtype
int8_per_token_head`` halves the cache. What cannot be right stops the engine at its start: a table of another model,
a version of vLLM that has not been tried, attention that Top-Theta does not cover, fp8 caches and KV connectors.
"""

from __future__ import annotations

from importlib import import_module

from ..errors import TopThetaNotImplementedError
from .refusals import tell_at_the_end, tells_why
from .settings import is_configured, read_settings

#: The module for each of vLLM's platforms, by the type of its device.
_SHIMS = {"cpu": "cpu", "npu": "ascend"}


def register() -> None:
    """Make vLLM's attention backend ask for the settings of an engine; vLLM calls this in each of its processes.

    Raises:
        TopThetaTypeError, TopThetaValueError: a setting in the environment is wrong.
        TopThetaNotImplementedError: the environment asks for Top-Theta on a platform that has no shim.
    """
    tell_at_the_end()
    _register()


@tells_why
def _register() -> None:
    read_settings()
    from vllm.platforms import current_platform

    shim = _SHIMS.get(current_platform.device_type)
    if shim is not None:
        import_module(f".{shim}", __name__).install()
    elif is_configured():
        raise TopThetaNotImplementedError(
            "vllm", f"one of its platforms {', '.join(_SHIMS)}", current_platform.device_type,
            "unset the variables TOPTHETA_VLLM_*",
        )  # fmt: skip
