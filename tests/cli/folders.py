"""Models on the disk, for commands."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.models.tiny import new_model
from toptheta_npu.assets import TINY_LLAMA


def save_model(folder: Path, kind: str = "llama", **options: object) -> Path:
    """A tiny random model with the tokenizer of the embedded one."""
    sizes = {"layers": 3, "vocab_size": 2048, "bos_token_id": 0, "eos_token_id": 0}
    new_model(kind, **{**sizes, **options}).save_pretrained(folder)  # type: ignore[arg-type]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY_LLAMA / name, folder)
    return folder
