"""Calls of the operator without data: shapes and attributes that tiling accepts, and ways to change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from emulator.cann import Platform, TensorSpec, TilingResult
from toptheta_host_model import OPERATOR, tiling_fields


@dataclass(frozen=True)
class Call:
    inputs: Mapping[str, TensorSpec | None]
    attrs: Mapping[str, Any]
    outputs: Mapping[str, TensorSpec] = field(default_factory=dict)
    platform: Platform = field(default_factory=Platform)

    def with_inputs(self, **inputs: TensorSpec | None) -> Call:
        return replace(self, inputs={**self.inputs, **inputs})

    def with_attrs(self, **attrs: Any) -> Call:
        return replace(self, attrs={**self.attrs, **attrs})

    def run(self) -> TilingResult:
        return OPERATOR.run_tiling(self.inputs, self.attrs, self.platform, self.outputs)

    def fields(self) -> dict[str, Any]:
        return tiling_fields(self.run().tiling)


@dataclass(frozen=True)
class Shape:
    """Sizes of a call. ``paged`` is "", "4d" or "3d"; ``rows`` counts the rows of a sequence or the table's pages."""

    layout: str = "BNSD"
    batch: int = 2
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 32
    rows: int = 64
    dtype: str = "float16"
    paged: str = ""
    block_size: int = 0
    blocks: int = 9

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def capacity(self) -> int:
        return self.rows * self.block_size if self.paged else self.rows

    @property
    def query(self) -> tuple[int, ...]:
        by_layout = {
            "BNSD": (self.batch, self.heads, 1, self.head_dim),
            "BSND": (self.batch, 1, self.heads, self.head_dim),
            "BSH": (self.batch, 1, self.heads * self.head_dim),
        }
        return by_layout[self.layout]

    @property
    def cache(self) -> tuple[int, ...]:
        outer, rows = (self.blocks, self.block_size) if self.paged else (self.batch, self.rows)
        if self.paged == "3d" or (not self.paged and self.layout == "BSH"):
            return outer, rows, self.kv_heads * self.head_dim
        if self.paged or self.layout == "BNSD":
            return outer, self.kv_heads, rows, self.head_dim
        return outer, rows, self.kv_heads, self.head_dim

    @property
    def strides(self) -> tuple[int, int, int]:
        """Of sequence or block, head and row in a contiguous cache."""
        rows = self.block_size if self.paged else self.rows
        outer = self.kv_heads * rows * self.head_dim
        heads_first = self.paged == "4d" or (not self.paged and self.layout == "BNSD")
        if heads_first:
            return outer, rows * self.head_dim, self.head_dim
        return outer, self.head_dim, self.kv_heads * self.head_dim

    def call(self, *, lengths: str | None = None, starts: str | None = None, **attrs: Any) -> Call:
        """A valid call; ``lengths`` and ``starts`` are integer dtypes of those inputs."""
        inputs = {
            "query": TensorSpec(self.query, self.dtype),
            "key": TensorSpec(self.cache, self.dtype),
            "value": TensorSpec(self.cache, self.dtype),
            "threshold": TensorSpec((self.batch, self.heads), "float32"),
        }
        if self.paged:
            inputs["block_table"] = TensorSpec((self.batch, self.rows), "int32")
            lengths = lengths or "int32"
        if lengths:
            inputs["actual_seq_lengths"] = TensorSpec((self.batch,), lengths)
        if starts:
            inputs["key_start"] = TensorSpec((self.batch,), starts)
        fixed = {"num_heads": self.heads, "num_key_value_heads": self.kv_heads, "scale_value": 0.125,
                 "input_layout": self.layout, "block_size": self.block_size}  # fmt: skip
        return Call(inputs, {**fixed, **attrs})


def per_head(shape: Shape) -> TensorSpec:
    return TensorSpec((shape.batch, shape.heads), "float32")


def value_mean(shape: Shape) -> TensorSpec:
    return TensorSpec((shape.batch, shape.kv_heads, shape.head_dim), "float32")
