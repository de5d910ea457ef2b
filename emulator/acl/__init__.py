"""An ACL runtime on host memory, over which the unmodified torch_npu wheel runs on any CPU.

`python -m emulator run COMMAND` is the usual way in; `load` is for a Python that is already running.
"""

from ..compile_cache import CompileError
from .environment import emulator_variables, in_emulator
from .libraries import build_libraries
from .load import load
from .op_package import default_op_package, make_op_package, op_library
from .program import build_program
from .project import PROJECT_FILE, Project, ProjectError, find_project, read_project
from .settings import with_settings
from .torch_npu import SetupError, install_torch_npu

__all__ = [
    "PROJECT_FILE",
    "CompileError",
    "Project",
    "ProjectError",
    "SetupError",
    "build_libraries",
    "build_program",
    "default_op_package",
    "emulator_variables",
    "find_project",
    "in_emulator",
    "install_torch_npu",
    "load",
    "make_op_package",
    "op_library",
    "read_project",
    "with_settings",
]
