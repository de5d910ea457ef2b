"""Where the rows of a call lie, whatever mask and cache say it."""

from __future__ import annotations

import pytest
import torch

from toptheta_npu.errors import TopThetaNotImplementedError
from toptheta_npu.models.caches.visible_keys import ForwardRows, find_rows


def tensors(batch: int, rows: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key of that many rows and keys."""
    return torch.zeros(batch, 2, rows, 4), torch.zeros(batch, 1, capacity, 4)


def test_an_empty_preallocated_cache_is_cropped_to_the_prompt():
    rows = find_rows(*tensors(1, 4, 9), None, torch.tensor(4))
    assert (rows.span, rows.counts.tolist()) == (4, [[1, 2, 3, 4]])
    with pytest.raises(TopThetaNotImplementedError, match="attention_mask"):
        find_rows(*tensors(1, 4, 9), None, 9)


def test_rows_are_worked_out_once_per_pass_and_mask():
    query, key = tensors(2, 1, 6)
    forward = ForwardRows()
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    first = forward.of(0, query, key, mask, 6)
    assert forward.of(1, query, key, mask, 6) is first
    other = mask.clone()
    other[0, ..., 0] = False
    assert forward.of(2, query, key, other, 6).counts.tolist() == [[5], [6]]
    mask[..., :2] = False  # the next pass, with a mask that was changed in place
    assert forward.of(0, query, key, mask, 6).counts.tolist() == [[4], [4]]
    assert forward.of(1, query, key, None, 6).counts.tolist() == [[6], [6]]


def test_the_longest_judged_row_is_noted_on_host_and_device():
    query, key = tensors(1, 1, 6)
    forward = ForwardRows()
    forward.of(0, query, key, None, 6)
    assert forward.longest == 0
    forward.note_longest()
    assert forward.longest == 6
    mask = torch.ones(1, 1, 1, 6, dtype=torch.bool)
    forward.of(0, query, key, mask, torch.tensor(6))
    forward.note_longest()
    forward.of(0, *tensors(1, 1, 4), None, 4)
    forward.note_longest()
    assert int(forward.longest) == 6
