"""The thresholds of the study: those that ship with the model, and what the ablations need besides."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evaluation_study.commands import EQUAL_POST, EQUAL_PRE, SHIPPED, WITH_MASS
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.evaluation.corpus import token_windows
from toptheta_npu.models import calibrate, calibrate_discarded_mass
from toptheta_npu.thresholds import Placement

LENGTH, KS, ROW_FRACTION = 2560, (32, 64, 128), 0.25


def make(folder: Path, sequences: int) -> None:
    """Write every table of the study that is not there yet."""
    model, tokenizer = load_tiny_llama()
    texts = token_windows(tokenizer, "calibration", LENGTH, sequences)

    def file(name: str) -> Path:
        return folder / f"{name}.theta"

    for placement in SHIPPED:
        if not file(placement).exists():
            load_tiny_llama_thresholds(placement).save(file(placement))  # type: ignore[arg-type]
    if not file(WITH_MASS).exists():
        table = load_tiny_llama_thresholds("pre_softmax")
        calibrate_discarded_mass(model, table, texts, row_fraction=ROW_FRACTION).save(file(WITH_MASS))
    equal: dict[str, Placement] = {EQUAL_PRE: "pre_softmax", EQUAL_POST: "post_softmax"}
    for name, placement in equal.items():
        if not file(name).exists():
            calibrate(
                model, texts, k=KS, layer_k=[0] * model.config.num_hidden_layers, placement=placement,
                estimator="pooled", row_fraction=ROW_FRACTION, top_k_at_calibration=False,
            ).save(file(name))  # fmt: skip
