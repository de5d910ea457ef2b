"""Checks of the arguments of a decode step, and of arguments that other operators share with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .._checks import (
    DTYPES,
    FLOAT32,
    INTEGERS,
    MAX_TOKENS,
    PATHS,
    PLACEMENTS,
    check_choice,
    check_dense,
    check_device,
    check_head_dim,
    check_modes,
    check_number,
    check_tensor,
    shape_text,
)
from .._derivatives import refuse_derivatives, under_transforms
from ..errors import TopThetaCombinationError, TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, shown
from ..fallback.arguments import FLOAT_TENSORS, LENGTHS, TABLE, TENSORS, Arguments
from .cache_checks import check_antiquant, check_cache, check_paging
from .limits import check_limits

QUERY_FORMS = {"BNSD": "[B, Hq, Sq, D]", "BSND": "[B, Sq, Hq, D]", "BSH": "[B, Sq, Hq*D]"}
LAYOUTS = tuple(QUERY_FORMS)


class Sizes(NamedTuple):
    """Sequences, query heads, KV heads, head_dim and query tokens of a decode step."""

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    tokens: int


_SHAPES: dict[str, Callable[[Sizes], tuple[int, ...]]] = {
    "[Hq]": lambda sizes: (sizes.heads,),
    "[B, Hq]": lambda sizes: (sizes.batch, sizes.heads),
    "[B, Hq, Sq]": lambda sizes: (sizes.batch, sizes.heads, sizes.tokens),
    "[B, Hkv, D]": lambda sizes: (sizes.batch, sizes.kv_heads, sizes.head_dim),
    "[B, Hkv, Sq, D]": lambda sizes: (sizes.batch, sizes.kv_heads, sizes.tokens, sizes.head_dim),
}


def _float_tensors(
    *, one_token: bool
) -> list[tuple[str, Callable[[Sizes], tuple[int, ...]], tuple[torch.dtype, ...], str]]:
    """Collect the name, shape, dtypes and shape in words of each of `FLOAT_TENSORS`."""
    abouts = {name: TABLE[name].about for name in Arguments._fields[FLOAT_TENSORS]}
    words = {name: about.shape.replace(", Sq", "") if one_token else about.shape for name, about in abouts.items()}
    return [(name, _SHAPES[words[name]], about.dtypes, f" {words[name]}") for name, about in abouts.items()]


_FLOATS_OF_ONE_TOKEN, _FLOATS_OF_TOKENS = _float_tensors(one_token=True), _float_tensors(one_token=False)
_DEFAULT_MODES = tuple(Arguments._field_defaults[name] for name in ("placement", "sdc", "sdc_gamma"))
_NO_MODE = Arguments._field_defaults["key_antiquant_mode"]
_NO_MASK = "give valid keys by actual_seq_lengths, key_start or block_table"
_CAUSAL = "several query tokens are causal (sparse_mode 3), and trees of tokens are not supported; leave it out"
_NO_QUANTISATION = "queries and outputs are not quantised; pass float16 or bfloat16 tensors"
_BY_CACHE = "give the scales of int8 caches as key_antiquant_scale and value_antiquant_scale"
_SYMMETRIC = "int8 caches are symmetric; quantise without offsets"
#: Arguments of torch_npu.npu_incre_flash_attention and npu_fused_infer_attention_score that have no meaning here, and
#: what to use instead.
UNSUPPORTED = {
    "padding_mask": _NO_MASK,
    "atten_mask": f"{_NO_MASK}; {_CAUSAL}",
    **dict.fromkeys(("sparse_mode", "pre_tokens", "next_tokens"), _CAUSAL),
    "actual_seq_lengths_kv": "valid keys are actual_seq_lengths here, and query tokens actual_query_lengths",
    "query_padding_size": "real query tokens come first; give their number as actual_query_lengths",
    "softmax_lse_flag": "use incremental_attention_with_stats",
    "pse_shift": "positional biases are not supported",
    "kv_padding_size": "use key_start, the index of the first valid key",
    "inner_precise": "leave it out; scores and sums are always float32",
    **dict.fromkeys(("antiquant_scale", "antiquant_mode", "dequant_scale_key", "dequant_scale_value"), _BY_CACHE),
    **dict.fromkeys(("antiquant_offset", "key_antiquant_offset", "value_antiquant_offset"), _SYMMETRIC),
    **dict.fromkeys(
        ("dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2"), _NO_QUANTISATION
    ),
}  # fmt: skip


def refuse_unknown(function: str, unsupported: Mapping[str, object]) -> NoReturn:
    """Raise for keyword arguments that ``function`` does not take."""
    name = next(iter(unsupported))
    if name in UNSUPPORTED:
        raise TopThetaNotImplementedError(name, "the argument left out", "a value", UNSUPPORTED[name])
    raise TopThetaTypeError(name, "a known argument", "an unknown name", f"see help({function})")


def resolve_heads(
    query: Tensor, key: Tensor, num_heads: int | None, num_key_value_heads: int | None, input_layout: str, paged: bool
) -> Sizes:
    """Find the sizes of a step; infer them from the layout where it shows them."""
    if type(input_layout) is not str or input_layout not in QUERY_FORMS:
        check_choice("input_layout", input_layout, LAYOUTS)
    if num_heads is not None:
        _check_count("num_heads", num_heads)
    if num_key_value_heads is not None:
        _check_count("num_key_value_heads", num_key_value_heads)
    shape = query.shape  # each look at it makes a new object
    if len(shape) != (3 if input_layout == "BSH" else 4):
        raise TopThetaValueError("query", f"{input_layout} {QUERY_FORMS[input_layout]}", shape_text(query))
    if shape[0] < 1:
        raise TopThetaValueError("query", "at least one sequence", shape_text(query))
    tokens = shape[2 if input_layout == "BNSD" else 1]
    if tokens != 1:
        _check_tokens(query, tokens, input_layout)
    if input_layout == "BSH":
        if not num_heads:
            raise TopThetaValueError("num_heads", "the number of query heads (BSH does not tell it)", str(num_heads))
        if num_heads < 0 or shape[2] % num_heads:
            wanted = f"a divisor of the hidden size {shape[2]}"
            raise TopThetaValueError("num_heads", wanted, shown(num_heads))
        heads, head_dim = num_heads, shape[2] // num_heads
    else:
        heads, head_dim = shape[1 if input_layout == "BNSD" else 2], shape[3]
        if num_heads is not None and num_heads != heads:
            raise TopThetaValueError("num_heads", f"{heads}, as query says, or None", shown(num_heads))
        if heads < 1:
            raise TopThetaValueError("query", "at least one head", shape_text(query))
    check_head_dim(head_dim)
    kv_heads = _resolve_kv_heads(key, heads, head_dim, num_key_value_heads, input_layout, paged)
    return Sizes(shape[0], heads, kv_heads, head_dim, tokens)


def _check_tokens(query: Tensor, tokens: int, input_layout: str) -> None:
    wanted = f"{{}}, {input_layout} {QUERY_FORMS[input_layout]}"
    if tokens < 1:
        raise TopThetaValueError("query", wanted.format("at least one token"), shape_text(query))
    if tokens > MAX_TOKENS:
        raise TopThetaNotImplementedError(
            "query", wanted.format(f"1 to {MAX_TOKENS} tokens"), shape_text(query),
            "use prefill_attention for more tokens",
        )  # fmt: skip


def _check_count(name: str, count: Any) -> None:
    if type(count) is not int:
        raise TopThetaTypeError(name, "an int or None", type(count).__name__)


def _resolve_kv_heads(key: Tensor, heads: int, head_dim: int, given: int | None, input_layout: str, paged: bool) -> int:
    shape = key.shape
    if len(shape) == 4 and (paged or input_layout != "BSH"):
        found = shape[1 if paged or input_layout == "BNSD" else 2]
        if given and given != found:
            raise TopThetaValueError("num_key_value_heads", f"{found}, as key says, or None", shown(given))
    elif len(shape) == 3 and (paged or input_layout == "BSH"):
        found = given or (heads if input_layout == "BSH" else shape[2] // head_dim)
    else:
        forms = "4 or 3" if paged else "3" if input_layout == "BSH" else "4"
        where = "a paged cache" if paged else input_layout
        raise TopThetaValueError("key", f"{forms} dimensions for {where}", shape_text(key))
    if found < 1 or heads % found:
        raise TopThetaValueError(
            "num_key_value_heads", f"a divisor of the {heads} query heads", shown(found),
            "check the KV cache's layout",
        )  # fmt: skip
    return found


def check_part(a: Arguments) -> None:
    """Check placement and LSE for a decode step over a part of rows."""
    check_choice("placement", a.placement, PLACEMENTS)
    if (a.lse is None) == (a.placement == "post_softmax"):
        words = "[B, Hq]" if a.query_tokens == 1 else "[B, Hq, Sq]"
        if a.lse is not None:
            raise TopThetaCombinationError("lse", "needs", "placement='post_softmax'", "leave it out")
        raise TopThetaValueError("lse", f"the whole row's LSE {words} with placement='post_softmax'", "None")


def check_float_tensors(given: Iterable[Tensor | None], like: Tensor, sizes: Sizes) -> None:
    """Check that tensors of numbers per row or head have the shapes and dtypes of the first of `FLOAT_TENSORS`."""
    known = _FLOATS_OF_ONE_TOKEN if sizes.tokens == 1 else _FLOATS_OF_TOKENS
    for tensor, (name, shape, dtypes, words) in zip(given, known, strict=False):
        if tensor is not None:
            check_tensor(name, tensor, like, shape(sizes), dtypes, words)


def as_device_tensor(name: str, values: Tensor | Sequence[int] | None, query: Tensor) -> Tensor | None:
    """Return a tensor as it is; copy a list of ints once to the query's device."""
    if values is None or isinstance(values, Tensor):
        return values
    if not isinstance(values, (list, tuple)) or not all(type(value) is int for value in values):
        raise TopThetaTypeError(name, "an integer tensor or a list of ints", shown(values))
    if any(abs(value) >= 2**63 for value in values):
        raise TopThetaValueError(name, "ints of 64 bits", shown(values))
    return torch.tensor(values, dtype=torch.int64, device=query.device)


