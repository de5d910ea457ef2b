"""V sums per page against the plain mean over each sequence."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from tests.serving.paged_engine import HEAD_DIM, HEADS, PagedEngine, Sequence, empty_cache, naive_mean
from toptheta_npu import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models.caches.rows import Rows
from toptheta_npu.models.caches.value_mean import value_mean_without_cache
from toptheta_npu.vllm import page_sums
from toptheta_npu.vllm.page_sums import PageSums

LAYOUTS = ("heads first", "rows first", "side by side")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@pytest.fixture(params=["host", "device"])
def seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the values in tensors are looked at, as on a CPU, or not, as on a device."""
    if request.param == "device":
        monkeypatch.setattr(page_sums, "are_seen", lambda tensor: False)
    return request.param == "host"  # type: ignore[no-any-return]


class AnyOrder(RuleBasedStateMachine):
    """Writes, reuse, rejected drafts, preemption, sharing, in any order: means are the naive ones, bit for bit."""

    looks = True

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 4, 8]), dtype=st.sampled_from(DTYPES), layout=st.sampled_from(LAYOUTS)
    )
    def serve(self, block_size: int, dtype: torch.dtype, layout: str) -> None:
        self.engine = PagedEngine(12, block_size, dtype, layout)
        self.waiting: list[Tensor] = []

    def pick(self, data: st.DataObject) -> Sequence:
        return data.draw(st.sampled_from(self.engine.sequences))

    @rule(tokens=st.integers(1, 20), padding=st.integers(0, 3))
    def prefill(self, tokens: int, padding: int) -> None:
        sequence = self.engine.start()
        self._append([(sequence, tokens)], padding)

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data(), drafts=st.integers(0, 4), padding=st.integers(0, 3))
    def decode(self, data: st.DataObject, drafts: int, padding: int) -> None:
        """Every sequence gets a token and drafts, of which some are rejected afterwards."""
        self._append([(sequence, 1 + drafts) for sequence in self.engine.sequences], padding)
        for sequence in self.engine.sequences:
            rejected = data.draw(st.integers(0, drafts))
            own = len(sequence.rows) - sequence.shared * self.engine.block_size
            self.engine.roll_back(sequence, min(rejected, own))

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data(), more=st.integers(0, 9))
    def share_a_prefix(self, data: st.DataObject, more: int) -> None:
        parent = self.pick(data)
        shared = data.draw(st.integers(0, len(parent.rows) // self.engine.block_size))
        # what others may read is written no more
        parent.shared = max(parent.shared, shared)
        self._append([(self.engine.start(parent, shared), more)], 0)

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data(), poison=st.booleans())
    def finish(self, data: st.DataObject, poison: bool) -> None:
        self.engine.drop(self.pick(data), poison=poison)

    @precondition(lambda self: self.engine.sequences)
    @rule(data=st.data(), poison=st.booleans())
    def preempt(self, data: st.DataObject, poison: bool) -> None:
        sequence = self.pick(data)
        self.waiting.append(sequence.rows)
        self.engine.drop(sequence, poison=poison)

    @precondition(lambda self: self.waiting)
    @rule(chunk=st.integers(1, 7))
    def resume(self, chunk: int) -> None:
        rows = self.waiting.pop()
        sequence = self.engine.start()
        for part in rows.split(chunk):
            self.engine.step([(sequence, part[: max(self.engine.room(sequence), 0)])])

    @precondition(lambda self: self.looks and self.engine.free and any(s.pages for s in self.engine.sequences))
    @rule(data=st.data())
    def copy_a_page_elsewhere(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from([each for each in self.engine.sequences if each.pages]))
        self.engine.move_page(sequence, data.draw(st.integers(0, len(sequence.pages) - 1)))

    def _append(self, wanted: list[tuple[Sequence, int]], padding: int) -> None:
        step = []
        for sequence, tokens in wanted:
            rows = self.engine.draw(min(tokens, max(self.engine.room(sequence), 0)))
            # written at once, so that the next sequence of the step finds fewer free pages
            step += [self.engine.write(sequence, row) for row in rows]
        slots = torch.tensor(step + [-1] * padding, dtype=torch.int64)
        self.engine.sums.update(self.engine.cache, slots)

    @invariant()
    def means_are_right(self) -> None:
        assert torch.equal(self.engine.mean(), self.engine.expected())

    @invariant()
    def no_page_is_taken_for_another(self) -> None:
        if not self.looks:
            assert self.engine.sums.foreign_pages() == 0


class AnyOrderOnADevice(AnyOrder):
    """The same where values cannot be looked at."""

    looks = False

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(page_sums, "are_seen", lambda tensor: False)

    def teardown(self) -> None:
        self._patch.undo()


AnyOrder.TestCase.settings = AnyOrderOnADevice.TestCase.settings = settings(stateful_step_count=20)
TestAnyOrder = AnyOrder.TestCase
TestAnyOrderOnADevice = AnyOrderOnADevice.TestCase


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mean_equals_that_of_the_transformers_path(dtype: torch.dtype, layout: str, seen: bool) -> None:
    """Bit for bit where sums are exact; else within the rounding that the docstring states."""
    torch.manual_seed(0)
    block_size, lengths = 16, torch.tensor([1, 16, 17, 200, 333])
    blocks = torch.randperm(5 * 21).reshape(5, 21)
    for whole in (True, False):
        cache = empty_cache(5 * 21, block_size, dtype, layout)
        values = torch.randint(-9, 9, (5, HEADS, 336, HEAD_DIM)) if whole else torch.randn(5, HEADS, 336, HEAD_DIM) * 3
        values = values.to(dtype)
        cache[blocks] = values.unflatten(2, (21, block_size)).transpose(1, 2)
        sums = PageSums(5 * 21, HEADS, HEAD_DIM, "cpu")
        sums.update(cache, torch.arange(5 * 21 * block_size))

        mean = sums.mean(cache, blocks.int(), lengths)
        assert mean.dtype == torch.float32
        expected = value_mean_without_cache(values, Rows(336, lengths[:, None], lengths, None, lengths))
        if whole:
            assert torch.equal(mean, expected)
            continue
        for row, length in enumerate(lengths.tolist()):
            used = values[row, :, :length].double()
            allowed = (block_size + 21 + 2) * 2.0**-24 * used.abs().mean(1)
            assert ((mean[row] - used.mean(1)).abs() <= allowed).all()


def test_rows_of_half_precision_are_summed_in_float32(seen: bool) -> None:
    """2048 + 1 is 2048 in float16, and 256 + 1 is 256 in bfloat16."""
    for dtype, large in ((torch.float16, 2048.0), (torch.bfloat16, 256.0)):
        cache = torch.ones(1, HEADS, 4, HEAD_DIM, dtype=dtype)
        cache[0, :, 0] = large
        sums = PageSums(1, HEADS, HEAD_DIM, "cpu")
        sums.update(cache, torch.tensor([3]))
        assert (sums.mean(cache, torch.tensor([[0]]), torch.tensor([4])) == (large + 3) / 4).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stale_tails_never_count(layout: str, seen: bool) -> None:
    """A reused page holds NaN and infinities past the new sequence's end."""
    engine = PagedEngine(3, 4, torch.float16, layout)
    sequence = engine.start()
    engine.step([(sequence, engine.draw(6))])
    engine.cache[sequence.pages[1], :, 2] = torch.inf
    assert torch.equal(engine.mean(), engine.expected())
    engine.step([(sequence, engine.draw(1))])
    assert torch.equal(engine.mean(), engine.expected())


def test_a_page_written_elsewhere_is_made_anew_on_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    engine = PagedEngine(6, 4, torch.float32)
    sequence = engine.start()
    engine.step([(sequence, engine.draw(11))])
    with caplog.at_level(logging.WARNING, "toptheta_npu"):
        engine.mean()
        assert not caplog.records
        engine.move_page(sequence, 0)
        assert torch.equal(engine.mean(), engine.expected())
        assert "1 full pages of the cache were written past the attention backend" in caplog.text
        caplog.clear()
        assert torch.equal(engine.mean(), engine.expected())
        assert not caplog.records
    assert engine.sums.foreign_pages() == 1


def test_a_page_written_elsewhere_is_left_out_and_counted_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_sums, "are_seen", lambda tensor: False)
    engine = PagedEngine(6, 4, torch.float32)
    sequence = engine.start()
    engine.step([(sequence, engine.draw(11))])
    assert engine.sums.foreign_pages() == 0
    # a page that has an old sum, and one that never had any
    for old_sum in (True, False):
        if old_sum:
            engine.cache[sequence.pages[0], :, 3] += 1
        else:
            engine.move_page(sequence, 0)
        before = engine.sums.foreign_pages()
        assert torch.equal(engine.mean()[0], naive_mean(sequence.rows[4:]))
        assert engine.sums.foreign_pages() == before + 1
    engine.cache[sequence.pages[0]] = sequence.rows[:4].transpose(0, 1)
    engine.sums.rebuild(engine.cache)
    assert torch.equal(engine.mean(), engine.expected())


