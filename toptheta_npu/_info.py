"""Which backend each device uses, what is missing, and how to fix it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ._backends import BACKENDS, Selector
from ._findings import Finding
from .cpu import info as cpu_info
from .cpu.backend import CPU_SELECTOR
from .errors import TopThetaValueError
from .fallback.schemas import SCHEMAS
from .npu import info as npu_info
from .npu import loading
from .npu.backend import NPU_SELECTOR
from .triton.backend import CUDA_SELECTOR, what_cuda_runs


@dataclass(frozen=True)
class BackendInfo:
    """The result of `backend_info`.

    Attributes:
        backend: the choice for NPU tensors: "npu", "auto" or "fallback".
        loaded: the op package whose adapter is loaded in this process, or None.
        findings: what NPU tensors need, in the order in which they need it.
        cpu_backend: the choice for CPU tensors: "auto", "native" or "fallback".
        cpu_findings: the findings for CPU tensors; the last one says what an operator runs.
        cuda_backend: the choice for CUDA tensors: "auto", "triton" or "fallback".
        cuda_findings: what an operator runs for CUDA tensors.
    """

    backend: str
    loaded: str | None
    findings: tuple[Finding, ...]
    cpu_backend: str
    cpu_findings: tuple[Finding, ...]
    cuda_backend: str
    cuda_findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether NPU tensors can run the op package, as far as the findings show."""
        return all(finding.good for finding in self.findings)

    def to_json(self) -> str:
        """Write everything as JSON, for bug reports."""
        return json.dumps(asdict(self) | {"usable": self.usable}, indent=2)


def backend_info(*, probe: bool = False) -> BackendInfo:
    """Tell what the operators run on a CPU and a GPU, and what an NPU needs. Builds nothing and touches no device.

    Args:
        probe: whether to test more, which takes seconds: build the CPU kernel for float32 unless it exists, then
            import torch_npu and list its devices in a separate process.

    Example:
        >>> import toptheta_npu
        >>> [finding.name for finding in toptheta_npu.backend_info().findings]
        ['toptheta_npu', 'Python', 'torch', 'torch_npu', 'CANN', 'op package', 'adapter', 'backend']
        >>> [finding.name for finding in toptheta_npu.backend_info().cpu_findings]
        ['instruction set', 'compiler', 'cache', 'threads', 'operators']
    """
    npu, loaded = _chosen(NPU_SELECTOR), loading.loaded()
    return BackendInfo(
        backend=npu.found or BACKENDS["npu"][0],
        loaded=None if loaded is None else str(loaded.folder),
        findings=(*npu_info.findings(SCHEMAS, probe=probe), npu),
        cpu_backend=_chosen(CPU_SELECTOR).found or BACKENDS["cpu"][0],
        cpu_findings=cpu_info.findings(CPU_SELECTOR, probe=probe),
        cuda_backend=_chosen(CUDA_SELECTOR).found or BACKENDS["cuda"][0],
        cuda_findings=(what_cuda_runs(CUDA_SELECTOR, probe=probe),),
    )


def _chosen(selector: Selector) -> Finding:
    try:
        return Finding("backend", selector.backend)
    except TopThetaValueError as error:
        return Finding("backend", None, str(error), "unset TOPTHETA_BACKEND")
