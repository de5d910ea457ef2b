"""PyTorch's threads: how many, and the OpenMP runtime that holds them."""

from __future__ import annotations

import ctypes
import os
import re

import torch

from .._libraries import mapped_files

_RUNTIME = re.compile(r"/(libgomp|libiomp5|libomp)\b[^/]*\.so[^/]*$")
_forked = False


def thread_count() -> int:
    """Choose a call's threads: PyTorch's number, or one in a forked child, where a parallel region waits for ever."""
    return 1 if _forked else torch.get_num_threads()


def run_in_parallel() -> int:
    """Find the address of GOMP_parallel in the OpenMP runtime that PyTorch has loaded; 0 where there is none.

    All runtimes on Linux have this function. A second runtime beside PyTorch's would have threads of its own. They
    would fight with PyTorch's for the cores.
    """
    for path in loaded_runtimes():
        library = ctypes.CDLL(path)  # it is loaded, so this only looks it up
        if hasattr(library, "GOMP_parallel"):
            return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
    return 0


def loaded_runtimes() -> list[str]:
    """List the OpenMP runtimes in this process by their paths."""
    return [path for path in mapped_files() if _RUNTIME.search(path)]


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):  # not on Windows, where no process forks
    os.register_at_fork(after_in_child=_note_fork)
