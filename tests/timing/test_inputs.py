"""Inputs: exactly k kept, right answers, bytes and bounds by hand, memory and copies."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import toptheta_npu
from toptheta_npu import TopThetaValueError
from toptheta_npu.fallback import reference
from toptheta_npu.fallback.compensation import Compensation
from toptheta_npu.timing.inputs import (
    bytes_needed,
    check_memory,
    count_copies,
    make_inputs,
    make_traffic,
    threshold_after,
)
from toptheta_npu.timing.shapes import Shape

CASES = [
    Shape(1, 4, 4, 200, 20, head_dim=32, dtype="float32"),
    Shape(2, 8, 2, 300, 1, head_dim=64, dtype="float16"),
    Shape(2, 4, 1, 130, 33, head_dim=64, dtype="bfloat16", block_size=32),
    Shape(1, 4, 2, 64, 64, head_dim=32, dtype="float32", block_size=16),
]
TOKENS = [
    Shape(1, 20, 2, 200, 20, head_dim=32, dtype="float32", query_tokens=3),
    Shape(2, 4, 2, 130, 33, head_dim=64, dtype="bfloat16", block_size=32, query_tokens=4),
    Shape(2, 8, 2, 300, 1, head_dim=64, dtype="float16", query_tokens=16),
]


@pytest.mark.parametrize("shape", [*CASES, *TOKENS], ids=str)
def test_exactly_k_are_kept(shape: Shape) -> None:
    inputs = make_inputs(shape, "cpu", copies=2)
    out, _, kept, value_rows = toptheta_npu.incremental_attention_with_stats(
        inputs.query, *inputs.layers[1], inputs.threshold, actual_seq_lengths=inputs.lengths,
        block_table=inputs.block_table, block_size=shape.block_size, sdc="none",
    )  # fmt: skip
    assert torch.equal(kept, inputs.kept)
    rows = (shape.batch, shape.num_heads, *([shape.query_tokens] if shape.query_tokens > 1 else []))
    assert torch.equal(kept, torch.full(rows, shape.k, dtype=torch.int32))
    assert torch.equal(value_rows, inputs.value_rows)
    torch.testing.assert_close(out.float(), inputs.answers["kept"], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("shape", [CASES[0], CASES[1]], ids=str)
def test_answers_are_those_of_the_reference(shape: Shape) -> None:
    inputs = make_inputs(shape, "cpu", copies=1)
    query, key, value = (tensor.double() for tensor in (inputs.query[:, :, 0], *inputs.layers[0]))
    for name, threshold, sdc, mean in (
        ("dense", torch.full_like(inputs.threshold, -math.inf), "none", None),
        ("kept", inputs.threshold, "none", None),
        ("compensated", inputs.threshold, "exact", inputs.value_mean.double()),
    ):
        rows = reference.Rows(query, key, value, threshold.double())
        expected = reference.incremental_attention(rows, Compensation(sdc, value_mean=mean)).out
        torch.testing.assert_close(inputs.answers[name][:, :, 0].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [replace(TOKENS[0], k=199)], ids=str)
def test_a_token_has_the_answers_that_it_has_alone(shape: Shape) -> None:
    """The last token sees all keys, and each one before it one key less. With k = 199, the first one has too few."""
    inputs = make_inputs(shape, "cpu", copies=1)
    query, key, value = (tensor.double() for tensor in (inputs.query, *inputs.layers[0]))
    for token, seen in enumerate((198, 199, 200)):
        theta, mean = inputs.threshold[:, :, token], inputs.value_mean[:, :, token].double()
        torch.testing.assert_close(mean, value[:, :, :seen].mean(2), atol=1e-6, rtol=1e-4)
        for name, threshold, sdc, vmc in (
            ("dense", torch.full_like(theta, -math.inf), "none", None),
            ("kept", theta, "none", None),
            ("compensated", theta, "exact", mean),
        ):
            rows = reference.Rows(query[:, :, token], key[:, :, :seen], value[:, :, :seen], threshold.double())
            expected = reference.incremental_attention(rows, Compensation(sdc, value_mean=vmc))
            torch.testing.assert_close(inputs.answers[name][:, :, token].double(), expected.out, atol=1e-5, rtol=1e-4)
        assert inputs.kept[:, :, token].tolist() == [[min(seen, shape.k)] * shape.num_heads]


def test_layers_lie_apart_and_are_equal() -> None:
    inputs = make_inputs(CASES[2], "cpu", copies=3)
    assert len({tensor.data_ptr() for layer in inputs.layers for tensor in layer}) == 6
    assert all(torch.equal(a, b) for layer in inputs.layers for a, b in zip(layer, inputs.layers[0], strict=True))


def test_blocks_are_shuffled() -> None:
    inputs = make_inputs(CASES[2], "cpu", copies=1)
    assert inputs.block_table is not None
    assert inputs.layers[0][0].shape == (10, 1, 32, 64)
    flat = inputs.block_table.flatten().tolist()
    assert sorted(flat) == list(range(10))
    assert flat != sorted(flat)


def test_threshold_is_midway() -> None:
    scores = torch.tensor([[4.0, 1.0, 3.0, 2.0]])
    assert threshold_after(scores, 2).tolist() == [2.5]
    assert threshold_after(scores, 4).tolist() == [-math.inf]
    one = torch.tensor(1.0)
    neighbours = torch.stack([one, torch.nextafter(one, torch.tensor(2.0)), torch.tensor(0.0)])[None]
    assert (neighbours > threshold_after(neighbours, 1)[:, None]).tolist() == [[False, True, False]]


def test_bytes_and_bound_by_hand() -> None:
    paper = Shape(1, 48, 48, 2048, 128)
    traffic = make_traffic(paper, 48 * 128)
    assert traffic.key_bytes == 48 * 2048 * 256
    assert traffic.value_bytes == 48 * 128 * 256
    assert traffic.density == 1 / 16
    assert traffic.bound == pytest.approx(32 / 17)
    assert make_traffic(replace(paper, query_tokens=4), 48 * 400).bound == pytest.approx(2 / (1 + 400 / 2048))
    assert make_traffic(paper, 48 * 2048).bound == 1


def test_copies_exceed_twice_the_cache() -> None:
    paper = Shape(1, 48, 48, 2048, 128)  # 48 MiB
    assert count_copies(paper, 192 << 20, cold=True) == 8
    assert count_copies(paper, 1 << 20, cold=True) == 2
    assert count_copies(paper, 192 << 20, cold=False) == 1


def test_memory_is_checked_before_anything_is_allocated() -> None:
    huge = Shape(64, 64, 64, 1 << 20, 1)
    assert bytes_needed(huge, 2) > 2 * huge.layer_bytes
    scores = 4 * 64 * 64 * (1 << 20)
    assert bytes_needed(replace(huge, query_tokens=4), 2) > bytes_needed(huge, 2) + 3 * scores
    with pytest.raises(TopThetaValueError, match=r"shape: .* the 1\.0 GiB that are free .* GiB for batch=64"):
        check_memory(huge, 2, 1 << 30)
