"""A device with known constants: the model itself."""

from __future__ import annotations

import torch

from toptheta_npu.timing.host_model import ModelledRun
from toptheta_npu.timing.inputs import make_inputs
from toptheta_npu.timing.shapes import parse_shape
from toptheta_npu.verify.times import VARIANTS, model_of

PLANTED = {
    "gather_mask_repeat": 13.0, "vector_repeat": 1.2,
    "launch_microseconds": 9.0, "launch_mixed_microseconds": 20.0, "shared_cold": 48 * 13.0, "rate_cold": 13.0,
    "scattered_row_bytes": 120.0, "sync_all_microseconds": 2.6, "cross_core_flag": 330.0,
}  # fmt: skip
#: Small ones, which the host model runs in a few seconds together; those of the command take longer.
QUICK = (
    "heads=64/8,n=2048,k=64,head_dim=16", "heads=64/8,n=8192,k=64,head_dim=16",
    "heads=48,n=256,k=16", "heads=48,n=1024,k=128", "heads=48,n=1024,k=128,head_dim=64", "heads=4,n=2048,k=128",
    "heads=20,n=512,k=64", "heads=16/4,n=1024,k=64", "heads=16/4,n=4096,k=64", "heads=8/2,n=1024,k=64",
    "heads=8/2,n=512,k=64,query_tokens=4",
)  # fmt: skip


@torch.no_grad()
def model_runs() -> list[ModelledRun]:
    """Every variant of every quick shape."""
    inputs = [make_inputs(parse_shape(text), "cpu", copies=1) for text in QUICK]
    return [model_of(each, variant, (24, 48)) for each in inputs for variant in VARIANTS]
