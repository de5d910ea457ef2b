"""V rows far apart: one copy takes two rows where the gap between them allows it, two copies where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emulator.ascendc import sparse_array
from tests.op_kernel.calls import call
from toptheta_npu.fallback import reference

_ROWS, _DIM, _PAGES, _LENGTH = 16, 32, 5, 75
_ROW_BYTES = 2 * _DIM
_FIELD_LIMIT = 2**31 - 1  # gaps of so many bytes and more take two copies


def far_pages(stride_bytes: int, descending: bool) -> tuple[dict[str, Any], reference.ReferenceResult]:
    """A paged cache of GiB of virtual memory whose pages lie ``stride_bytes`` apart, and what the oracle says."""
    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(_PAGES * _ROWS, _DIM, generator=generator).half() for _ in range(2))
    query = torch.randn(1, 1, 1, _DIM, generator=generator).half()
    pages = list(range(_PAGES))[:: -1 if descending else 1]
    arguments = {
        "query": query, "key": _scatter(key, pages, stride_bytes), "value": _scatter(value, pages, stride_bytes),
        "threshold": torch.full((1, 1), 0.8), "input_layout": "BNSD", "placement": "pre_softmax",
        "block_table": torch.tensor([[*pages, -1, 2**31 - 1]], dtype=torch.int32), "block_size": _ROWS,
        "actual_seq_lengths": torch.tensor([_LENGTH], dtype=torch.int32),
    }  # fmt: skip
    rows = reference.Rows(
        query[:, :, 0].double(), key[None, None].double(), value[None, None].double(),
        torch.full((1, 1), 0.8, dtype=torch.float64), lengths=torch.tensor([_LENGTH]),
    )  # fmt: skip
    return arguments, reference.incremental_attention(rows)


def _scatter(rows: Tensor, pages: list[int], stride_bytes: int) -> Tensor:
    stride = stride_bytes // 2
    memory = torch.from_numpy(sparse_array(stride * (_PAGES - 1) + _ROWS * _DIM, np.float16))
    cache = memory.as_strided((_PAGES, 1, _ROWS, _DIM), (stride, _ROWS * _DIM, _DIM, 1))
    for index, page in enumerate(pages):
        cache[page, 0] = rows[index * _ROWS : (index + 1) * _ROWS]
    return cache


def copies_of(keep: Tensor, pages: list[int], stride_bytes: int) -> int:
    """Copies of V rows that a list of kept rows takes, pair by pair."""
    rows = keep[0, 0].nonzero()[:, 0].tolist()
    at = [pages[row // _ROWS] * stride_bytes + row % _ROWS * _ROW_BYTES for row in rows]
    gaps = [second - first - _ROW_BYTES for first, second in zip(at[::2], at[1::2], strict=False)]
    return sum(1 if 0 <= gap < _FIELD_LIMIT else 2 for gap in gaps) + len(rows) % 2


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "stride_bytes", [1024, 2**30, 2**31 - 2048, 2**31 - 64, 2**31, 2**31 + 64, 2**31 + 2048, 2**32, 2**32 + 4096]
)
def test_pairs_of_rows_at_any_distance(stride_bytes: int, descending: bool) -> None:
    arguments, expected = far_pages(stride_bytes, descending)
    result = call(arguments, cores=1, path="gather")
    result.run.require_clean()
    assert torch.equal(result.outputs["kept"].long(), expected.kept)
    out = result.outputs["attention_out"][:, :, 0].double()
    torch.testing.assert_close(out, expected.out, rtol=0, atol=2e-3)
    pages = arguments["block_table"][0, :_PAGES].tolist()
    assert result.run.traffic["value"].read_commands == copies_of(expected.keep, pages, stride_bytes)