def check_lengths(query: Tensor, batch: int, lengths: Tensor | None, starts: Tensor | None) -> None:
    """Check valid keys and starts of whole rows."""
    if lengths is not None:
        check_tensor("actual_seq_lengths", lengths, query, (batch,), INTEGERS, " [B]")
    if starts is not None:
        check_tensor("key_start", starts, query, (batch,), INTEGERS, " [B]")


def _check_part_lengths(query: Tensor, sizes: Sizes, lengths: Tensor | None, starts: Tensor | None) -> None:
    """Check valid keys and starts of a part of rows. Only the whole row determines which keys a token sees."""
    if sizes.tokens == 1:
        check_lengths(query, sizes.batch, lengths, starts)
        return
    words = " [B, Sq], the keys of this part that each token sees"
    if lengths is None:
        raise TopThetaValueError("actual_seq_lengths", f"shape [{sizes.batch}, {sizes.tokens}]{words}", "None")
    check_tensor("actual_seq_lengths", lengths, query, (sizes.batch, sizes.tokens), INTEGERS, words)
    check_lengths(query, sizes.batch, None, starts)


def check_threshold(threshold: Any, like: Tensor, batch: int, heads: int, tokens: int) -> None:
    dims = threshold.dim() if isinstance(threshold, Tensor) else 2
    want: tuple[int, ...] = (batch, heads)
    words = " [B, Hq]"
    if dims == 1:
        want, words = (heads,), " [Hq]"
    elif dims == 3 and tokens > 1:
        want, words = (batch, heads, tokens), " [B, Hq, Sq]"
    check_tensor("threshold", threshold, like, want, FLOAT32, words)


