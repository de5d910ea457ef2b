"""Tiny random models, thresholds for them, and an attention function written with the oracle alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StaticCache,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from toptheta_npu.fallback import reference
from toptheta_npu.fallback.compensation import Compensation
from toptheta_npu.models import GrowingCache, calibrate
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.hook.architecture import sliding_layers
from toptheta_npu.thresholds import ThresholdTable

VOCABULARY = 97
K = 8

_CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"use_sliding_window": False}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"use_sliding_window": False}),
}


def new_model(kind: str = "llama", seed: int = 0, layers: int = 2, **options: object) -> PreTrainedModel:
    """A random model whose scores spread by a few units, so that attention is neither flat nor one-hot."""
    config_class, model_class, extra = _CLASSES[kind]
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
        "initializer_range": 0.1, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    config = config_class(**{**sizes, **extra, **options})
    torch.manual_seed(seed)
    return model_class(config).eval()


@lru_cache
def model_of(kind: str = "llama") -> PreTrainedModel:
    """A model shared by many tests: every context has to leave it as it was."""
    return new_model(kind)


@lru_cache
def table_of(kind: str = "llama", placement: str = "pre_softmax", k: int = K) -> ThresholdTable:
    return calibrate(model_of(kind), tokens(6, 80, seed=1), k=k, layer_k=[0, 0], placement=placement)


#: How a cache keeps its rows: copied for each token, with room behind them, or in tensors of a fixed size.
CACHES = ("dynamic", "growing", "static")


def new_cache(kind: str, length: int = 64) -> DynamicCache | StaticCache:
    if kind == "static":
        return StaticCache(config=model_of().config, max_cache_len=length)
    return {"dynamic": DynamicCache, "growing": GrowingCache}[kind]()


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def left_padded(sequences: list[Tensor]) -> dict[str, Tensor]:
    """input_ids and attention_mask of sequences [1, n_i], padded on the left."""
    longest = max(sequence.shape[1] for sequence in sequences)
    rows = [torch.nn.functional.pad(sequence[0], (longest - sequence.shape[1], 0)) for sequence in sequences]
    mask = [torch.arange(longest) >= longest - sequence.shape[1] for sequence in sequences]
    return {"input_ids": torch.stack(rows), "attention_mask": torch.stack(mask).long()}


def eager_attention(module, query, key, value, mask, **options):
    """The implementation in the file of the model, which is the only one of transformers that knows sinks."""
    if mask is None:
        mask = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool).tril()
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key, value, torch.zeros(()).where(mask, -torch.inf), dropout=0.0, **options)


@contextmanager
def oracle_attention(
    model: PreTrainedModel,
    table: ThresholdTable,
    *,
    first_row: int = 0,
    vmc: bool = True,
    sdc: str = "exact",
) -> Iterator[None]:
    """Whole sequences of one length: dense rows up to ``first_row``, then the oracle row by row in float64.

    Layers with a sliding window are dense.
    """
    at_k, sliding = table.at(K), sliding_layers(model)

    def attention(module, query, key, value, mask, dropout=0.0, scaling=None, **kwargs):
        sink = kwargs.get("s_aux")
        dense = sdpa_attention_forward if sink is None else eager_attention
        out, _ = dense(module, query, key, value, mask, scaling=scaling, **kwargs)
        key, value = key.double(), value.double()
        for row in range(first_row, query.shape[2] if module.layer_idx not in sliding else 0):
            n = row + 1
            theta = at_k.theta[module.layer_idx][n].double().expand(len(query), -1)
            rows = reference.Rows(query[:, :, row].double(), key[:, :, :n], value[:, :, :n], theta, scale_value=scaling)
            mean = value[:, :, :n].mean(2) if vmc else None
            compensation = Compensation(sdc, value_mean=mean, learnable_sink=sink)
            result = reference.incremental_attention(rows, compensation, placement=table.placement)
            out[:, row] = result.out.float()
        return out, None

    AttentionInterface.register("toptheta_test_oracle", attention)
    AttentionMaskInterface.register("toptheta_test_oracle", sdpa_mask)
    original = model.config._attn_implementation
    model.set_attn_implementation("toptheta_test_oracle")
    try:
        yield
    finally:
        model.set_attn_implementation(original)


PROMPT = tokens(1, 20, seed=7)
NEW = 12
#: Drafts by prompt lookup: transformers 5.0 looks for the token that ends an answer whether or not one is set.
LOOKUP = {"prompt_lookup_num_tokens": 3, "eos_token_id": VOCABULARY - 1}


def generate(model, *, ids: Tensor = PROMPT, new: int = NEW, **options) -> Tensor:
    options = {"do_sample": False, **options}
    return model.generate(ids, max_new_tokens=new, min_new_tokens=new, **options)


def drafting(assistant):
    """An assistant that drafts several tokens at a time, however unsure it is."""
    assistant.generation_config.assistant_confidence_threshold = 0.0
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.num_assistant_tokens = 4
    return assistant


def step_logits(model, ids: Tensor, prompt: int, cache=None, **options) -> Tensor:
    """Logits of the prompt's last row and of one decode step after the other."""
    cache = DynamicCache() if cache is None else cache
    parts = [model(ids[:, :prompt], **{CACHE_ARGUMENT: cache}, **options).logits[:, -1:]]
    for position in range(prompt, ids.shape[1]):
        parts.append(model(ids[:, position : position + 1], **{CACHE_ARGUMENT: cache}, **options).logits)
    return torch.cat(parts, dim=1)
