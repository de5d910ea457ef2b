"""The shapes of a comparison: the default tables, and the user's own shapes as text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from .._checks import HEAD_DIMS, KERNEL_PAGE_ROWS, KERNEL_STEP, MAX_TOKENS
from ..errors import TopThetaValueError, shown

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
DEVICES = ("cpu", "cuda", "npu")
EXAMPLE = "batch=1,heads=32/8,n=8192,k=512,head_dim=128,dtype=bfloat16,block_size=128"
_LARGEST = 2**31 - 1
#: Fields of another name in the text.
_TEXT_KEYS = {"num_heads": "heads", "num_key_value_heads": "heads"}
_KEYS = ("batch", "heads", "n", "k", "head_dim", "dtype", "block_size", "cache", "query_tokens")
#: What a cache may be beside one of the query's dtype.
_CACHES = ("", "int8")


@dataclass(frozen=True)
class Shape:
    """One decode step: ``batch`` sequences of ``n`` keys each, ``k`` kept per query head and token.

    ``block_size`` belongs to a paged cache; 0 means a contiguous one [batch, num_key_value_heads, n, head_dim].
    ``cache`` "int8" also compares int8 caches with scales per channel, beside caches of ``dtype``. ``query_tokens`` is
    the number per sequence; their keys are its last ones. A token that sees fewer than k keys keeps all of them.

    Raises:
        TopThetaValueError: a value is impossible, such as k > n; the message names it.

    Example:
        >>> shape = Shape(1, 48, 48, n=2048, k=128)
        >>> shape.key_bytes
        25165824
        >>> str(shape)
        'batch=1,heads=48/48,n=2048,k=128,head_dim=128,dtype=float16,block_size=0'
    """

    batch: int
    num_heads: int
    num_key_value_heads: int
    n: int
    k: int
    head_dim: int = 128
    dtype: str = "float16"
    block_size: int = 0
    cache: str = ""
    query_tokens: int = 1

    def __post_init__(self) -> None:
        for name in ("batch", "num_heads", "num_key_value_heads", "n", "k"):
            if not 1 <= getattr(self, name) <= _LARGEST:
                raise TopThetaValueError(name, f"a number from 1 to {_LARGEST}", shown(getattr(self, name)))
        if self.k > self.n:
            raise TopThetaValueError("k", f"at most n = {self.n}", str(self.k), "keep fewer, or add keys")
        if self.num_heads % self.num_key_value_heads:
            raise TopThetaValueError(
                "heads", "query heads that are a multiple of the KV heads", self.heads, "such as heads=32/8"
            )
        if not HEAD_DIMS[0] <= self.head_dim <= HEAD_DIMS[1]:
            raise TopThetaValueError("head_dim", f"{HEAD_DIMS[0]} to {HEAD_DIMS[1]}", shown(self.head_dim))
        if self.dtype not in DTYPES:
            raise TopThetaValueError("dtype", f"one of {', '.join(DTYPES)}", shown(self.dtype))
        if not 0 <= self.block_size <= _LARGEST:
            raise TopThetaValueError("block_size", "0 (contiguous) or rows per block", shown(self.block_size))
        if self.cache not in _CACHES:
            raise TopThetaValueError("cache", "int8, or nothing for a cache of dtype", shown(self.cache))
        self._check_query_tokens()

    def _check_query_tokens(self) -> None:
        if not 1 <= self.query_tokens <= MAX_TOKENS:
            raise TopThetaValueError(
                "query_tokens", f"a number from 1 to {MAX_TOKENS}", shown(self.query_tokens), "split longer drafts"
            )
        if self.query_tokens > self.n:
            raise TopThetaValueError(
                "query_tokens", f"at most n = {self.n}, since their keys are among the n", str(self.query_tokens),
                "take fewer tokens, or add keys",
            )  # fmt: skip

    def __str__(self) -> str:
        return (
            f"batch={self.batch},heads={self.heads},n={self.n},k={self.k},head_dim={self.head_dim},"
            f"dtype={self.dtype},block_size={self.block_size}"
            + (f",cache={self.cache}" if self.cache else "")
            + (f",query_tokens={self.query_tokens}" if self.query_tokens > 1 else "")
        )

    @property
    def heads(self) -> str:
        return f"{self.num_heads}/{self.num_key_value_heads}"

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_key_value_heads

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one K or V row of one head."""
        return self.head_dim * self.torch_dtype.itemsize

    @property
    def key_bytes(self) -> int:
        """Bytes of all valid K rows of a layer; V has as many."""
        return self.batch * self.num_key_value_heads * self.n * self.row_bytes

    @property
    def blocks(self) -> int:
        """Blocks per sequence of a paged cache."""
        return -(-self.n // self.block_size) if self.block_size else 0

    @property
    def layer_bytes(self) -> int:
        """Bytes of a layer's K and V cache, with the rest of each last block."""
        rows = self.blocks * self.block_size or self.n
        return 2 * self.batch * self.num_key_value_heads * rows * self.row_bytes

    @property
    def int8_layer_bytes(self) -> int:
        """Bytes of a layer's int8 K and V; 0 without."""
        return self.layer_bytes // self.torch_dtype.itemsize if self.cache else 0


def parse_shape(text: str) -> Shape:
    """Parse a shape from text such as ``heads=32/8,n=8192``.

    heads and n are required. The defaults are k n/16, batch 1, head_dim 128, dtype float16, block_size 0 (contiguous),
    a cache of dtype, and query_tokens 1.

    Raises:
        TopThetaValueError: a key is unknown, missing, given twice or has an unusable value; the message names it.

    Example:
        >>> parse_shape("heads=32/8,n=8192,dtype=bfloat16").k
        512
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in _KEYS:
            raise TopThetaValueError(
                "--shape", f"name=value with {', '.join(_KEYS)}", shown(part), f"such as {EXAMPLE}"
            )
        if name in given:
            raise TopThetaValueError("--shape", f"{name} once", f"{shown(given[name])} and {shown(value)}")
        given[name] = value
    for name in ("heads", "n"):
        if name not in given:
            raise TopThetaValueError("--shape", f"a value for {name}", shown(text), f"such as {EXAMPLE}")
    heads, _, kv_heads = given.pop("heads").partition("/")
    dtype, cache = given.pop("dtype", "float16"), given.pop("cache", "")
    try:
        numbers: dict[str, Any] = {name: _whole(name, value) for name, value in given.items()}
        numbers.setdefault("k", max(1, numbers["n"] // 16))
        return Shape(
            batch=numbers.pop("batch", 1), num_heads=_whole("heads", heads),
            num_key_value_heads=_whole("heads", kv_heads or heads), dtype=dtype, cache=cache, **numbers,
        )  # fmt: skip
    # lest a field be taken for an option of its name
    except TopThetaValueError as error:
        raise error.retold(f"{_TEXT_KEYS.get(error.argument, error.argument)} in --shape", str) from None


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TopThetaValueError(name, "a whole number", shown(text), f"such as {EXAMPLE}") from None


#: The paper's point: 48 heads of 128, 2048 keys, 128 kept.
PAPER = Shape(1, 48, 48, n=2048, k=128)
_GROUPED = Shape(1, 32, 8, n=8192, k=512)
_WIDE = Shape(1, 64, 8, n=8192, k=512)
_LENGTHS = (2048, 8192, 32768, 131072)
_HALVES = ("float16", "bfloat16")


def _in_halves(shape: Shape) -> tuple[Shape, ...]:
    return tuple(replace(shape, dtype=dtype) for dtype in _HALVES)


#: The default table of cuda and npu, and of the model of time.
SHAPES: tuple[Shape, ...] = (
    *_in_halves(PAPER),
    replace(PAPER, block_size=128),
    *(replace(base, n=n, k=n // 16) for base in (_GROUPED, _WIDE) for n in _LENGTHS),
    replace(_GROUPED, n=131072, k=512),
    replace(_GROUPED, dtype="bfloat16"),
    *(replace(shape, block_size=128) for shape in _in_halves(_GROUPED)),
    replace(_GROUPED, n=32768, k=2048, block_size=128),
    replace(PAPER, batch=4),
    *(replace(_GROUPED, batch=batch) for batch in (4, 16, 64)),
    replace(_GROUPED, batch=16, block_size=128),
    replace(_GROUPED, batch=64, n=2048, k=128, dtype="bfloat16", block_size=128),
)
#: What two cores measure in a minute: the usual points in every dtype, a few of the others, and a layer of a small
#: model with a long cache.
CPU_SHAPES: tuple[Shape, ...] = (
    *(replace(base, dtype=dtype) for base in (PAPER, replace(_GROUPED, k=128)) for dtype in ("float32", *_HALVES)),
    *(replace(_GROUPED, n=n, k=n // 16, dtype="bfloat16") for n in (2048, 8192, 32768)),
    replace(_GROUPED, n=2048, k=128, batch=4, dtype="bfloat16"),
    replace(_GROUPED, dtype="bfloat16", block_size=128),
    replace(_GROUPED, n=32768, k=128, batch=4, head_dim=64, dtype="bfloat16"),
)


def default_shapes(device: str) -> tuple[Shape, ...]:
    """Choose the table of a device."""
    return CPU_SHAPES if device == "cpu" else SHAPES


def check_for_device(shape: Shape, device: str) -> None:
    """Refuse a shape that a device does not take, before anything is allocated.

    Raises:
        TopThetaValueError: the device does not take it; the message names the field.
    """
    if shape.cache and device not in ("cpu", "npu"):
        raise TopThetaValueError(
            f"cache in {shape}", f"the cache of dtype on {device}", shape.cache,
            "compare int8 caches on a CPU or an NPU",
        )  # fmt: skip
    if device != "npu":
        return
    if shape.dtype == "float32":
        raise TopThetaValueError(f"dtype in {shape}", "float16 or bfloat16 on an NPU", shape.dtype)
    step, caches = (2 * KERNEL_STEP, " with int8") if shape.cache else (KERNEL_STEP, "")
    if shape.head_dim % step:
        wanted = f"a multiple of {step}{caches} on an NPU"
        raise TopThetaValueError(f"head_dim in {shape}", wanted, str(shape.head_dim))
    if shape.block_size % KERNEL_STEP or shape.block_size > KERNEL_PAGE_ROWS:
        wanted = f"0 or a multiple of {KERNEL_STEP} up to {KERNEL_PAGE_ROWS} on an NPU"
        raise TopThetaValueError(f"block_size in {shape}", wanted, str(shape.block_size), "such as block_size=128")
