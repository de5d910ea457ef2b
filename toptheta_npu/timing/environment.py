"""What a result depends on besides the code: the device, its caches and clocks, versions, threads."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .clocks import is_emulated

#: Cube and vector cores by SoC; the others of the 910B class have 24 and 48.
_SMALLER = ("910B3", "910B4", "910_9362", "910_9372")
_NPU_L2_BYTES = 192 << 20  # of most 910B-class parts, where torch_npu does not tell


def free_bytes(device: str) -> float:
    """Read how much memory can still be allocated."""
    if device in ("cuda", "npu"):
        accelerator: Any = getattr(torch, device)
        return int(accelerator.mem_get_info()[0])
    free: float = math.inf
    if hasattr(os, "sysconf"):  # not on Windows
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable"):
            free = int(line.split()[1]) << 10
    return min(free, container_room(Path("/sys/fs/cgroup")))


def container_room(root: Path) -> float:
    """Count the bytes below the memory limit of this process's container (cgroup 2); infinite where there is none."""
    limit, used = ("".join(_lines(root / name)).strip() for name in ("memory.max", "memory.current"))
    if not (limit.isdigit() and used.isdigit()):
        return math.inf
    # what the kernel would give back first
    cached = [line.split()[1] for line in _lines(root / "memory.stat") if line.startswith("inactive_file ")]
    return max(0, int(limit) - int(used) + sum(map(int, cached)))


def cache_bytes(device: str) -> int:
    """Read the size of the last-level cache of a CPU, or of the L2 of an accelerator."""
    if device == "cpu":
        return last_level_cache_bytes()
    return int(getattr(_properties(device), "L2_cache_size", 0)) or _NPU_L2_BYTES


def last_level_cache_bytes(default: int = 32 << 20) -> int:
    """Read the size of the largest CPU cache, as Linux tells it."""
    sizes = [default]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes)


def device_name(device: str) -> str:
    """Read the name of a device, such as "Ascend910B2"."""
    if device == "cpu":
        return _cpuinfo("model name") or platform.processor() or platform.machine()
    accelerator: Any = getattr(torch, device)
    name = str(accelerator.get_device_name(0))
    return f"{name} (emulated)" if is_emulated(device) else name


def core_counts(soc: str) -> tuple[int, int]:
    """Look up the cube and vector cores of a 910B-class part.

    Example:
        >>> core_counts("Ascend910B4"), core_counts("Ascend910_9362"), core_counts("Ascend910B2")
        ((20, 40), (20, 40), (24, 48))
    """
    return (20, 40) if any(name in soc for name in _SMALLER) else (24, 48)


def environment(device: str) -> Mapping[str, object]:
    """Collect the stamp of a result. What cannot be read is left out."""
    stamp: dict[str, object] = {
        "device": device,
        "name": device_name(device),
        "cache_bytes": cache_bytes(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
    if device == "cpu":
        stamp |= {"cores": os.cpu_count(), "cpu_capability": torch.backends.cpu.get_cpu_capability()}
        stamp |= {"clock_mhz": _cpuinfo("cpu MHz"), "operators": _cpu_operators()}
    if device == "cuda":
        properties = _properties(device)
        stamp |= {"cuda": torch.version.cuda, "multiprocessors": properties.multi_processor_count}
    if device == "npu":
        stamp |= _npu_stamp()
    return stamp


def _cpu_operators() -> str | None:
    """Tell what runs the operators on the CPU, such as "native (avx512)"."""
    from ..cpu.backend import CPU_SELECTOR
    from ..cpu.info import what_runs

    return what_runs(CPU_SELECTOR, probe=False).found


def _npu_stamp() -> dict[str, object]:
    from .._info import backend_info

    properties = _properties("npu")
    counts = {name: getattr(properties, name, None) for name in ("cube_core_num", "vector_core_num")}
    found = {finding.name: finding.found for finding in backend_info().findings}
    return {name: value for name, value in (counts | found).items() if value}


def _properties(device: str) -> Any:
    accelerator: Any = getattr(torch, device)
    return accelerator.get_device_properties(0)


def _cpuinfo(name: str) -> str | None:
    """Read a value of the first core, as Linux tells it."""
    values = (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith(name))
    return next(values, None)


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
