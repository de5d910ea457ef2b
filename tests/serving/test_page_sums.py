"""Cumulative V sums of pages against the plain mean over the rows of each sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from tests.serving.paged_engine import FORMS, HEAD_DIM, HEADS, PagedEngine, Sequence, empty_cache, running
from tests.tiers import product
from toptheta_npu import TopThetaValueError
from toptheta_npu.models.caches.value_mean import value_mean_without_cache
from toptheta_npu.models.caches.visible_keys import Rows
from toptheta_npu.vllm import page_sums
from toptheta_npu.vllm.page_sums import NewRows, PageSums

LAYOUTS = ("heads first", "rows first", "side by side")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=20)


class AnyOrder(RuleBasedStateMachine):
    """Chunks, shared prefixes, reuse, rejected drafts, preemption, in any order: means are the plain ones, exactly."""

    form = "native"

    @initialize(
        sizes=st.sampled_from([(1, 1), (2, 2), (3, 3), (4, 2), (4, 4), (8, 2)]),
        dtype=st.sampled_from(DTYPES), layout=st.sampled_from(LAYOUTS),
    )  # fmt: skip
    def serve(self, sizes: tuple[int, int], dtype: torch.dtype, layout: str) -> None:
        block_size, rows = sizes
        self.engine = PagedEngine(12, block_size, dtype, layout, self.form, rows)

    @rule(tokens=TOKENS)
    def arrive(self, tokens: list[int]) -> None:
        self.engine.start(tokens)

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data(), newcomer=st.none() | TOKENS, wanted=st.booleans())
    def step(self, data: st.DataObject, newcomer: list[int] | None, wanted: bool) -> None:
        """Some get a chunk of their prompt, others a token and drafts; who comes meanwhile may share their pages.

        Where all rows are too short for thresholds, no mean is wanted.
        """
        counts: dict[Sequence, int] = {}
        drafted: dict[Sequence, list[int]] = {}
        for sequence in [*self.engine.sequences, None]:
            if sequence is None:
                if newcomer is None:
                    continue
                sequence = self.engine.start(newcomer)
            drafts: list[int] = []
            if sequence.computed == len(sequence.tokens):
                sequence.tokens.append(data.draw(st.integers(0, 1)))
                drafts = data.draw(st.lists(st.integers(0, 1), max_size=4))
            count = self.engine.schedule(sequence, data.draw(st.integers(1, 12)), drafts)
            if count:
                counts[sequence], drafted[sequence] = count, drafts
        order = data.draw(st.permutations(list(counts)))
        for sequence in order:
            sequence.tokens += drafted[sequence]
        self.engine.run({sequence: counts[sequence] for sequence in order}, wanted)
        for sequence in order:  # drafts are rejected, from the first wrong one on
            if drafted[sequence]:
                kept = len(sequence.tokens) - data.draw(st.integers(0, len(drafted[sequence])))
                del sequence.tokens[min(kept, sequence.computed) :]
                sequence.computed = min(sequence.computed, len(sequence.tokens))

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data(), comes_back=st.booleans())
    def end(self, data: st.DataObject, comes_back: bool) -> None:
        sequence = data.draw(st.sampled_from(self.engine.sequences))
        self.engine.drop(sequence)
        if comes_back:
            self.engine.start(sequence.tokens)

    @invariant()
    def means_are_right(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()


class AnyOrderInTorch(AnyOrder):
    """The same in PyTorch."""

    form = "torch"


class AnyOrderOnADevice(AnyOrder):
    """The same where values cannot be looked at."""

    form = "device"


for machine in (AnyOrder, AnyOrderInTorch, AnyOrderOnADevice):
    machine.TestCase.settings = settings(stateful_step_count=15)
TestAnyOrder = AnyOrder.TestCase
TestAnyOrderInTorch = AnyOrderInTorch.TestCase
TestAnyOrderOnADevice = AnyOrderOnADevice.TestCase


@pytest.mark.parametrize(("form", "dtype", "layout", "block_size"), product(FORMS, DTYPES, LAYOUTS, (16, 128)))
def test_mean_is_that_of_the_transformers_path(form: str, dtype: torch.dtype, layout: str, block_size: int) -> None:
    """Bit for bit where sums are exact; else within the rounding that the docstring states."""
    torch.manual_seed(0)
    lengths, most = torch.tensor([1, 16, 17, 200, 333]), 384
    pages = most // block_size
    blocks = torch.randperm(5 * pages).reshape(5, pages)
    for whole in (True, False):
        cache = empty_cache(5 * pages, block_size, dtype, layout)
        values = (
            torch.randint(-9, 9, (5, HEADS, most, HEAD_DIM)) if whole else torch.randn(5, HEADS, most, HEAD_DIM) * 3
        )
        values = values.to(dtype)
        cache[blocks] = values.unflatten(2, (pages, block_size)).transpose(1, 2)
        sums = PageSums(5 * pages, block_size, HEADS, HEAD_DIM, "cpu")
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), (lengths - 1).cumsum(0)])
        with running(form):
            sums.means(cache, NewRows(blocks.int(), lengths - 1, starts))
            mean = sums.means(cache, NewRows(blocks.int(), lengths))
        assert mean.dtype == torch.float32
        expected = value_mean_without_cache(values, Rows(most, lengths[:, None], lengths, None, lengths))
        if whole:
            assert torch.equal(mean, expected)
            continue
        for row, length in enumerate(lengths.tolist()):
            used = values[row, :, :length].double()
            rows = min(block_size, 32)
            allowed = (rows + length / rows + 2) * 2.0**-24 * used.abs().mean(1)
            assert ((mean[row] - used.mean(1)).abs() <= allowed).all()


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_half_precision_are_summed_in_float32(form: str) -> None:
    """2048 + 1 is 2048 in float16, and 256 + 1 is 256 in bfloat16."""
    for dtype, large in ((torch.float16, 2048.0), (torch.bfloat16, 256.0)):
        cache = torch.ones(1, HEADS, 4, HEAD_DIM, dtype=dtype)
        cache[0, :, 0] = large
        with running(form):
            mean = PageSums(1, 4, HEADS, HEAD_DIM, "cpu").means(cache, NewRows(table(0), torch.tensor([4])))
        assert (mean == (large + 3) / 4).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_pages_that_another_computes_in_the_same_step_are_shared(form: str, order: tuple[int, ...]) -> None:
    """vLLM gives out a page with the step that computes it, wherever the sequences are in the batch."""
    engine = PagedEngine(10, 4, torch.float32, form=form)
    text = list(range(100))
    sequences, counts = [], []
    for tokens in (text[:9], text[:18], text[:17]):
        sequences.append(engine.start(tokens))
        counts.append(engine.schedule(sequences[-1], 100))
    assert counts == [9, 10, 1]
    engine.run({sequences[index]: counts[index] for index in order})
    engine.check()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_token_behind_a_page_that_another_ends_in_the_same_step_is_right(form: str, order: tuple[int, ...]) -> None:
    """A prompt of which only the last token is not cached, where all sequences have one new token."""
    engine, text = PagedEngine(10, 4, torch.float32, form=form), list(range(100))
    sequences = [engine.start(text[:8])]
    engine.step((sequences[0], 7))
    counts = [engine.schedule(sequences[0], 1)]
    sequences.append(engine.start(text[:9]))
    counts.append(engine.schedule(sequences[1], 100))
    assert counts == [1, 1]
    engine.run({sequences[index]: 1 for index in order})
    engine.check()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 9])
def test_rows_in_a_row_have_the_mean_of_each(form: str, tokens: int) -> None:
    """Each as a sequence of its own, over the ends of pages; and then the first of them alone, and other rows."""
    engine = PagedEngine(12, 4, torch.float32, form=form)
    sequences = [engine.start(list(range(first, first + length))) for first, length in ((0, 3), (50, 6))]
    engine.step(*((sequence, len(sequence.tokens)) for sequence in sequences))
    for _ in range(2):
        tables, lengths, expected = [], [], []
        for sequence in sequences:
            sequence.tokens += range(900, 900 + tokens)
            assert engine.schedule(sequence, tokens) == tokens
            for _ in range(tokens):
                sequence.computed += 1
                lengths.append(sequence.computed)
                expected.append(engine.expected(sequence))
            tables.append(engine.batch(sequences)[0][sequences.index(sequence)])
        table = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True).repeat_interleave(tokens, 0)
        new = NewRows(table, torch.tensor(lengths, dtype=torch.int32), most_in_a_row=tokens)
        with running(form):
            assert torch.equal(engine.sums.means(engine.cache, new), torch.stack(expected))
        for sequence in sequences:
            del sequence.tokens[-(tokens - 1) :]
            sequence.computed = len(sequence.tokens)
        engine.check()


def test_large_prompts_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_sums, "_AT_ONCE", 3)
    engine = PagedEngine(64, 2, torch.float32, form="torch")
    engine.step(*((engine.start(list(range(tokens))), tokens) for tokens in (23, 60)))
    engine.check()


def test_threads_have_the_same_sums() -> None:
    """Enough rows for a thread of their own."""
    cache = torch.randn(20, 4, 128, 64)
    pages, lengths = torch.arange(20, dtype=torch.int32).view(2, 10), torch.tensor([1280, 1200])
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            sums = PageSums(20, 128, 4, 64, "cpu")
            with running("native"):
                sums.means(cache, NewRows(pages, lengths, torch.tensor([0, 1280, 2480])))
                found.append(sums.means(cache, NewRows(pages, lengths)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
    torch.testing.assert_close(found[0][0], cache[:10].transpose(0, 1).flatten(1, 2).mean(1), atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
@torch._dynamo.config.patch(error_on_recompile=True)
def test_a_traced_step_serves_other_lengths_and_tables() -> None:
    """No value of a tensor is looked at, and no shape depends on one: traced once, run with all others."""
    torch._dynamo.reset()
    engine = PagedEngine(16, 4, torch.float32)
    pages, lengths = torch.zeros(3, 6, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    new = NewRows(pages, lengths)

    @torch.compile(backend="eager", fullgraph=True, dynamic=False)
    def step() -> Tensor:
        return engine.sums.means(engine.cache, new)

    first, second = engine.start([]), engine.start([])
    for tokens in range(1, 20):
        for sequence in (first, second) if tokens % 3 else (first,):
            sequence.tokens.append(tokens)
            sequence.computed += engine.schedule(sequence, 1)
        for row, sequence in zip(pages, (first, second), strict=False):
            row[: len(sequence.pages)] = torch.tensor(sequence.pages)
        lengths[:2] = torch.tensor([first.computed, second.computed])
        mean = step()
        assert torch.equal(mean[:2], torch.stack([engine.expected(first), engine.expected(second)]))
        assert (mean[2] == 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_sums_made_in_inference_mode_are_kept_up_outside_of_it(form: str) -> None:
    with torch.inference_mode():
        engine = PagedEngine(3, 4, torch.float32, form=form)
        sequence = engine.start([1, 2, 3, 4, 5])
        engine.step((sequence, 5))
    engine.cache = engine.cache.clone()  # of no inference mode, as an engine's
    for token in range(6, 10):
        sequence.tokens.append(token)
        engine.step((sequence, 1))


@pytest.mark.parametrize(("device", "share"), [("meta", 1 / 128), ("cpu", 1 / 32)])
def test_memory_is_a_small_share_of_a_half_precision_cache(device: str, share: float) -> None:
    cache_bytes = 2 * 100 * 8 * 128 * 128 * 2  # K and V of 100 pages of 128 rows, 8 heads of 128
    assert PageSums(100, 128, 8, 128, device)._sums.nbytes == pytest.approx(cache_bytes * share, rel=0.02)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("empty", ["sequences", "table", "lengths", "tokens"])
def test_empty_steps(empty: str, form: str) -> None:
    batch = 0 if empty == "sequences" else 2
    pages = torch.zeros(batch, 0 if empty == "table" else 3, dtype=torch.int32).fill_(-1)
    starts = torch.zeros(batch + 1, dtype=torch.int32) if empty == "tokens" else None
    new = NewRows(pages, torch.zeros(batch, dtype=torch.int32), starts)
    with running(form):
        mean = PageSums(3, 4, HEADS, HEAD_DIM, "cpu").means(empty_cache(3, 4, torch.float16, "heads first"), new)
    assert torch.equal(mean, torch.zeros(0 if empty in ("tokens", "sequences") else 2, HEADS, HEAD_DIM))


def table(*pages: int) -> Tensor:
    return torch.tensor([pages], dtype=torch.int32)


CACHE = torch.zeros(3, HEADS, 4, HEAD_DIM)
LENGTH = torch.ones(1, dtype=torch.int32)
WRONG = {
    "a length past the table": ({"lengths": 9 * LENGTH}, r"lengths\[0\]: expected 0 to 8 .*got 9"),
    "a length below 0": ({"lengths": -LENGTH}, "got -1"),
    "a page past the cache": ({"table": table(3, 0)}, r"block_table\[0\]: .*0 to 2, got 3"),
    "a page below 0": ({"table": table(-1, 0)}, "got -1"),
    "a page before the last": ({"table": table(3, 0), "lengths": 5 * LENGTH}, "got 3"),
}  # fmt: skip


@pytest.mark.parametrize("form", ["native", "torch"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_values(case: str, form: str) -> None:
    wrong, message = WRONG[case]
    given: dict[str, Any] = {"table": table(0, 1), "lengths": LENGTH} | wrong
    with running(form), pytest.raises(TopThetaValueError, match=message):
        PageSums(3, 4, HEADS, HEAD_DIM, "cpu").means(CACHE, NewRows(given["table"], given["lengths"]))


def test_another_cache_is_refused() -> None:
    sums = PageSums(3, 4, HEADS, HEAD_DIM, "cpu")
    with running("native"), pytest.raises(TopThetaValueError, match=r"value_cache: expected \[3, 2, 4, 16\]"):
        sums.means(CACHE[:2], NewRows(table(0, 1), LENGTH))
