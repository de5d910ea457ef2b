"""Texts that the embedded model continues, on one process or with its cache spread over several."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from tests.models.tiny import left_padded
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.models import ContextParallelCache, NothingSparsifiedWarning, sparsify

NEW_TOKENS = 6
_PROSE = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this "
    "truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property "
    "of some one or other of their daughters. "
)
_CODE = (
    "def total(numbers):\n    result = 0\n    for number in numbers:\n        result += number\n    return result\n\n"
)

#: Options of `sparsify`, of the cache and of generate, and how many texts.
GENERATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "without VMC": {"sparsify": {"vmc": False}},
    "exp_threshold": {"sparsify": {"sdc": "exp_threshold"}},
    "post_softmax": {"placement": "post_softmax"},
    "one token per block": {"interleave": 1},
    "one rank has all": {"interleave": 4096},
    "padded batch": {"texts": 2, "interleave": 5},
    "beams": {"generate": {"num_beams": 3}},
    "short prompt": {"length": 1, "interleave": 2},
    "thresholded prompt": {"sparsify": {"prefill": "thresholded"}},
}


@lru_cache
def model_and_tokenizer() -> tuple[Any, Any]:
    return load_tiny_llama()


def prompt(texts: int, length: int | None) -> dict[str, torch.Tensor]:
    _, tokenizer = model_and_tokenizer()
    tokens = [tokenizer(text, return_tensors="pt").input_ids for text in (_PROSE * 3, _CODE * 4)[:texts]]
    return left_padded([each[:, :length] for each in tokens])


def generate(name: str, group: dist.ProcessGroup | None = None, *, sharded: bool) -> dict[str, Any]:
    """Tokens, the logits behind them and, of a spread cache, how many keys of each layer lie here."""
    options = GENERATIONS[name]
    model, _ = model_and_tokenizer()
    table = load_tiny_llama_thresholds(options.get("placement", "pre_softmax"))
    cache = (
        ContextParallelCache(model.config, interleave=options.get("interleave", 32), group=group) if sharded else None
    )
    with warnings.catch_warnings(), sparsify(model, table, k=32, **options.get("sparsify", {})):
        warnings.simplefilter("ignore", NothingSparsifiedWarning)  # the short prompt
        result = model.generate(
            **prompt(options.get("texts", 1), options.get("length")), max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True,
            past_key_values=cache, **options.get("generate", {}),
        )  # fmt: skip
    held = [layer.keys.shape[2] for layer in cache.layers] if cache is not None else []
    return {"tokens": result.sequences, "logits": torch.stack(result.logits), "held": held}
