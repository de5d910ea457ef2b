"""The kernel through the device path of a toolkit's headers, where each memory has pointers of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emulator.tests.real_headers import Core, TypeCheckError, type_check
from emulator.tests.real_headers_device import check, device_functions, llvm_ir, needs_device_path
from tests.op_kernel.operator_build import (
    COMBINATIONS,
    DTYPES,
    dtype_defines,
    edited_kernel,
    error_in_every_key,
    write_source,
)

pytestmark = needs_device_path
_each_core = pytest.mark.parametrize("core", ["vector", "cube"])
_each_dtypes = pytest.mark.parametrize("dtypes", COMBINATIONS.values(), ids=COMBINATIONS)
#: What a compiler writes on its own for a structure that is cleared or copied.
_OF_THE_COMPILER = {"memset", "memcpy"}


@_each_core
@_each_dtypes
@pytest.mark.parametrize("pointers", [True, False], ids=["pointers", "without-pointers"])
def test_kernel_passes_the_device_path(
    pointers: bool, dtypes: tuple[str, str, str], core: Core, tmp_path: Path
) -> None:
    check(write_source(tmp_path, pointers=pointers), core=core, defines=dtype_defines(*dtypes))


def test_every_key_passes_through_it(tmp_path: Path) -> None:
    kernel, keys = error_in_every_key(tmp_path)
    with pytest.raises(TypeCheckError) as refused:
        check(write_source(tmp_path, kernel=kernel), core="vector", defines=dtype_defines("half"))
    assert str(refused.value).count("error: static assertion failed") == keys == 7


@_each_core
def test_pointer_into_a_wrong_memory_is_refused(core: Core, tmp_path: Path) -> None:
    """A cast that forgets global memory: on a CPU all memories are one, so only the device path can tell."""
    kernel = edited_kernel(tmp_path, r"reinterpret_cast<__gm__ ", "reinterpret_cast<")
    source, defines = write_source(tmp_path, kernel=kernel), dtype_defines("half")
    type_check(source, core=core, defines=defines)
    with pytest.raises(TypeCheckError, match=r"op_kernel/\w+\.h:\d+:\d+: error: .*address_space"):
        check(source, core=core, defines=defines)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("key", "core"), [(12, "vector"), (13, "vector"), (3, "cube")])
def test_compiled_kernel_calls_the_device_alone(key: int, core: Core, dtype: str, tmp_path: Path) -> None:
    """No function of a C library, and no 64-bit floating point, in the keys that hold the code of all others."""
    ir = llvm_ir(write_source(tmp_path, key=key, behind=""), core=core, defines=dtype_defines(dtype))
    called = {plain_name(name) for name in re.findall(r"^declare [^@]*@([\w.]+)\(", ir, re.MULTILINE)}
    assert called & device_functions()
    foreign = {name for name in called - device_functions() if not name.startswith("llvm.")}
    assert foreign <= _OF_THE_COMPILER
    assert not re.search(r"\bdouble\b", ir)


def plain_name(mangled: str) -> str:
    """The name of a function without its arguments."""
    match = re.match(r"_Z(\d+)", mangled)
    return mangled[match.end() :][: int(match[1])] if match else mangled
