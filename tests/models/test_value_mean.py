"""The running mean of V: in every decode step of every way of generating it is the mean of the valid V rows."""

from __future__ import annotations

import copy
from functools import lru_cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import StaticCache

from tests.models.tiny import CACHES, K, model_of, new_cache, new_model, table_of, tokens
from toptheta_npu.models import sparsify
from toptheta_npu.models.caches import value_mean
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.caches.visible_keys import Rows
from toptheta_npu.models.sparse import threshold_rule

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def steps(monkeypatch):
    """Compares value_mean with V in every step; the list fills with whether V was summed up anew."""
    taken: list[bool] = []
    sums: list[int] = []
    original, original_sum = threshold_rule.incremental_attention, value_mean.sum_values

    def counted(*given):
        sums.append(1)
        return original_sum(*given)

    def checked(query, key, value, threshold, *, actual_seq_lengths, key_start, value_mean, **options):
        new = query.shape[2]
        means = value_mean if new > 1 else value_mean.unsqueeze(2)
        for row in range(len(query)):
            first = 0 if key_start is None else int(key_start[row])
            count = value.shape[2] if actual_seq_lengths is None else int(actual_seq_lengths[row])
            for token in range(new):
                expected = value[row, :, first : first + count - new + 1 + token].double().mean(1)
                torch.testing.assert_close(means[row, :, token].double(), expected, atol=1e-5, rtol=1e-5)
        taken.append(bool(sums))
        sums.clear()
        return original(
            query, key, value, threshold, actual_seq_lengths=actual_seq_lengths, key_start=key_start,
            value_mean=value_mean, **options,
        )  # fmt: skip

    monkeypatch.setattr(value_mean, "sum_values", counted)
    monkeypatch.setattr(threshold_rule, "incremental_attention", checked)
    return taken


def run(ids=None, new=10, model=None, **options):
    model = model_of() if model is None else model
    ids = tokens(2, 20, seed=3) if ids is None else ids
    return model.generate(ids, max_new_tokens=new, min_new_tokens=new, **{"do_sample": False, **options})


GROWING = pytest.mark.parametrize("kind", ["dynamic", "growing"])


def feed(ids, cache, first):
    for at in range(first, ids.shape[1]):
        model_of()(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache})


@pytest.mark.parametrize("cache", [None, "dynamic"])
def test_greedy_decoding_sums_up_once_and_then_adds_one_row_a_step(steps, cache):
    with sparsify(model_of(), table_of(), k=K):
        run(cache_implementation=cache)
    layers = 2
    assert steps == [True] * layers + [False] * layers * 8


def test_static_cache_on_a_cpu_sums_up_once_too(steps):
    with sparsify(model_of(), table_of(), k=K):
        run(cache_implementation="static", disable_compile=True)
    layers = 2
    assert steps == [True] * layers + [False] * layers * 8


@GROWING
@pytest.mark.parametrize("dropped", range(5))
def test_rejected_drafts_are_left_out_without_reading_v_again(steps, kind, dropped):
    cache, ids = new_cache(kind), tokens(2, 60, seed=5)
    with sparsify(model_of(), table_of(), k=K):
        model_of()(ids[:, :20], **{CACHE_ARGUMENT: cache})
        for new in (1, 5, 5, 1):
            at = cache.get_seq_length()
            model_of()(ids[:, at : at + new], **{CACHE_ARGUMENT: cache})
            if dropped and new > 1:
                cache.crop(-dropped)
    assert steps == [True] * 2 + [False] * 6


