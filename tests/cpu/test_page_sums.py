"""The native page sums against their form in PyTorch, whatever the instruction set, the channels and the strides."""

from __future__ import annotations

import pytest
import torch

import toptheta_npu
from tests.tiers import only
from toptheta_npu.vllm.page_sums import NewRows, PageSums

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS, BLOCK_SIZE, HEADS = 9, 8, 3
TABLE = torch.tensor([[2, 3, 1, -1], [4, 5, 6, 7], [4, 5, 8, -9], [-1, -1, -1, -1]], dtype=torch.int32)
LENGTHS = torch.tensor([20, 32, 18, 0])


def both(
    cache: torch.Tensor, rows: int, steps: list[NewRows], scale: torch.Tensor | None = None
) -> list[list[torch.Tensor]]:
    """The means of every step, and the sums after it, by either form."""
    found = []
    for backend in ("native", "fallback"):
        sums = PageSums(BLOCKS, BLOCK_SIZE, HEADS, cache.shape[3], "cpu", rows, scale)
        with toptheta_npu.use_backend(backend, device="cpu"):  # type: ignore[arg-type]
            means = [sums.means(cache, step) for step in steps]
        # the last one, of no piece, is not the native form's
        found.append([*means, sums._sums[:-1].clone()])
    return found


@pytest.mark.usefixtures("each_level")
@pytest.mark.parametrize("dtype", only({torch.bfloat16}, DTYPES))
def test_both_forms_say_the_same(dtype: torch.dtype) -> None:
    """A prompt step in which the third sequence goes on from pages of the second, then one token for each."""
    counts = LENGTHS - (LENGTHS > 0).long()
    counts[2] -= 16
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    prompt, token = NewRows(TABLE, LENGTHS - (LENGTHS > 0).long(), starts), NewRows(TABLE, LENGTHS)
    for head_dim in (1, 7, 16, 31, 32, 64, 80, 128):
        whole = torch.randint(-8, 9, (BLOCKS, BLOCK_SIZE, HEADS, head_dim)).to(dtype)
        for cache in (whole.transpose(1, 2), whole.transpose(1, 2).contiguous()):
            for rows in (2, 4, 8):
                native, plain = both(cache, rows, [prompt, token])
                assert all(map(torch.equal, native, plain))
                assert native[1].abs().sum() > 0


def test_int8_values_are_added_times_their_scales_whichever_form_other_caches_have() -> None:
    """Scales are powers of two, so that sums are exact in any order."""
    cache = torch.randint(-128, 128, (BLOCKS, HEADS, BLOCK_SIZE, 31), dtype=torch.int8)
    scale = 2.0 ** torch.randint(-4, 3, (HEADS, 31))
    steps = [NewRows(TABLE, LENGTHS, torch.tensor([0, 20, 52, 70, 70])), NewRows(TABLE, LENGTHS)]
    expected, _ = both(cache * scale[:, None], 2, steps)
    assert expected[1].abs().sum() > 0
    for found in both(cache, 2, steps, scale):
        assert all(map(torch.equal, found, expected))


def test_rows_past_the_end_are_not_added() -> None:
    cache = torch.randn(BLOCKS, HEADS, BLOCK_SIZE, 24)
    cache[1, :, 4:], cache[8, :, 2:] = torch.nan, torch.inf
    native, plain = both(cache, BLOCK_SIZE, [NewRows(TABLE, LENGTHS)])
    assert native[0].isfinite().all()
    torch.testing.assert_close(native[0], plain[0])