def check(given: Arguments, is_limited: Callable[[Tensor], bool], *, part: bool = False) -> Arguments:
    """Check that the arguments of a call fit together, and that the backend which runs it takes them.

    Args:
        given: the arguments of a public function. Lengths and starts may be lists, head counts and the scale None.
        is_limited: tells whether the backend of a query has `limits`.
        part: whether the keys are part of a row.

    Returns:
        The same arguments, with lists made tensors, and head counts and the scale filled in.
    """
    checked = check_rows(given, part=part)
    if part:
        check_part(checked)
    else:
        placement, sdc, gamma = given.placement, given.sdc, given.sdc_gamma
        simple = type(placement) is str and type(sdc) is str and type(gamma) is float  # others compare as they like
        if not simple or given.discarded_mass is not None or (placement, sdc, gamma) != _DEFAULT_MODES:
            vmc_argument = None if given.value_mean is None else "value_mean"
            check_modes(placement, sdc, gamma, given.discarded_mass, vmc_argument)
            checked = checked if type(gamma) is float else _with(checked, "sdc_gamma", float(gamma))
    if is_limited(checked.query):
        check_limits(checked, part=part)
    return checked


def check_rows(given: Arguments, *, part: bool) -> Arguments:
    """Check that the arguments that locate the rows fit together, and the tensors of numbers per row or head too.

    Arguments and result are as in `check`.
    """
    query, key, block_table = given.query, given.key, given.block_table
    lengths, starts = given.actual_seq_lengths, given.key_start
    if under_transforms():
        refuse_derivatives(zip(Arguments._fields, given, strict=True))
    # this code runs in every call, so it calls nothing that has nothing to check
    check_tensor("query", query, query, None, DTYPES)
    if not query.is_cpu:
        check_device(query)
    check_dense("key", key)
    paged = block_table is not None
    if not ((lengths is None or isinstance(lengths, Tensor)) and (starts is None or isinstance(starts, Tensor))):
        lengths = as_device_tensor("actual_seq_lengths", lengths, query)
        starts = as_device_tensor("key_start", starts, query)
        given = Arguments._make((*given[: LENGTHS.start], lengths, starts, *given[LENGTHS.stop :]))
    sizes = resolve_heads(query, key, given.num_heads, given.num_key_value_heads, given.input_layout, paged)
    if paged or type(given.block_size) is not int or given.block_size:
        check_paging(query, block_table, given.block_size, lengths, starts)
    check_cache(given, sizes.kv_heads, sizes.head_dim)
    scaled = given.key_antiquant_scale is not None or given.value_antiquant_scale is not None
    plain = given.key_antiquant_mode is _NO_MODE and given.value_antiquant_mode is _NO_MODE
    if scaled or not plain or key.dtype is torch.int8:
        check_antiquant(given, sizes.kv_heads, sizes.head_dim)
    check_threshold(given.threshold, query, sizes.batch, sizes.heads, sizes.tokens)
    if part and sizes.tokens != 1:
        _check_part_lengths(query, sizes, lengths, starts)
    elif lengths is not None or starts is not None:
        check_lengths(query, sizes.batch, lengths, starts)
    if given.actual_query_lengths is not None:
        given = _with_query_lengths(given, sizes.batch)
    floats: Any = given[FLOAT_TENSORS]
    for tensor in floats:
        if tensor is not None:
            check_float_tensors(floats, query, sizes)
            break
    if type(given.path) is not str or given.path != "auto":
        check_choice("_path", given.path, PATHS)
    scale = given.scale_value
    if scale is None:
        scale = sizes.head_dim**-0.5
    else:
        check_number("scale_value", scale)
    return Arguments._make((sizes.heads, sizes.kv_heads, float(scale), *given[TENSORS.start :]))


def _with(given: Arguments, name: str, value: object) -> Arguments:
    """Replace one value; torch.compile traces this."""
    place = Arguments._fields.index(name)
    return Arguments._make((*given[:place], value, *given[place + 1 :]))


def _with_query_lengths(given: Arguments, batch: int) -> Arguments:
    """Check the numbers of real tokens, and make a list a tensor."""
    name = "actual_query_lengths"
    lengths = as_device_tensor(name, given.actual_query_lengths, given.query)
    check_tensor(name, lengths, given.query, (batch,), INTEGERS, " [B]")
    return _with(given, name, lengths)
