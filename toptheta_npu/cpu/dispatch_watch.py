"""Finds out if anything watches a thread's calls: only otherwise may the native library be called past PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad, profiler

_dispatch_keys, _modes = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set
_PLAIN_TYPES = {Tensor, torch.nn.Parameter}


def _bits(*names: str) -> int:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, names[0]))
    for name in names[1:]:
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return keys.raw_repr()


#: The dispatcher's keys of a CPU tensor that holds its numbers itself, and those of a thread that nothing watches.
_PLAIN_TENSOR = _bits("CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU")
_PLAIN_THREAD = _bits("BackendSelect", "ADInplaceOrView")


def is_watched() -> bool:
    """Tell whether a profiler, a mode, a tracer, a transform or forward-mode differentiation sees a thread's calls.

    Observers that register with PyTorch's record functions alone, as its ExecutionTraceObserver, are not known.
    """
    if torch._C._autograd._profiler_enabled() or profiler._is_profiler_enabled or torch._C._len_torch_function_stack():
        return True
    if forward_ad._current_level >= 0:
        return True
    modes: int = _modes().raw_repr()
    return modes | _PLAIN_THREAD != _PLAIN_THREAD


def plain_keys(tensor: Any) -> int:
    """Return the dispatcher's keys of a CPU tensor that holds its numbers itself; 0 for all else."""
    if type(tensor) not in _PLAIN_TYPES:
        return 0
    keys: int = _dispatch_keys(tensor).raw_repr()
    return keys if keys | _PLAIN_TENSOR == _PLAIN_TENSOR else 0