EDITS = {
    "copy_": lambda values: values.copy_(torch.randn(values.shape, generator=torch.Generator().manual_seed(1))),
    "zero_": lambda values: values.zero_(),
    "one row": lambda values: values[0, :, 0].fill_(7.0),
    "index": lambda values: values.__setitem__((slice(None), slice(None), slice(2, 5)), 1.0),
    "through a view": lambda values: values.detach().transpose(1, 2).add_(1.0),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("inference", [False, True])
def test_edits_of_a_growing_cache_are_noticed_once(steps, inference, edit):
    cache, ids = new_cache("growing"), tokens(2, 40)
    with torch.inference_mode(inference), torch.no_grad(), sparsify(model_of(), table_of(), k=K):
        model_of()(ids[:, :20], **{CACHE_ARGUMENT: cache})
        feed(ids[:, :25], cache, 20)
        steps.clear()
        for layer in cache.layers:
            EDITS[edit](layer.values)
        feed(ids[:, :30], cache, 25)
    assert steps == [True] * 2 + [False] * 8


def test_inference_mode_sums_up_once_too(steps):
    with torch.inference_mode(), sparsify(model_of(), table_of(), k=K):
        run()
        run(cache_implementation="static")
    assert steps[:18] == [True] * 2 + [False] * 16


def test_a_preallocated_cache_is_tested_on_the_device():
    """Value by value: each sequence of the batch adds its row or is summed up anew."""
    layer_values = torch.randn(3, 2, 16, 4)
    static = StaticCache(config=model_of().config, max_cache_len=16)
    layer = static.layers[0]
    layer.keys, layer.values, layer.is_initialized = layer_values, layer_values, True
    counts = torch.tensor([5, 9, 1])
    rows = Rows(16, counts[:, None], counts, torch.tensor([2, 0, 0]), None)
    owner = object()
    stale = torch.full((3, 2, 4), 100.0)
    known = value_mean.RunningMean(stale[:, :, None], torch.tensor([4, 4, 9]), layer_values, owner)
    setattr(layer, value_mean.STATE, known)
    found = value_mean.CachedLayer(static, 0, owner).value_mean(layer_values, rows)
    torch.testing.assert_close(found[0], (stale[0] + layer_values[0, :, 6]) / 5)
    torch.testing.assert_close(found[1], layer_values[1, :, :9].mean(1))
    torch.testing.assert_close(found[2], layer_values[2, :, 0])


def test_rows_outside_the_valid_range_may_hold_anything():
    value = torch.randn(2, 2, 10, 4)
    clean = value.clone()
    value[0, :, :3] = torch.nan
    value[1, :, 7:] = torch.inf
    counts = torch.tensor([7, 7])
    rows = Rows(10, counts[:, None], counts, torch.tensor([3, 0]), counts)
    found = value_mean.value_mean_without_cache(value, rows)
    torch.testing.assert_close(found[0], clean[0, :, 3:].mean(1))
    torch.testing.assert_close(found[1], clean[1, :, :7].mean(1))


OPERATIONS = st.one_of(
    st.tuples(st.just("edit"), st.sampled_from(sorted(EDITS))),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("chunk"), st.integers(2, 5)),
    st.tuples(st.just("crop"), st.integers(1, 8)),
    st.tuples(st.just("reorder"), st.permutations(range(2))),
    st.tuples(st.just("repeat"), st.just(None)),
    st.tuples(st.just("reset"), st.integers(1, 12)),
    st.tuples(st.just("replace"), st.just(None)),
    st.tuples(st.just("elsewhere"), st.integers(1, 3)),
    st.tuples(st.just("copy"), st.just(None)),
)


@lru_cache
def another_model():
    return new_model()


class Session:
    """Two sequences, later perhaps more, whose cache meets operations between its decode steps."""

    def __init__(self, *, kind: str, padding: int) -> None:
        self.cache = new_cache(kind, 256)
        self.static = kind == "static"
        self.mask = torch.ones(2, 0, dtype=torch.long)
        self.drawn = 0
        self.feed(10)
        self.mask[0, :padding] = 0

    def feed(self, count: int, model=None) -> None:
        self.drawn += 1
        ids = tokens(len(self.mask), count, seed=self.drawn)
        self.mask = torch.cat([self.mask, torch.ones_like(ids)], dim=1)
        (model_of() if model is None else model)(ids, attention_mask=self.mask, **{CACHE_ARGUMENT: self.cache})

    def do(self, name: str, argument) -> None:
        if name == "step":
            for _ in range(argument):
                self.feed(1)
        elif name == "chunk":
            self.feed(argument)
        elif name == "elsewhere":
            self.feed(argument, another_model())
        elif name == "reset":
            self.cache.reset()
            self.mask = self.mask[:, : int(self.cache.get_seq_length())]  # transformers 5.0 keeps rows of zeros
            self.feed(argument)
        elif name == "reorder":
            index = torch.tensor(argument)
            if len(self.mask) == len(index):
                self.cache.reorder_cache(index)
                self.mask = self.mask[index]
        elif name == "copy":
            self.cache = copy.deepcopy(self.cache)
        elif name == "edit":
            for layer in self.cache.layers:
                EDITS[argument](layer.values)
        elif name == "replace":
            for layer in self.cache.layers:
                layer.values = layer.values * 2
        elif not self.static:
            self.resize(name, argument)

    def resize(self, name: str, argument) -> None:
        """What only a growing cache can do."""
        if name == "repeat" and len(self.mask) < 8:
            self.cache.batch_repeat_interleave(2)
            self.mask = self.mask.repeat_interleave(2, dim=0)
        elif name == "crop" and self.mask.shape[1] - argument > 6:
            self.cache.crop(-argument)
            self.mask = self.mask[:, :-argument]


@pytest.mark.filterwarnings("ignore::toptheta_npu.models.NothingSparsifiedWarning")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(OPERATIONS, min_size=4, max_size=10), st.sampled_from(CACHES), st.integers(0, 5))
def test_any_history_of_a_cache_gives_the_mean_of_its_rows(steps, operations, kind, padding):
    steps.clear()
    with sparsify(model_of(), table_of(), k=K):
        session = Session(kind=kind, padding=padding)
        for name, argument in operations:
            session.do(name, argument)
            session.do("step", 1)
    assert len(steps) >= 2 * len(operations)
