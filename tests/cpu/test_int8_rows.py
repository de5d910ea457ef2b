"""Rows that the native library rounds to int8 for caches of models are those of PyTorch's operations, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tests.cpu.native import ELEMENTS
from toptheta_npu import use_backend
from toptheta_npu.cpu.int8_rows import pack_rows
from toptheta_npu.models.caches.int8 import Packing


def rows_of(dtype: str, head_dim: int, tokens: int = 3) -> Tensor:
    torch.manual_seed(head_dim)
    rows = torch.randn(2, 3, tokens, head_dim) * torch.logspace(-4, 3, tokens)[:, None]
    rows[0, 1, 0] = 0
    rows[1, 2, 1, 3] = -5 * rows[1, 2, 1].abs().max()
    return rows.to(getattr(torch, dtype))


def channels_of(head_dim: int) -> Tensor:
    scale = torch.rand(3, head_dim) / 40
    scale[1, 2] = 0
    return scale


def both(rows: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    with use_backend("fallback", device="cpu"):
        expected = Packing(scale).pack(rows)
    with use_backend("native", device="cpu"):
        packed = torch.full(expected.shape, 99, dtype=torch.int8)
        assert pack_rows(rows, packed, scale)
        assert torch.equal(Packing(scale).pack(rows), packed)
    return packed, expected


@pytest.mark.parametrize("by_channel", [False, True], ids=["row", "channel"])
@pytest.mark.parametrize("head_dim", [16, 18, 64, 100, 128, 512])
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_all_bits_are_those_of_pytorch(dtype: str, head_dim: int, by_channel: bool) -> None:
    rows, scale = rows_of(dtype, head_dim), channels_of(head_dim) if by_channel else None
    packed, expected = both(rows, scale)
    assert torch.equal(packed, expected)
    # as a model hands them over, token by token and head by head
    packed, expected = both(rows.transpose(1, 2).contiguous().transpose(1, 2), scale)
    assert torch.equal(packed, expected)


def test_a_tie_goes_to_the_even_number() -> None:
    rows = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, *8 * [0.0]])[None, None, None]
    packed, expected = both(rows, None)
    assert packed[0, 0, 0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]
    assert torch.equal(packed, expected)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_shows_in_the_scale(wrong: float) -> None:
    rows = rows_of("float32", 32)
    rows[1, 1, 2, 5] = wrong
    packed, expected = both(rows, None)
    scales, wanted = (Packing(None).scales(each) for each in (packed, expected))
    torch.testing.assert_close(scales, wanted, rtol=0, atol=0, equal_nan=True)
    assert not scales[1, 1, 2].isfinite()
    assert scales.isfinite().sum() == scales.numel() - 1


def test_others_than_a_few_rows_that_lie_there_are_left_to_pytorch() -> None:
    few = rows_of("float32", 32)
    packed = torch.empty(2, 3, 3, 36, dtype=torch.int8)
    with use_backend("fallback", device="cpu"):
        assert not pack_rows(few, packed, None)
    with use_backend("native", device="cpu"):
        assert not pack_rows(few.to("meta"), packed, None)
        assert not pack_rows(few.double(), packed, None)
        assert not pack_rows(torch._neg_view(few), packed, None)
        assert not pack_rows(rows_of("float32", 32, 17), packed, None)
        assert not pack_rows(rows_of("float32", 32), packed, torch.ones(32, 3).T)
        assert torch.equal(Packing(None).pack(-torch._neg_view(few)), Packing(None).pack(few.clone()))


def test_who_watches_sees_operations_of_pytorch() -> None:
    def pack(rows: Tensor) -> Tensor:
        return Packing(None).pack(rows)

    one, other = rows_of("float32", 16), -rows_of("float32", 16)
    with use_backend("native", device="cpu"):
        expected = pack(other)
        assert torch.equal(make_fx(pack)(one)(other), expected)
        assert torch.equal(torch.func.functionalize(pack)(other), expected)
        assert torch.equal(torch.func.vmap(pack)(torch.stack([one, other]))[1], expected)
