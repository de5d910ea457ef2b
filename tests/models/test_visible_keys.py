"""Where the rows of a call lie, whatever mask and cache say it."""

from __future__ import annotations

import pytest
import torch

from toptheta_npu.errors import TopThetaNotImplementedError
from toptheta_npu.models.caches.visible_keys import ForwardRows, decode_rows, prefill_rows


def tensors(batch: int, rows: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key of that many rows and keys."""
    return torch.zeros(batch, 2, rows, 4), torch.zeros(batch, 1, capacity, 4)


def causal(valid: torch.Tensor, rows: int, past: int) -> torch.Tensor:
    """The mask of transformers for valid keys [B, S] and a chunk after ``past`` tokens."""
    column, row = torch.arange(valid.shape[1]), torch.arange(past, past + rows)
    return valid[:, None, None, :] & (column <= row[:, None])


def test_decode_without_a_mask_sees_every_key():
    rows = decode_rows(*tensors(2, 1, 9), None, 9)
    assert rows.counts.tolist() == [[9], [9]]
    assert rows.lengths is rows.starts is None


def test_decode_in_a_preallocated_cache_without_a_mask_sees_its_length():
    seen = torch.tensor(5)
    rows = decode_rows(*tensors(2, 1, 9), None, seen)
    seen += 1  # the cache counts on in place
    assert rows.lengths.tolist() == [5, 5]
    assert rows.host_lengths is None


@pytest.mark.parametrize("seen", [9, torch.tensor(7)])
def test_decode_with_a_mask(seen):
    valid = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0, 0], [0] * 9], dtype=torch.bool)
    rows = decode_rows(*tensors(3, 1, 9), valid[:, None, None], seen)
    assert rows.counts.tolist() == [[5], [7], [0]]
    assert rows.starts.tolist() == [2, 0, 0]


def test_a_chunk_of_a_padded_prompt_in_a_preallocated_cache():
    valid = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    rows = prefill_rows(*tensors(2, 5, 9), causal(valid, 5, past=2), torch.tensor(7))
    assert rows.span == 7
    assert rows.counts.tolist() == [[0, 1, 2, 3, 4], [3, 4, 5, 0, 0]]
    assert rows.lengths.tolist() == [4, 5]


def test_an_empty_preallocated_cache_is_cropped_to_the_prompt():
    rows = prefill_rows(*tensors(1, 4, 9), None, torch.tensor(4))
    assert (rows.span, rows.counts.tolist()) == (4, [[1, 2, 3, 4]])
    with pytest.raises(TopThetaNotImplementedError, match="attention_mask"):
        prefill_rows(*tensors(1, 4, 9), None, 9)


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
