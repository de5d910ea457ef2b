"""The architectures that are converted: their tensors by their names in transformers, and their configurations.

What llama.cpp writes and takes for each: convert_hf_to_gguf.py and src/llama-model.cpp of
https://github.com/ggml-org/llama.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Sizes:
    """The sizes and numbers of a model.

    Attributes:
        tied: it has no output weights of its own.
        window: tokens that a layer with a sliding window sees; 0 where there are none.
        window_rope_base, rope_factor: the base of these layers' rotation, and the factor by which positions are
            divided in the others.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    longest: int
    vocabulary: int
    epsilon: float
    rope_base: float
    tied: bool
    window: int = 0
    window_rope_base: float = 0.0
    rope_factor: float = 1.0

    @property
    def by_name(self) -> dict[str, int]:
        """Give the lengths of which the shapes of tensors are made."""
        return {
            "vocabulary": self.vocabulary, "hidden": self.hidden, "inner": self.inner, "head_dim": self.head_dim,
            "queries": self.heads * self.head_dim, "keys": self.kv_heads * self.head_dim,
        }  # fmt: skip


class Target(NamedTuple):
    """What a tensor of the file becomes: its name in transformers, its shape, and its name within its layer."""

    name: str
    shape: tuple[int, ...]
    part: str


#: A tensor's name in transformers, and its shape by the names of `Sizes.by_name`.
Tensors = Mapping[str, tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class Architecture:
    """An architecture, as a GGUF file names it before its settings.

    Attributes:
        title: as people write it.
        model: its class in transformers.
        configuration: what its configuration says besides what all do.
        of_layer: the tensors of a layer by their names in the file.
        needed, counts, reals: settings besides those that all have; the needed ones are counts.
        without_effect: values of further settings that change nothing.
        pairs: rows of the query and key weights lie as pairs in the file, the halves of a head in transformers.
        norms_plus: what the weights of norms have more in the file.
    """

    title: str
    model: str
    configuration: Callable[[Sizes], dict[str, Any]]
    of_layer: Tensors
    needed: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    reals: tuple[str, ...] = ()
    without_effect: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    pairs: bool = False
    norms_plus: float = 0.0

    def tensors(self, sizes: Sizes) -> dict[str, Target]:
        """List all tensors of a file with a model of these sizes, by their names there."""
        lengths = sizes.by_name
        found = {
            name: Target(target, tuple(lengths[each] for each in shape), name)
            for name, (target, shape) in _ONCE.items()
            if not (sizes.tied and name == "output.weight")
        }
        for layer in range(sizes.layers):
            for part, (target, shape) in self.of_layer.items():
                of_layer = tuple(lengths[each] for each in shape)
                found[f"blk.{layer}.{part}"] = Target(f"model.layers.{layer}.{target}", of_layer, part)
        return found


#: The tensors that are there once, in every architecture.
_ONCE: Tensors = {
    "token_embd.weight": ("model.embed_tokens.weight", ("vocabulary", "hidden")),
    "output_norm.weight": ("model.norm.weight", ("hidden",)),
    "output.weight": ("lm_head.weight", ("vocabulary", "hidden")),
}
_MATRICES: Tensors = {
    "attn_q.weight": ("self_attn.q_proj.weight", ("queries", "hidden")),
    "attn_k.weight": ("self_attn.k_proj.weight", ("keys", "hidden")),
    "attn_v.weight": ("self_attn.v_proj.weight", ("keys", "hidden")),
    "attn_output.weight": ("self_attn.o_proj.weight", ("hidden", "queries")),
    "ffn_gate.weight": ("mlp.gate_proj.weight", ("inner", "hidden")),
    "ffn_up.weight": ("mlp.up_proj.weight", ("inner", "hidden")),
    "ffn_down.weight": ("mlp.down_proj.weight", ("hidden", "inner")),
}
_NORMS: Tensors = {
    "attn_norm.weight": ("input_layernorm.weight", ("hidden",)),
    "ffn_norm.weight": ("post_attention_layernorm.weight", ("hidden",)),
}
_NORMS_OF_HEADS: Tensors = {
    "attn_q_norm.weight": ("self_attn.q_norm.weight", ("head_dim",)),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", ("head_dim",)),
}
_BIASES: Tensors = {
    "attn_q.bias": ("self_attn.q_proj.bias", ("queries",)),
    "attn_k.bias": ("self_attn.k_proj.bias", ("keys",)),
    "attn_v.bias": ("self_attn.v_proj.bias", ("keys",)),
}
_NORMS_AROUND: Tensors = {
    "attn_norm.weight": ("input_layernorm.weight", ("hidden",)),
    "post_attention_norm.weight": ("post_attention_layernorm.weight", ("hidden",)),
    "ffn_norm.weight": ("pre_feedforward_layernorm.weight", ("hidden",)),
    "post_ffw_norm.weight": ("post_feedforward_layernorm.weight", ("hidden",)),
}
#: Of Gemma 3: every sixth layer sees all tokens, and the largest model divides its scores by another number.
_GEMMA_PATTERN, _GEMMA_27B_LAYERS = 6, 62


def _one_rotation(sizes: Sizes) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": sizes.rope_base}}


def _gemma3(sizes: Sizes) -> dict[str, Any]:
    scaled: dict[str, Any] = {"rope_type": "default"}
    if sizes.rope_factor != 1:
        scaled = {"rope_type": "linear", "factor": sizes.rope_factor}
    kinds = ["sliding_attention" if (layer + 1) % _GEMMA_PATTERN else "full_attention" for layer in range(sizes.layers)]
    is_27b = sizes.layers == _GEMMA_27B_LAYERS
    return {
        "sliding_window": sizes.window,
        "layer_types": kinds,
        "query_pre_attn_scalar": sizes.hidden // sizes.heads if is_27b else sizes.head_dim,
        "rope_parameters": {
            "full_attention": {**scaled, "rope_theta": sizes.rope_base},
            "sliding_attention": {"rope_type": "default", "rope_theta": sizes.window_rope_base},
        },
    }


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        "LLaMA", "LlamaForCausalLM", _one_rotation, {**_MATRICES, **_NORMS}, pairs=True,
        # that of every LLaMA in GGUF
        without_effect={"tensor_data_layout": ("Meta AI original pth",)},
    ),
    "gemma3": Architecture(
        "Gemma 3", "Gemma3ForCausalLM", _gemma3, {**_MATRICES, **_NORMS_AROUND, **_NORMS_OF_HEADS},
        needed=("attention.sliding_window",), reals=("rope.freq_base_swa", "rope.scaling.factor"),
        without_effect={"attention.sliding_window_pattern": (_GEMMA_PATTERN,)}, norms_plus=1.0,
    ),
    "qwen2": Architecture("Qwen 2", "Qwen2ForCausalLM", _one_rotation, {**_MATRICES, **_NORMS, **_BIASES}),
    "qwen3": Architecture("Qwen 3", "Qwen3ForCausalLM", _one_rotation, {**_MATRICES, **_NORMS, **_NORMS_OF_HEADS}),
}  # fmt: skip
