"""The instruction sets that the CPU kernel is compiled for, and those that this machine runs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ..errors import TopThetaBackendError, TopThetaValueError, shown

VARIABLE = "TOPTHETA_CPU_LEVEL"
_CPUINFO = Path("/proc/cpuinfo")
#: Where /proc/cpuinfo says what a core has, by the name of the machine.
_KEYS = {"x86_64": "flags", "aarch64": "Features"}


@dataclass(frozen=True)
class Level:
    """An instruction set that the kernel is compiled for.

    Attributes:
        name: as TOPTHETA_CPU_LEVEL names it.
        machine: "x86_64" or "aarch64".
        needs: what the CPU has to have, in the words of /proc/cpuinfo.
        compiler_flags: for g++ and clang++.
    """

    name: str
    machine: str
    needs: frozenset[str]
    compiler_flags: tuple[str, ...]


def _level(name: str, machine: str, needs: str, compiler_flags: str) -> Level:
    return Level(name, machine, frozenset(needs.split()), tuple(compiler_flags.split()))


_AVX2 = ("avx2 fma f16c bmi1 bmi2 popcnt", "-mavx2 -mfma -mf16c -mbmi -mbmi2 -mpopcnt")
_AVX512 = (f"avx512f avx512bw avx512dq avx512vl {_AVX2[0]}", f"-mavx512f -mavx512bw -mavx512dq -mavx512vl {_AVX2[1]}")
# a compiler for ARMv8.2 also uses what that version made mandatory
_NEON = ("asimd fphp asimdhp crc32 atomics asimdrdm", "-march=armv8.2-a+fp16")
#: By name; the better comes before the worse.
LEVELS = {
    level.name: level
    for level in (
        _level(
            "avx512_bf16", "x86_64", f"avx512_bf16 avx512_vnni {_AVX512[0]}", f"{_AVX512[1]} -mavx512bf16 -mavx512vnni"
        ),
        _level("avx512", "x86_64", *_AVX512),
        _level("avx2", "x86_64", *_AVX2),
        _level("neon_bf16", "aarch64", f"bf16 {_NEON[0]}", f"{_NEON[1]}+bf16"),
        _level("neon", "aarch64", *_NEON),
    )
}


def available() -> tuple[str, ...]:
    """List the levels that this machine runs, best first; none where they are not known.

    Example:
        >>> set(available()) <= set(LEVELS)
        True
    """
    machine, flags = platform.machine(), cpu_flags()
    return tuple(level.name for level in LEVELS.values() if level.machine == machine and level.needs <= flags)


def cpu_flags() -> frozenset[str]:
    """Read what all cores have, in the words of /proc/cpuinfo; nothing where there is no such file."""
    key = _KEYS.get(platform.machine())
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    cores = [
        frozenset(text.split()) for name, _, text in (line.partition(":") for line in lines) if name.strip() == key
    ]
    return frozenset.intersection(*cores) if cores else frozenset()


def chosen() -> Level:
    """Choose the level that TOPTHETA_CPU_LEVEL forces, or the best that this machine runs.

    Raises:
        TopThetaValueError: the variable names no level.
        TopThetaBackendError: this machine does not run it, or runs none.
    """
    forced, found = os.environ.get(VARIABLE), available()
    if forced and forced not in LEVELS:
        raise TopThetaValueError(VARIABLE, f"one of {', '.join(LEVELS)}", shown(forced))
    if forced and forced not in found:
        expected = f"one of the levels that this CPU runs ({', '.join(found) or 'none'})"
        raise TopThetaBackendError(VARIABLE, expected, repr(forced), "unset it")
    if not found:
        raise TopThetaBackendError(
            "CPU", "AVX2, FMA and F16C on x86-64 or FP16 arithmetic on aarch64, in /proc/cpuinfo",
            f"{platform.system()} on {platform.machine()}, {'without them' if cpu_flags() else 'which lists nothing'}",
            "run the PyTorch fallback: set TOPTHETA_BACKEND to cpu=fallback",
        )  # fmt: skip
    return LEVELS[forced or found[0]]
