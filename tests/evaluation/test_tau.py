"""One probability for all heads: by the LSE of the row, and of a sample of keys."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.evaluation.small_model import logits_and_statistics, random_windows, small_model
from toptheta_npu.errors import TopThetaError
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.methods.tau import Lse, select_probable
from toptheta_npu.fallback.prefill import Prompt, RowChunk, row_chunks
from toptheta_npu.fallback.sampled import sampled_keys

PADDED = {"actual_seq_lengths": torch.tensor([40, 29]), "key_start": torch.tensor([0, 11])}


def chunk_of(length: int, seed: int = 0, scale: float = 2.0, **options: Tensor) -> RowChunk:
    generator = torch.Generator().manual_seed(seed)
    query, key = (scale * torch.randn(2, heads, length, 8, generator=generator) for heads in (4, 2))
    (chunk,) = row_chunks(Prompt(query, key, key, **options))
    return chunk


def rows_of(chunk: RowChunk) -> list[tuple[tuple[int, int, int], Tensor, slice]]:
    """Place, visible scores and their keys of every row that is no padding."""
    found = []
    for b, h, r in torch.cartesian_prod(*(torch.arange(size) for size in chunk.scores.shape[:3])).tolist():
        first, n = int(chunk.first[b, 0, 0]), int(chunk.n[b, 0, r])
        if n:
            found.append(((b, h, r), chunk.scores[b, h, r, first : first + n], slice(first, first + n)))
    return found


@pytest.mark.parametrize("options", [{}, PADDED], ids=["full", "padded"])
@pytest.mark.parametrize("tau", [0.2, 0.01])
def test_a_row_keeps_what_has_more_than_tau_of_it(options: dict[str, Tensor], tau: float) -> None:
    chunk = chunk_of(40, **options)
    kept = select_probable(tau)(chunk)
    for place, scores, keys in rows_of(chunk):
        assert kept[place][keys].tolist() == (scores.double().softmax(-1) > tau).tolist()


def test_a_sink_is_a_part_of_the_denominator() -> None:
    chunk = chunk_of(8)._replace(learnable_sink=torch.full((4,), 50.0))
    assert not (select_probable(0.01)(chunk) & chunk.visible).any()


@pytest.mark.parametrize("options", [{}, {"key_start": torch.tensor([0, 20])}], ids=["full", "padded"])
def test_a_sample_is_the_ends_and_keys_at_equal_distances(options: dict[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = 2 * torch.randn(2, 4, 3, 8, generator=generator), 2 * torch.randn(2, 2, 600, 8, generator=generator)
    (chunk,) = row_chunks(Prompt(query, key, key, **options))
    chunk = chunk._replace(learnable_sink=torch.tensor([-1e9, 0.0, 3.0, 9.0]))
    found = chunk.sampled_lse()
    assert len(rows_of(chunk)) == 2 * 4 * 3
    for place, scores, _ in rows_of(chunk):
        between = len(scores) - 16 - 128
        strided = scores[16 + torch.arange(256) * between // 256].exp().sum() * between / 256
        sink = chunk.learnable_sink[place[1]].exp()
        expected = (scores[:16].exp().sum() + scores[-128:].exp().sum() + strided + sink).log()
        torch.testing.assert_close(found[place], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("length", [1, 16, 17, 144, 145, 300, 400])
def test_the_sample_of_a_short_row_is_all_of_it(length: int) -> None:
    places, log_weights = sampled_keys(torch.tensor([length, 0]))
    there = log_weights[0] > -torch.inf
    assert sorted(places[0, there].tolist()) == list(range(length))
    assert not log_weights[0, there].any()
    assert (log_weights[1] == -torch.inf).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-0.1,), "tau: expected a probability from 0 to below 1, got -0.1; such as 0.001"),
        ((1.0,), "tau: expected a probability from 0 to below 1, got 1.0"),
        ((math.nan,), "tau: expected a number, got nan"),
        ((0.1, "newest"), "lse: expected one of exact, sampled"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[float, Lse, int], message: str) -> None:
    with pytest.raises(TopThetaError, match=message):
        select_probable(*arguments)


def test_a_tau_of_zero_keeps_all_and_loses_nothing() -> None:
    model, windows = small_model(), random_windows(2, 3)
    expected, _ = logits_and_statistics(make_method("dense"), model, windows)
    for text in ("tau:tau=0", "tau:tau=0,lse=sampled", "tau:tau=0,vmc=false,sdc=none"):
        logits, layers = logits_and_statistics(make_method(text), model, windows)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        for layer in layers:
            assert torch.equal(layer.kept, layer.keys[:, None].expand_as(layer.kept))


def test_a_model_needs_no_table_and_keeps_less_with_a_larger_tau() -> None:
    model, windows, kept = small_model(), random_windows(2, 3), []
    for text in ("tau:tau=0.005", "tau:tau=0.05", "tau:tau=0.05,lse=sampled"):
        _, layers = logits_and_statistics(make_method(text), model, windows)
        kept.append(sum(float(layer.kept.sum()) for layer in layers))
    assert kept[0] > kept[1] > 0
    assert kept[2] == pytest.approx(kept[1], rel=0.001)  # rows as short as these are their own sample
