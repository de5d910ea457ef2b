"""The kernel's modelled times by constants that others have published, beside our own: does the threshold still pay?

    python -m benchmarks.modelled.public_tables

hicann/ge, the graph engine of CANN, plans fused kernels by a table of costs per API, measured on this generation
(compiler/graph/optimize/autofuse/att/gen_model_info/api_perf_register/v1/perf_param_v1.cpp). It has lower rates of the
memory and longer starts than the documents that our constants come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.tables import Table, show
from toptheta_npu.timing.shapes import PAPER
from toptheta_npu.verify.gather_mask import READINGS

from .calls import Call, run_call

_CORES = 48
#: hicann/ge, of loads: bytes a cycle and core, for long rows and for short ones (Load, LoadSmallBlk).
_RATE, _SHORT_RATE = 9.9074 + 15.896 / _CORES, 7.9052 + 7.31 / _CORES
_ROW_BYTES = 256
GE: Mapping[str, float] = {
    "rate_cold": _RATE, "shared_cold": _CORES * _RATE,
    "cube_rate_cold": 2 * _RATE,  # no figure of its own: a cube core loads for two vector cores
    "scattered_row_bytes": _ROW_BYTES * (_RATE / _SHORT_RATE - 1),
    "read_latency_cold": 882.09 + 15.89 * _CORES,  # the head of MTE2
    "write_latency": 497.36,  # that of MTE3
    "dma_command": 27.01,
    "vector_head": 37.37,
    "vector_repeat": 1.3,  # Add, Sub, Mul: 0.0206 cycles for each of 64 lanes
}  # fmt: skip
#: The cost model of pto-isa has another figure for one instruction that the threshold test needs.
PTO: Mapping[str, float] = {"gather_mask_repeat": READINGS["pto-isa"]}
TABLES: Mapping[str, Mapping[str, float]] = {"documents": {}, "hicann/ge": GE, "and pto-isa": {**GE, **PTO}}

_GROUPED = replace(PAPER, num_heads=32, num_key_value_heads=8)
CALLS = (
    Call(PAPER),
    *(Call(replace(_GROUPED, n=n, k=k)) for n, k in ((2048, 128), (8192, 512), (32768, 2048), (32768, 512))),
    Call(replace(_GROUPED, n=32768, k=512), variant="sampled-softmax"),
)


def gains(call: Call) -> dict[str, tuple[float, float]]:
    """Compute the cold time in microseconds, and the gain over the kernel at θ = -inf, by each table of constants."""
    everything = replace(call, shape=replace(call.shape, k=call.shape.n), variant="")
    kept, dense = run_call(call).run, run_call(everything).run
    times = {
        name: [run.timeline("cold", **constants).microseconds for run in (kept, dense)]
        for name, constants in TABLES.items()
    }
    return {name: (own, all_ / own) for name, (own, all_) in times.items()}


def table() -> Table:
    """Tabulate every call by every table of constants."""
    rows = []
    for call in CALLS:
        found = gains(call)
        shape = call.shape
        rows.append([
            f"{shape.num_heads}/{shape.num_key_value_heads}", str(shape.n), str(shape.k),
            call.variant or "pre-softmax", *(f"{time:.1f} ({gain:.2f})" for time, gain in found.values()),
        ])  # fmt: skip
    return Table("By constants of others", ("heads", "n", "k", "placement", *TABLES), rows)


if __name__ == "__main__":
    show(table())
