"""A transformers model that a user names: looked at before its weights are loaded, so that errors come first."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..._files import status
from ..._gguf import gguf_in, how_to_convert, is_gguf
from ...errors import TopThetaError, TopThetaValueError
from ...thresholds.kinds import MAX_LENGTH

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("auto", "float32", "bfloat16", "float16")

#: What to do where a model cannot be loaded.
FOLDER = "give the folder that save_pretrained wrote"


@dataclass(frozen=True)
class Candidate:
    """A model that can be calibrated, as far as its configuration tells.

    Attributes:
        name: of the folder, without those above it, or on the Hub.
        where: what transformers loads it from.
        config: of the whole model.
        skeleton: the model on the meta device, in evaluation mode.
        longest: its positions; where it does not say, as many as a row may have.
    """

    name: str
    where: str
    config: Any
    skeleton: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    trust_remote_code: bool

    @property
    def longest(self) -> int:
        text_config = self.config.get_text_config(decoder=True)
        most = getattr(text_config, "max_position_embeddings", None)
        return most if isinstance(most, int) and most > 0 else MAX_LENGTH


def look_at_model(model: str, trust_remote_code: bool) -> Candidate:
    """Load a model's configuration, tokenizer and architecture, not its weights, by its folder or name on the Hub.

    Raises:
        TopThetaValueError: something is missing or cannot be read; the message says what.
        TopThetaNotImplementedError: `toptheta_npu.models.sparsify` does not support the architecture.
    """
    from transformers import AutoTokenizer

    where, config, skeleton = look_at_config(model, trust_remote_code)
    tokenizer = _found(where, "tokenizer", AutoTokenizer.from_pretrained, trust_remote_code)
    name = Path(where).resolve().name if os.path.isdir(where) else model
    return Candidate(name, where, config, skeleton, tokenizer, trust_remote_code)


def look_at_config(model: str, trust_remote_code: bool) -> tuple[str, Any, PreTrainedModel]:
    """Load a model's configuration, and make it on the meta device: where it is, and both.

    Raises:
        TopThetaValueError, TopThetaNotImplementedError: as `look_at_model`.
    """
    from transformers import AutoConfig

    be_quiet()
    folder = Path(model).expanduser()
    if _is_path(model):
        check_folder(folder)
    where = str(folder) if os.path.isdir(folder) else model
    config = _found(where, "configuration", AutoConfig.from_pretrained, trust_remote_code)
    return where, config, _skeleton(model, config, trust_remote_code)


def look_at(model: str | None, trust_remote_code: bool) -> Candidate:
    """Call `look_at_model`, on the embedded model where none is named."""
    from ...assets import TINY_LLAMA

    return look_at_model(str(TINY_LLAMA), False) if model is None else look_at_model(model, trust_remote_code)


def default_dtype(model: str | None) -> str:
    """Choose the dtype of the checkpoint. The embedded model is used in float32, as elsewhere."""
    return "float32" if model is None else "auto"


def load_weights(candidate: Candidate, dtype: str, device: str) -> PreTrainedModel:
    """Load the model itself, in evaluation mode; ``device`` "auto" spreads its layers by accelerate.

    Raises:
        TopThetaValueError: the weights cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": candidate.trust_remote_code}
    if device == "auto":
        options["device_map"] = "auto"
    try:
        network: torch.nn.Module = AutoModelForCausalLM.from_pretrained(candidate.where, **options)
        if device != "auto":
            network = network.to(device)
    # whatever foreign files make transformers stumble over
    except Exception as error:
        expected = "weights that transformers can load"
        raise TopThetaValueError("MODEL", expected, f"{candidate.where} ({_reason(error)})", FOLDER) from error
    return network.eval()  # type: ignore[return-value]


def _is_path(model: str) -> bool:
    """Tell whether a name can only be one of a folder: it is there, or the Hub has no such names."""
    known = os.path.exists(os.path.expanduser(model)) or model.lower().endswith(".gguf")
    return known or model.startswith((".", "/", "~")) or model.count("/") > 1


def check_folder(
    folder: Path, what: str = "the folder of a model, or its name on the Hub", remedy: str = "correct the path"
) -> None:
    """Raise TopThetaValueError unless a folder with a configuration is there."""
    found = status(folder, what, "MODEL")
    if found is None or not stat.S_ISDIR(found.st_mode):
        if found is not None and is_gguf(folder):
            raise TopThetaValueError("MODEL", what, f"{folder}, a GGUF file", how_to_convert(folder))
        got = f"{folder}, which is not there" if found is None else f"{folder}, a file"
        raise TopThetaValueError("MODEL", what, got, remedy)
    if status(folder / "config.json", "a configuration", "MODEL") is None:
        gguf = gguf_in(folder)
        remedy = FOLDER if gguf is None else how_to_convert(gguf)
        raise TopThetaValueError("MODEL", "a folder with config.json", f"{folder} without it", remedy)


def _found(where: str, what: str, load: Callable[..., Any], trust_remote_code: bool) -> Any:
    try:
        return load(where, trust_remote_code=trust_remote_code)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        raise _not_found(where, what, error) from error


def _not_found(where: str, what: str, error: Exception) -> TopThetaValueError:
    reason = _reason(error)
    if "custom code" in reason or "trust_remote_code" in str(error):
        expected, got = f"a {what} that transformers knows", f"{where}, which brings code of its own"
        return TopThetaValueError("MODEL", expected, got, "add --trust-remote-code if you trust it")
    if not os.path.isdir(where):
        remedy = "correct the name, give a folder, or download the model first: hf download NAME"
        return TopThetaValueError("MODEL", f"a {what} here or on the Hub", f"{where} ({reason})", remedy)
    return TopThetaValueError("MODEL", f"a {what} that transformers can load", f"{where} ({reason})", FOLDER)


def _skeleton(model: str, config: Any, trust_remote_code: bool) -> PreTrainedModel:
    """Make the model without weights; check that its architecture is supported."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from ...models.hook.attach import check_model

    remote = trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not remote:
        kinds = ", ".join(config.architectures or []) or f"model type {config.model_type}"
        remedy = "use a decoder-only model such as LLaMA, Mistral or Qwen"
        raise TopThetaValueError("MODEL", "a causal language model", f"{model} ({kinds})", remedy)
    try:
        with torch.device("meta"):
            skeleton: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=trust_remote_code
            )
        skeleton.train(False)
        check_model(skeleton)
    except TopThetaError:
        raise
    # whatever a foreign configuration makes transformers stumble over
    except Exception as error:
        expected = "a configuration that transformers can build"
        raise TopThetaValueError("MODEL", expected, f"{model} ({_reason(error)})", FOLDER) from error
    return skeleton


def _reason(error: Exception) -> str:
    """Return the first line of what was raised, without the point that ends it."""
    return (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".: ")


def be_quiet() -> None:
    """Keep bars and retries of transformers out of our lines."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
