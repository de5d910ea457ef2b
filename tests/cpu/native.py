"""The native CPU backend without its builder: each level compiled here, and the operators over one of them."""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import toptheta_npu.cpu
from emulator.compile_cache import cached_folder, compiler_version, default_compiler, run_compiler
from tests.helpers import Inputs, by_sequence, lse_of_rows, of_tokens
from toptheta_npu.cpu import operators
from toptheta_npu.fallback.arguments import TABLE

SOURCE = Path(toptheta_npu.cpu.__file__).with_name("source")
ELEMENTS = {"float32": "Float32", "float16": "Float16", "bfloat16": "BFloat16"}
_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "popcnt")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
#: What makes the compiler use an instruction set.
LEVELS = {
    "avx512": tuple(f"-m{name}" for name in (*_AVX512, *_AVX2)),
    "avx2": tuple(f"-m{name}" for name in _AVX2),
    "neon": ("-march=armv8.2-a+fp16",),
    "neon_bf16": ("-march=armv8.2-a+fp16+bf16",),
}
#: What /proc/cpuinfo has to say where programs with it run.
_CPU_FLAGS = {
    "avx512": {*_AVX512, *_AVX2} - {"bmi"} | {"bmi1"},
    "avx2": {*_AVX2} - {"bmi"} | {"bmi1"},
    "neon": {"asimd", "asimdhp"},
    "neon_bf16": {"asimd", "asimdhp", "bf16"},
}
_IS_AARCH64 = platform.machine() == "aarch64"
_X86_LEVELS, _AARCH64_LEVELS = ("avx512", "avx2"), ("neon", "neon_bf16")
_EMULATED = () if _IS_AARCH64 else _AARCH64_LEVELS
_CROSS_COMPILER, _EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"


def _parameter(level: str) -> Any:
    reason = _why_not(level)
    marks = [pytest.mark.skipif(bool(reason), reason=reason)]
    if level in _EMULATED:
        marks.append(pytest.mark.aarch64)
    return pytest.param(level, marks=marks)


def _why_not(level: str) -> str:
    """Why programs of this level cannot be built or run here; empty if they can."""
    if level in _EMULATED:
        absent = [tool for tool in (_CROSS_COMPILER, _EMULATOR) if shutil.which(tool) is None]
        return f"no {' and no '.join(absent)} on this machine" if absent else ""
    absent = sorted(_CPU_FLAGS[level] - _cpu_flags())
    return f"this CPU has no {', '.join(absent)}" if absent else ""


@functools.cache
def _cpu_flags() -> frozenset[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


#: Parameters of pytest: levels that run in this process, and those of which a program of its own runs.
OWN_LEVELS = [_parameter(level) for level in (_AARCH64_LEVELS if _IS_AARCH64 else _X86_LEVELS)]
EMULATED_LEVELS = [_parameter(level) for level in _EMULATED]
ALL_LEVELS = OWN_LEVELS + EMULATED_LEVELS


def launcher(level: str) -> list[str]:
    """The words before a program of this level."""
    return [_EMULATOR, "-cpu", "max"] if level in _EMULATED else []


def compiled(name: str, level: str, flags: tuple[str, ...], sources: tuple[Path, ...]) -> Path:
    """The file that a compiler makes for this level, kept for the same sources and flags."""
    compiler, more = default_compiler(), ("-w",)  # g++ 12 warns of its own headers for AVX-512
    if level in _AARCH64_LEVELS:
        more = ("-Wall", "-Wextra", "-Werror")
    if level in _EMULATED:
        compiler, more = _CROSS_COMPILER, (*more, "-static")  # the emulator has no libraries of the other machine
    command = [compiler, "-std=c++17", "-pthread", *LEVELS[level], *more, *flags, f"-I{SOURCE}", *map(str, sources)]
    inputs = [*command, compiler_version(compiler), *sources, *sorted(SOURCE.iterdir())]
    folder = cached_folder(f"cpu-{name}", inputs, lambda folder: run_compiler([*command, "-o", str(folder / name)]))
    return folder / name


@functools.cache
def entry(dtype: str, level: str) -> Callable[[bytes], int]:
    """The entry point of the library that users get, for one dtype and level."""
    flags = ("-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno")
    unit, element = SOURCE / "incremental_attention.cpp", f"-DTOPTHETA_ELEMENT={ELEMENTS[dtype]}"
    library = ctypes.CDLL(str(compiled(f"{dtype}-{level}.so", level, (*flags, element), (unit,))))
    function: Any = library.toptheta_incremental_attention
    function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int32
    return function  # type: ignore[no-any-return]


@contextmanager
def using(level: str, *, threads: int | None = None) -> Iterator[None]:
    """Within it the native operators run this level, on so many threads of PyTorch's."""
    with mock.patch.object(operators, "function", lambda dtype: entry(str(dtype).removeprefix("torch."), level)):
        if threads is None:
            yield
            return
        with mock.patch.object(operators, "thread_count", return_value=threads):
            yield


def operator_arguments(inputs: Inputs) -> dict[str, Any]:
    """What the public functions make of the arguments of a case."""
    given = {name: value for name, value in inputs.arguments.items() if name != "block_size"}
    for name in ("actual_seq_lengths", "actual_query_lengths"):
        if isinstance(given.get(name), list):
            given[name] = torch.tensor(given[name])
    scale = inputs.case.head_dim**-0.5 if inputs.case.scale is None else inputs.case.scale
    heads = {"num_heads": inputs.case.heads, "num_key_value_heads": inputs.case.kv_heads}
    return given | heads | {"scale_value": scale}


def partial_arguments(inputs: Inputs, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same for the whole row as one part, from `operator_arguments`. A part is told what a sample would tell."""
    taken = [name for name, argument in TABLE.items() if "incremental_attention_partial" in argument.about.operators]
    part = {name: value for name, value in arguments.items() if name in taken}
    if inputs.case.query_tokens > 1 or "actual_query_lengths" in arguments:
        part["actual_seq_lengths"] = keys_of_part(inputs)
    if inputs.case.placement != "pre_softmax":
        part |= {"placement": "post_softmax", "lse": of_tokens(inputs.case, lse_of_rows(inputs))}
    return part


def keys_of_part(inputs: Inputs) -> Tensor:
    """The keys that each row sees of the whole row as one part, [B] or [B, Sq]."""
    lengths = inputs.rows.lengths
    return lengths if inputs.case.query_tokens == 1 else by_sequence(inputs.case, lengths)


def same_bits(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Whether results are equal bit for bit, NaNs too."""
    return all(
        a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )
