"""Merges decode steps over parts of the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .._checks import DTYPES, FLOAT32, INTEGERS, check_choice, check_dense, check_modes, check_tensor, shape_text
from .._derivatives import refuse_derivatives, refuse_vmap, under_transforms
from .._value_checks import check_float_values, check_threshold_values, host_can_read
from ..errors import TopThetaTypeError, TopThetaValueError, shown
from ..fallback import Compensation, Partial, partial
from ..fallback.compensation import add_token_axis, expand_threshold
from ..fallback.layout import in_layout, query_heads
from .checks import LAYOUTS, Sizes, check_float_tensors, check_threshold


def merge_partials(
    parts: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]],
    threshold: Tensor,
    n: Sequence[int | Tensor],
    *,
    input_layout: str = "BNSD",
    placement: str = "pre_softmax",
    sdc: str = "exact",
    sdc_gamma: float = 0.05,
    discarded_mass: Tensor | None = None,
    value_mean: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Merge the parts of each row, then apply SDC, VMC and the sink, which need the whole row.

    Args:
        parts: results of `incremental_attention_partial` in the order of their keys. The order only breaks ties
            between equal largest elements.
        threshold: float32 [Hq], [B, Hq] or [B, Hq, Sq], as given to the parts.
        n: valid keys of each part, in the order of ``parts``: an int or an integer tensor [B] per part. With several
            tokens [B, Sq], as given to the parts.
        input_layout, placement, sdc, sdc_gamma, discarded_mass, value_mean, learnable_sink: as in
            `incremental_attention`. Parts take no sink: it is added here, once.
        dtype: dtype of the result: float16, bfloat16 or float32.

    Returns:
        The output of the whole rows in the layout of the query. If no part kept anything, the largest element of
        all parts stands in, the lowest key among equals, as in a whole row.

    Raises:
        TopThetaValueError, TopThetaTypeError: as `incremental_attention`; the parts do not fit each other; or, on
            a CPU, their statistics are NaN or below 0, or they kept more keys than ``n`` says.

    Example:
        >>> import torch, toptheta_npu
        >>> q, k, v = torch.randn(1, 4, 1, 32), torch.randn(1, 4, 50, 32), torch.randn(1, 4, 50, 32)
        >>> never = torch.full((4,), 1e6)  # nothing passes, so the largest element of the row stands in
        >>> parts = [toptheta_npu.incremental_attention_partial(q, k[:, :, s], v[:, :, s], never)
        ...          for s in (slice(0, 20), slice(20, 50))]
        >>> [int(part.kept.sum()) for part in parts]
        [0, 0]
        >>> merged = toptheta_npu.merge_partials(parts, never, [20, 30], sdc="none")
        >>> torch.allclose(merged, toptheta_npu.incremental_attention(q, k, v, never, sdc="none"), atol=1e-5)
        True
    """
    if under_transforms():
        _refuse_transforms(
            parts, {"threshold": threshold, "discarded_mass": discarded_mass, "value_mean": value_mean,
                    "learnable_sink": learnable_sink}, n,
        )  # fmt: skip
    sizes = _check_parts(parts, input_layout)
    batch, heads, tokens = sizes.batch, sizes.heads, sizes.tokens
    if not isinstance(n, (list, tuple)):
        raise TopThetaTypeError("n", "a list with the valid keys of each part", type(n).__name__)
    if len(n) != len(parts):
        raise TopThetaValueError("n", f"one entry per part, {len(parts)}", str(len(n)))
    like = parts[0][1]
    check_threshold(threshold, like, batch, heads, tokens)
    if value_mean is not None:
        check_dense("value_mean", value_mean)
    has_heads = value_mean is not None and value_mean.dim() == (3 if tokens == 1 else 4)
    kv_heads = value_mean.shape[1] if value_mean is not None and has_heads else heads
    if kv_heads < 1 or heads % kv_heads:
        raise TopThetaValueError("value_mean", f"a number of KV heads that divides {heads}", str(kv_heads))
    check_modes(placement, sdc, sdc_gamma, discarded_mass, None if value_mean is None else "value_mean")
    compensation = Compensation(sdc, float(sdc_gamma), discarded_mass, value_mean, learnable_sink)
    check_float_tensors(compensation.tensors.values(), like, sizes._replace(kv_heads=kv_heads))
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        raise TopThetaTypeError("dtype", " or ".join(map(str, DTYPES)), shown(dtype))
    total = torch.stack([_length(f"n[{index}]", length, sizes, like) for index, length in enumerate(n)]).sum(0)
    if host_can_read(like):
        check_threshold_values("threshold", threshold, placement)
        check_float_values(compensation.tensors)
        for index, part in enumerate(parts):
            _check_statistics(index, part)
        _check_total(total, torch.stack([part[4] for part in parts]).sum(0).view(batch, heads, tokens))
    out = partial.merge_partials(
        [_with_tokens(part, input_layout, heads) for part in parts],
        expand_threshold(threshold, torch.Size((batch, heads, tokens))), total[:, None], compensation.of_tokens(),
    )  # fmt: skip
    return in_layout(out.to(dtype), input_layout)


