"""Whatever is passed: an answer of the right shape, or an error of this package that names an argument."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import toptheta_npu
from tests.cases import ENTRY_POINTS, valid_arguments

#: Of one argument, or of two that need or exclude each other.
_MESSAGE = r"[a-z_]+(\[\d+\])?(\.\w+)?: expected .+, got .+|[a-z_]+(=\S+)? (needs|excludes) [^;]+; .+"
_CALLS = [(base, name) for base, names in ENTRY_POINTS.items() for name in names]
_ANYTHING = (
    None, True, False, 0, 1, 2, 3, 4, 8, -1, 2**31, 2**63, -(2**63), 2**70, 10**400, 0.0, 0.5, -0.5, 1.5, math.nan,
    math.inf, -math.inf, 1e39, 1e300, 1e-300, 1j, Fraction(1, 3), "", "1", "BNSD", "BSND", "BSH", "TND", "pre_softmax",
    "post_softmax", "none", "exact", "exp_threshold", "offline", "gather", b"BNSD", [], (), [5, 8], (5, 8), [0, 0],
    [3, 3], [5, 3], [-1, 9], [2**63, 1], [2**31, 0], [10**400, 1], [5], [1.5, 2.0], [True, False], ["5", "8"],
    [None, None], [[5, 8]], {"a": 1}, {5, 8}, range(2), object(), torch.float16, torch.float64, torch.int32, torch.bool,
    torch.device("meta"), torch.strided, np.float32(0.5), np.int64(4), np.array([5, 8]), np.array("BNSD"),
)  # fmt: skip
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.int8, torch.int16,
           torch.int32, torch.int64, torch.bool, torch.complex64)  # fmt: skip
_VALUES = (0, 1, -1, 2**31 - 1, math.nan, math.inf, -math.inf, 1e38)


def _filled(value: float) -> Callable[[Tensor], Tensor]:
    def fill(tensor: Tensor) -> Tensor:
        whole = not tensor.is_floating_point()
        return torch.full_like(tensor, int(value) if whole and math.isfinite(value) else 0 if whole else value)

    return fill


def _cast(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype)


_CHANGES: tuple[Callable[[Tensor], Any], ...] = (
    *map(_cast, _DTYPES), *map(_filled, _VALUES),
    lambda t: t.to("meta"), lambda t: t.to_sparse(), lambda t: t.flatten(0, -2).to_sparse_csr(),
    lambda t: torch.nested.as_nested_tensor(list(t)), lambda t: t.contiguous().to_mkldnn(),
    lambda t: torch.nested.as_nested_tensor(list(t), layout=torch.jagged),
    lambda t: torch.nn.Parameter(t), lambda t: t.clone().requires_grad_(), lambda t: t.numpy(), lambda t: t.tolist(),
    lambda t: t[:0], lambda t: t[:1], lambda t: t[..., :0], lambda t: t[..., :1], lambda t: t[..., ::2],
    lambda t: t.unsqueeze(0), lambda t: t.unsqueeze(-1), lambda t: t.flatten(), lambda t: t.flatten(1), lambda t: t[0],
    lambda t: t.sum(), lambda t: t.transpose(0, -1), lambda t: t.transpose(-1, -2), lambda t: t.transpose(1, 2),
    lambda t: t.repeat_interleave(2, -1)[..., ::2], lambda t: torch.cat((t, t), -1), lambda t: torch.cat((t, t), 1),
    lambda t: t.narrow(1, 0, 0), lambda t: t.narrow(2, 0, 0), lambda t: t.narrow(1, 0, 1), lambda t: t[:, :3],
    lambda t: t[:1].expand_as(t), lambda t: torch._neg_view(t),
    lambda t: torch.quantize_per_tensor(t, 1.0, 0, torch.qint8),
)  # fmt: skip


def _changed(draw: st.DrawFn, value: Any) -> Any:
    """The value in another form, or anything at all."""
    if isinstance(value, Tensor) and draw(st.integers(0, 3)):
        for _ in range(draw(st.integers(1, 2))):
            try:
                value = draw(st.sampled_from(_CHANGES))(value)
            except Exception:
                return value  # torch itself does not make this one
        return value
    if isinstance(value, (list, tuple)) and draw(st.booleans()):
        items = [_changed(draw, item) if draw(st.integers(0, 2)) == 0 else item for item in value]
        kind = draw(st.sampled_from((type(value), list, tuple, iter)))
        return kind(items)
    return draw(st.sampled_from(_ANYTHING))


@st.composite
def _wrong_arguments(draw: st.DrawFn, base: str, name: str) -> dict[str, Any]:
    arguments = valid_arguments(base)
    taken = inspect.signature(getattr(toptheta_npu, name)).parameters.values()
    names = [parameter.name for parameter in taken if parameter.kind is not parameter.VAR_KEYWORD]
    optional = {
        "discarded_mass": torch.ones(2, 4), "value_mean": torch.ones(2, 2, 16), "key_start": torch.tensor([0, 0]),
        "lse": torch.ones(2, 4), "actual_seq_lengths": torch.tensor([5, 3]),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
    }  # fmt: skip
    if draw(st.booleans()):
        arguments |= {"sdc": "offline", "discarded_mass": optional["discarded_mass"]} if "sdc" in names else {}
    for wrong in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        arguments[wrong] = _changed(draw, arguments.get(wrong, optional.get(wrong)))
    return arguments


@pytest.mark.parametrize(("base", "name"), _CALLS, ids=["-".join(call) for call in _CALLS])
@settings(max_examples=60)
@given(data=st.data())
def test_an_answer_or_an_error_of_this_package(base: str, name: str, data: st.DataObject) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about sparse and nested tensors
        arguments = data.draw(_wrong_arguments(base, name), "arguments")
    try:
        result = getattr(toptheta_npu, name)(**arguments)
    except toptheta_npu.TopThetaError as error:
        message: str | None = str(error)
    else:
        message = None
    if message is not None:
        assert re.match(_MESSAGE, message, re.DOTALL)
        assert len(message) < 600
        return
    outputs = (result,) if isinstance(result, Tensor) else tuple(result)
    query = arguments["parts"][0][0] if name == "merge_partials" else arguments["query"]
    assert outputs[0].shape == query.shape
    assert not any(output.requires_grad for output in outputs)
    assert {output.device for output in outputs} == {query.device}
