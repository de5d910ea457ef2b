"""A host model of Ascend C: runs unmodified kernel sources on a CPU, checks them and models their time.

`run_kernel` compiles and runs a kernel; README.md beside this file has an example.
"""

from ..compile_cache import CompileError
from .arguments import Argument, ArgumentError, Role, sparse_array
from .build import Kernel, build_kernel, sanitizer_environment
from .library import cost_constants
from .results import Finding, KernelError, SyncSite, Traffic
from .run import KernelRun, LaunchError, Mode, run_kernel
from .timeline import COLUMNS, Column, CoreTimes, Timeline

__all__ = [
    "COLUMNS",
    "Argument",
    "ArgumentError",
    "Column",
    "CompileError",
    "CoreTimes",
    "Finding",
    "Kernel",
    "KernelError",
    "KernelRun",
    "LaunchError",
    "Mode",
    "Role",
    "SyncSite",
    "Timeline",
    "Traffic",
    "build_kernel",
    "cost_constants",
    "run_kernel",
    "sanitizer_environment",
    "sparse_array",
]
