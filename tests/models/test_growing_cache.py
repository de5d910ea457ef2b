"""The cache that grows in place gives what a DynamicCache gives, and copies nothing that stays."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from transformers import DynamicCache, MistralConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tests.models.tiny import LOOKUP, K, model_of, new_model, table_of, tokens
from tests.tiers import full
from toptheta_npu.models import GrowingCache, sparsify
from toptheta_npu.models.caches import growing
from toptheta_npu.models.caches.growing import GrowingLayer
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT

pytestmark = pytest.mark.usefixtures("no_grad")


def rows(count: int, batch: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, count, 16, generator=made), torch.randn(batch, 3, count, 16, generator=made)


def filled(*counts: int) -> tuple[GrowingLayer, DynamicLayer]:
    layers = GrowingLayer(), DynamicLayer()
    for number, count in enumerate(counts):
        for layer in layers:
            layer.update(*rows(count, seed=number))
    return layers


def assert_same(ours, theirs) -> None:
    assert ours.get_seq_length() == theirs.get_seq_length()
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)


CHANGES = {
    "nothing": lambda layer: None,
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 1])),
    "repeat": lambda layer: layer.batch_repeat_interleave(2),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([1])),
    "select by mask": lambda layer: layer.batch_select_indices(torch.tensor([True, False])),
    "crop": lambda layer: layer.crop(-3),
    "crop far": lambda layer: layer.crop(-18),
    "replace": lambda layer: setattr(layer, "values", layer.values * 2),
    "drop the first": lambda layer: (setattr(layer, "keys", layer.keys[:, :, 1:]),
                                     setattr(layer, "values", layer.values[:, :, 1:])),
    "edit": lambda layer: layer.keys[:, :, 3].fill_(1.0),
    "swap": lambda layer: (setattr(layer, "keys", layer.values), setattr(layer, "values", layer.keys.clone())),
    "offload": lambda layer: (layer.offload(), layer.prefetch()),
}  # fmt: skip
NEED_TWO = ("reorder", "select", "select by mask")  # sequences


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_holds_what_a_dynamic_one_holds(change, inference):
    for then in CHANGES:
        ours, theirs = filled(9, 1, 70, 1)
        for each in (change, then):
            with torch.inference_mode(inference):
                for layer in (ours, theirs):
                    if len(layer.keys) == 2 or each not in NEED_TWO:
                        CHANGES[each](layer)
                    layer.update(*rows(2, batch=len(layer.keys), seed=7))
            assert_same(ours, theirs)
            for layer in (ours, theirs):
                layer.update(*rows(1, batch=len(layer.keys), seed=8))
            assert_same(ours, theirs)


def test_a_token_is_written_behind_the_others_and_nothing_moves(monkeypatch):
    ours, _ = filled(1000)
    places = ours.keys.data_ptr(), ours.values.data_ptr()
    views = ours.keys, ours.values
    before = [view.clone() for view in views]
    monkeypatch.setattr(growing, "_with_room", lambda *_: pytest.fail("it was copied"))
    for _ in range(1000 // 8):
        keys, values = ours.update(*rows(1))
        assert keys is ours.keys
        assert values is ours.values
        assert (keys.data_ptr(), values.data_ptr()) == places
    assert all(torch.equal(*pair) for pair in zip(views, before, strict=True))


def test_the_room_is_an_eighth_or_64_rows_and_few_updates_copy(monkeypatch):
    copies = []
    original = growing._with_room
    monkeypatch.setattr(growing, "_with_room", lambda *given: copies.append(given[3]) or original(*given))
    layer = GrowingLayer()
    for _ in range(3000):
        layer.update(*rows(1))
        capacity = layer.keys.stride(1) // layer.keys.stride(2)
        assert capacity <= layer.get_seq_length() * 9 / 8 + 64
    assert sum(copies) < 2 * 10 * 3000  # K and V, each row up to ten times instead of 3000 times


def test_a_buffer_of_inference_mode_takes_tokens_outside_of_it():
    layer = GrowingLayer()
    with torch.inference_mode():
        layer.update(*rows(5))
        layer.reorder_cache(torch.tensor([1, 0]))
    assert not layer.update(*rows(1))[0].is_inference()


def test_gradients_flow_through_it_as_through_a_dynamic_cache():
    found = []
    for layer in (GrowingLayer(), DynamicLayer()):
        key, value = rows(4)
        with torch.enable_grad():
            first = key.clone().requires_grad_()
            layer.update(first, value)
            square = layer.keys.square()  # remembers the keys
            layer.update(first[:, :, :1], value[:, :, :1])
            (square.sum() + layer.keys.sum()).backward()
        layer.update(*rows(1))
        assert not layer.keys.requires_grad
        found.append((first.grad, layer.keys))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_tensors_that_do_not_fit_are_refused_or_promoted_as_by_a_dynamic_cache():
    for layer in filled(4):
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            layer.update(*rows(1, batch=3))
        key, value = rows(1)
        assert layer.update(key.double(), value.double())[0].dtype == torch.float64


@pytest.mark.parametrize("how", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_are_independent(how):
    ours, _ = filled(30, 1)
    ours.crop(-5)
    made = how(ours)
    before = made.keys.clone()
    ours.update(*rows(3, seed=3))
    ours.keys.zero_()
    assert torch.equal(made.keys, before)
    made.update(*rows(2))
    assert made.get_seq_length() == 28


def test_a_reset_layer_begins_anew_with_any_batch():
    ours, _ = filled(30)
    ours.reset()
    assert ours.get_seq_length() == 0
    ours.update(*rows(4, batch=5))
    assert ours.keys.shape == (5, 3, 4, 16)


def test_layers_with_a_window_are_those_of_a_dynamic_cache():
    hybrid = MistralConfig(num_hidden_layers=2, sliding_window=8)
    assert [type(layer) for layer in GrowingCache(hybrid).layers] == [DynamicSlidingWindowLayer] * 2
    assert [type(layer) for layer in GrowingCache(model_of().config).layers] == [GrowingLayer] * 2


OPTIONS = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}


def assistant():
    model = new_model(seed=5)
    model.generation_config.assistant_confidence_threshold = 0.0
    return model


WAYS = {
    "greedy": dict,
    "beams": lambda: {"num_beams": 3, "num_return_sequences": 2},
    "several": lambda: {"num_return_sequences": 3, "do_sample": True, "temperature": 1.5},
    "assistant": lambda: {"assistant_model": assistant()},
    "prompt lookup": lambda: dict(LOOKUP),
    "chunks": lambda: {"prefill_chunk_size": 7},
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::toptheta_npu.models.DenseDraftsWarning")
def test_generate_gives_the_tokens_of_a_dynamic_cache(way, inside):
    found = []
    for cache in (DynamicCache(), GrowingCache()):
        torch.manual_seed(0)
        prompt = tokens(1, 10, seed=3).repeat(1, 2)
        if inside:
            with sparsify(model_of(), table_of(), k=K):
                found.append(model_of().generate(prompt, **{**OPTIONS, **WAYS[way](), CACHE_ARGUMENT: cache}))
        else:
            found.append(model_of().generate(prompt, **{**OPTIONS, **WAYS[way](), CACHE_ARGUMENT: cache}))
        assert cache.get_seq_length() > 20
    assert torch.equal(*found)


def returned(model, ids=None, **options):
    options = {**OPTIONS, "return_dict_in_generate": True, **options}
    return model.generate(tokens(1, 20) if ids is None else ids, **options)


def test_generate_within_the_context_uses_it_where_the_caller_names_no_cache():
    model = model_of()
    kind = type(model)
    with sparsify(model, table_of(), k=K):
        assert type(returned(model)[CACHE_ARGUMENT]) is GrowingCache
        assert type(returned(model, num_beams=2)[CACHE_ARGUMENT]) is GrowingCache
        assert type(returned(model, cache_implementation="dynamic")[CACHE_ARGUMENT]) is DynamicCache
        assert type(returned(model, **{CACHE_ARGUMENT: DynamicCache()})[CACHE_ARGUMENT]) is DynamicCache
        assert CACHE_ARGUMENT not in returned(model, use_cache=False)
        assert type(returned(new_model())[CACHE_ARGUMENT]) is DynamicCache
        assert type(model) is not kind
        assert type(model).__name__ == kind.__name__
    assert type(returned(model)[CACHE_ARGUMENT]) is DynamicCache
    assert type(model) is kind
    with pytest.raises(ZeroDivisionError), sparsify(model, table_of(), k=K):
        raise ZeroDivisionError
    assert type(model) is kind


@full
def test_a_compiled_step_copies_as_with_a_dynamic_cache():
    model, ids = model_of(), tokens(1, 40, seed=20)
    compiled = torch.compile(model.forward, backend="eager", dynamic=True)
    with sparsify(model, table_of(), k=K):
        logits = []
        for forward, cache in ((model, DynamicCache()), (compiled, GrowingCache())):
            model(ids[:, :20], **{CACHE_ARGUMENT: cache})
            steps = [forward(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache}).logits for at in range(20, 22)]
            steps.append(model(ids[:, 22:23], **{CACHE_ARGUMENT: cache}).logits)
            logits.append(torch.cat(steps, 1))
    torch.testing.assert_close(*logits)