def test_pages_beyond_the_most_that_was_said_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong bound costs rows of the mean, and never gives a sum of what is no longer there."""
    monkeypatch.setattr(page_sums, "are_seen", lambda tensor: False)
    engine = PagedEngine(4, 4, torch.float32)
    sequence = engine.start()
    slots = torch.tensor([engine.write(sequence, row) for row in engine.draw(12)] + [-1])
    for most in range(5):
        engine.sums = PageSums(4, HEADS, HEAD_DIM, "cpu")
        engine.sums.update(engine.cache, slots, most)
        assert torch.equal(engine.mean()[0], naive_mean(sequence.rows[: 4 * most]))
        assert engine.sums.foreign_pages() == max(3 - most, 0)


def test_padding_takes_no_place_among_the_most_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_sums, "are_seen", lambda tensor: False)
    engine = PagedEngine(4, 4, torch.float32)
    sequence = engine.start()
    slots = [engine.write(sequence, row) for row in engine.draw(8)]
    engine.sums.update(engine.cache, torch.tensor([-1, *slots[:4], -1, -1, *slots[4:], -1]), 2)
    assert torch.equal(engine.mean(), engine.expected())


def test_sums_of_a_prompt_are_read_once_per_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once per token, also where nobody can look at the slots."""
    monkeypatch.setattr(page_sums, "are_seen", lambda tensor: False)
    read: list[int] = []
    content = page_sums._content
    monkeypatch.setattr(page_sums, "_content", lambda cache, pages: read.append(len(pages)) or content(cache, pages))
    engine = PagedEngine(64, 16, torch.float32)
    sequence = engine.start()
    slots = torch.tensor([engine.write(sequence, row) for row in engine.draw(1000)])
    engine.sums.update(engine.cache, slots, 1000 // 16 + 2)
    assert read == [1000 // 16 + 2]
    assert torch.equal(engine.mean(), engine.expected())


def test_large_batches_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    monkeypatch.setattr(page_sums, "_MOST_GATHERED", 2 * 3 * HEADS * HEAD_DIM * 4)
    engine = PagedEngine(64, 2, torch.float32)
    for tokens in (23, 60):
        engine.step([(engine.start(), engine.draw(tokens))])
    assert torch.equal(engine.mean(), engine.expected())


@pytest.mark.filterwarnings("ignore")
@torch._dynamo.config.patch(error_on_recompile=True)
def test_a_traced_step_serves_other_lengths_tables_and_slots() -> None:
    """No value of a tensor is looked at, and no shape depends on one: traced once, run with all others."""
    torch._dynamo.reset()
    engine = PagedEngine(16, 4, torch.float32)

    @torch.compile(backend="eager", fullgraph=True, dynamic=False)
    def step(slots: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        engine.sums.update(engine.cache, slots)
        return engine.sums.mean(engine.cache, table, lengths)

    first, second = engine.start(), engine.start()
    table = torch.zeros(3, 6, dtype=torch.int32)
    for tokens in range(1, 20):
        rows = [(first, engine.draw(1)), *([(second, engine.draw(1))] if tokens % 3 else [])]
        slots = [engine.write(sequence, row) for sequence, new in rows for row in new]
        for row, sequence in zip(table, (first, second), strict=False):
            row[: len(sequence.pages)] = torch.tensor(sequence.pages)
        lengths = torch.tensor([len(first.rows), len(second.rows), 0])
        mean = step(torch.tensor(slots + [-1] * (3 - len(slots))), table, lengths)
        assert torch.equal(mean, engine.expected())
    assert engine.sums.foreign_pages() == 0


def test_sums_made_in_inference_mode_are_kept_up_outside_of_it() -> None:
    with torch.inference_mode():
        engine = PagedEngine(3, 4, torch.float32)
        sequence = engine.start()
        engine.step([(sequence, engine.draw(5))])
    engine.cache = engine.cache.clone()  # of no inference mode, as an engine's
    engine.step([(sequence, engine.draw(3))])
    assert torch.equal(engine.mean(), engine.expected())


def test_memory_is_one_page_th_of_a_half_precision_cache() -> None:
    cache_bytes = 2 * 1000 * 8 * 128 * 128 * 2  # K and V of 1000 pages of 128 rows, 8 heads of 128
    assert PageSums(1000, 8, 128, "meta").nbytes == pytest.approx(cache_bytes / 128, rel=0.04)


@pytest.mark.parametrize("empty", ["tokens", "sequences", "table"])
def test_empty_steps(empty: str, seen: bool) -> None:
    engine = PagedEngine(3, 4, torch.float32)
    if empty == "tokens":
        engine.step([])
    elif empty == "sequences":
        mean = engine.sums.mean(engine.cache, torch.zeros(0, 4, dtype=torch.int32), torch.zeros(0, dtype=torch.int32))
        assert mean.shape == (0, HEADS, HEAD_DIM)
    else:
        mean = engine.sums.mean(engine.cache, torch.zeros(2, 0, dtype=torch.int32), torch.zeros(2, dtype=torch.int32))
        assert torch.equal(mean, torch.zeros(2, HEADS, HEAD_DIM))


CACHE = torch.zeros(3, HEADS, 4, HEAD_DIM)
WRONG = {
    "another number of pages": ({"value_cache": CACHE[:2]}, TopThetaValueError, r"value_cache: expected \[3, 2, block"),
    "three dimensions": ({"value_cache": CACHE[0]}, TopThetaValueError, "value_cache"),
    "a quantised cache": ({"value_cache": CACHE.to(torch.int8)}, TopThetaTypeError, "value_cache: expected float16"),
    "head_dim not side by side": (
        {"value_cache": torch.zeros(3, HEADS, HEAD_DIM, 4).transpose(2, 3)}, TopThetaValueError, "side by side",
    ),
    "a slot past the cache": ({"slots": torch.tensor([12])}, TopThetaValueError, r"slots: expected -1 to 11 .*got 12"),
    "a slot below -1": ({"slots": torch.tensor([-2])}, TopThetaValueError, "got -2"),
    "slots of floats": ({"slots": torch.zeros(1)}, TopThetaTypeError, "slots: expected int32 or int64"),
    "slots of two dimensions": ({"slots": torch.zeros(1, 1, dtype=torch.int64)}, TopThetaValueError, "1 dimension,"),
    "a table of one dimension": ({"table": torch.zeros(1, dtype=torch.int32)}, TopThetaValueError, "2 dimensions"),
    "lengths of floats": ({"lengths": torch.zeros(1)}, TopThetaTypeError, "seq_lens"),
    "too many lengths": ({"lengths": torch.zeros(2, dtype=torch.int32)}, TopThetaValueError, "1 lengths, one per row"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case: str) -> None:
    wrong, error, message = WRONG[case]
    arguments = {
        "value_cache": CACHE, "slots": torch.tensor([0]), "table": torch.zeros(1, 2, dtype=torch.int32),
        "lengths": torch.ones(1, dtype=torch.int32),
    } | wrong  # fmt: skip
    sums = PageSums(3, HEADS, HEAD_DIM, "cpu")

    def step() -> None:
        sums.update(arguments["value_cache"], arguments["slots"])
        sums.mean(arguments["value_cache"], arguments["table"], arguments["lengths"])

    with pytest.raises(error, match=message):
        step()