def _refuse_transforms(parts: object, options: dict[str, object], n: object) -> None:
    """Refuse tensors that are differentiated or mapped over. Other checks refuse anything that is not a part."""
    given = list(options.items())
    if isinstance(n, (list, tuple)):
        given += [(f"n[{index}]", length) for index, length in enumerate(n)]
    if isinstance(parts, (list, tuple)):
        for index, part in enumerate(parts):
            if isinstance(part, tuple):
                names = (f"parts[{index}].{name}" for name in Partial._fields)
                given += zip(names, part, strict=False)
    refuse_derivatives(given)
    refuse_vmap(given, "merge all sequences in one call: the first axis is theirs")


def _with_tokens(part: tuple[Tensor, ...], input_layout: str, heads: int) -> Partial:
    """View every tensor of a part with the axes [B, Hq, Sq]."""
    out, *statistics = part
    return Partial(query_heads(out, input_layout, heads), *(add_token_axis(each, 3) for each in statistics))


def _check_parts(parts: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]], input_layout: str) -> Sizes:
    """Check that all parts agree on their sizes; return these. Parts do not know the KV heads."""
    if not isinstance(parts, (list, tuple)):
        raise TopThetaTypeError("parts", "a list with the results of the parts", type(parts).__name__)
    if not parts:
        raise TopThetaValueError("parts", "at least one part", "none")
    check_choice("input_layout", input_layout, LAYOUTS)
    for index, part in enumerate(parts):
        if not isinstance(part, tuple) or len(part) != 5:
            got = f"{len(part)} entries" if isinstance(part, tuple) else type(part).__name__
            raise TopThetaTypeError(
                f"parts[{index}]", "a result of incremental_attention_partial, a tuple of 5 tensors", got
            )
    out, like = parts[0][:2]
    check_tensor("parts[0].maximum", like, like, None, FLOAT32)
    if like.dim() not in (2, 3) or min(like.shape) < 1:
        raise TopThetaValueError("parts[0].maximum", "shape [B, Hq], or [B, Hq, Sq]", shape_text(like))
    rows = like.shape
    batch, heads, tokens = (*rows, 1)[:3]
    words = " [B, Hq]" if len(rows) == 2 else " [B, Hq, Sq]"
    check_tensor("parts[0].out", out, like, (None,) * (3 if input_layout == "BSH" else 4), FLOAT32)
    for index, part in enumerate(parts):
        check_tensor(f"parts[{index}].out", part[0], like, out.shape, FLOAT32, ", like parts[0]")
        for name, tensor in zip(Partial._fields[1:4], part[1:4], strict=True):
            check_tensor(f"parts[{index}].{name}", tensor, like, rows, FLOAT32, words)
        check_tensor(f"parts[{index}].kept", part[4], like, rows, (torch.int32,), words)
    head_dim = out.shape[-1] // heads if input_layout == "BSH" else out.shape[-1]
    want = {
        "BNSD": (batch, heads, tokens, head_dim), "BSND": (batch, tokens, heads, head_dim),
        "BSH": (batch, tokens, out.shape[-1]),
    }  # fmt: skip
    check_tensor("parts[0].out", out, like, want[input_layout], FLOAT32, f" in the layout {input_layout}")
    return Sizes(batch, heads, heads, head_dim, tokens)


def _length(name: str, length: int | Tensor, sizes: Sizes, like: Tensor) -> Tensor:
    """Take the valid keys of a part as a tensor [B, Sq]."""
    batch, tokens = sizes.batch, sizes.tokens
    words = "[B]" if tokens == 1 else "[B, Sq]"
    if isinstance(length, Tensor):
        shape = (batch,) if tokens == 1 else (batch, tokens)
        check_tensor(name, length, like, shape, INTEGERS, f" {words}")
        if host_can_read(length) and (least := length.min().item()) < 0:
            raise TopThetaValueError(name, "numbers of keys, at least 0", str(least))
        return length.long().view(batch, tokens)
    if type(length) is not int:
        raise TopThetaTypeError(name, f"an int or an integer tensor {words}", type(length).__name__)
    if not 0 <= length < 2**31:
        wanted = "a number of keys, at least 0" if length < 0 else "a number of keys, below 2^31"
        raise TopThetaValueError(name, wanted, shown(length))
    return torch.full((batch, tokens), length, dtype=torch.int64, device=like.device)


def _check_statistics(index: int, part: tuple[Tensor, ...]) -> None:
    """Check on a CPU that masses and counts are numbers of at least 0: one NaN would spoil its whole row."""
    for name, tensor in zip(Partial._fields[1:], part[1:], strict=True):
        least = tensor.min().item()  # of numbers with a NaN among them: NaN
        if name == "maximum" and math.isnan(least):
            expected = "numbers, or -inf where there are no keys"
        elif name != "maximum" and not least >= 0:
            expected = "numbers of at least 0"
        else:
            continue
        remedy = "give what incremental_attention_partial returned, and look for NaN in its query and key"
        raise TopThetaValueError(f"parts[{index}].{name}", expected, f"{least:g}", remedy)


def _check_total(total: Tensor, kept: Tensor) -> None:
    """Check on a CPU that no part kept keys that ``n`` does not count."""
    missing = (kept.amax(1) - total).amax().item()
    if missing > 0:
        raise TopThetaValueError(
            "n", "at least the keys that the parts kept", f"{missing} fewer", "give the valid keys of each part"
        )
