"""The models of the study."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from toptheta_npu.errors import TopThetaValueError

SMOLLM2, GEMMA = Path("build") / "real-model" / "smollm2", Path("build") / "gemma3" / "gemma3"


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer in float32.

    Raises:
        TopThetaValueError: there is no such folder.
    """
    if not (folder / "config.json").exists():
        raise TopThetaValueError("--model", "the folder of the model", f"no {folder}", "run: make real-model")
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval(), AutoTokenizer.from_pretrained(folder)
