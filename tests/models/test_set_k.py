"""Another k between two steps: tensors change in place, and every step is that of a fresh context."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from transformers import DynamicCache, StaticCache

from tests.models.tiny import model_of, new_model, tokens
from tests.tiers import full
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import NothingSparsifiedWarning, calibrate, calibrate_discarded_mass, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.sparse.device_thresholds import DeviceThresholds
from toptheta_npu.thresholds import ThresholdTable

pytestmark = pytest.mark.usefixtures("no_grad")

SCHEDULE = (6, 20, 9, 20, 6, 12)


@lru_cache
def table_of(placement: str = "pre_softmax") -> ThresholdTable:
    options = {"layer_k": [0, 10], "placement": placement, "top_k_at_calibration": False, "estimator": "pooled"}
    return calibrate(model_of(), tokens(6, 80, seed=1), k=[6, 20], **options)


@lru_cache
def offline_table() -> ThresholdTable:
    return calibrate_discarded_mass(model_of(), table_of(), tokens(6, 80, seed=1))


def begun(ids: Tensor, cache=None):
    cache = DynamicCache() if cache is None else cache
    model_of()(ids[:, :30], **{CACHE_ARGUMENT: cache})
    return cache


def step(cache, ids: Tensor, number: int) -> Tensor:
    return model_of()(ids[:, 30 + number : 31 + number], **{CACHE_ARGUMENT: cache}).logits


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("static", [False, True])
def test_every_step_is_that_of_a_fresh_context_of_its_k(placement, static):
    ids, table = tokens(2, 40, seed=2), table_of(placement)
    new_cache = (lambda: StaticCache(config=model_of().config, max_cache_len=64)) if static else DynamicCache
    fresh, cache = [], begun(ids, new_cache())
    for number, k in enumerate(SCHEDULE):
        # without V-mean compensation: a fresh context would sum V up again, which rounds differently
        with sparsify(model_of(), table, k=k, vmc=False):
            fresh.append(step(cache, ids, number))
    cache = begun(ids, new_cache())
    with sparsify(model_of(), table, k=20, vmc=False) as run:
        for number, k in enumerate(SCHEDULE):
            run.set_k(k)
            assert run.k == k
            assert torch.equal(step(cache, ids, number), fresh[number])
    assert (fresh[0] - fresh[1]).abs().max() > 1e-3


@full
def test_a_compiled_step_sees_another_k_and_is_not_compiled_again():
    ids, table, model = tokens(1, 60, seed=4), table_of(), new_model()
    counter, stats = CompileCounter(), torch._dynamo.utils.counters["stats"]
    compiled = torch.compile(model.forward, fullgraph=True, backend=counter)
    warm_up, schedule = [20] * 3, [*SCHEDULE, 6]

    def steps(forward, cache, ks) -> Iterator[Tensor]:
        for k in ks:
            run.set_k(k)
            at = cache.get_seq_length()
            yield forward(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache}).logits

    with sparsify(model, table, k=20) as run:
        caches = [StaticCache(config=model.config, max_cache_len=64) for _ in range(2)]
        for cache in caches:
            model(ids[:, :30], **{CACHE_ARGUMENT: cache})
        list(steps(compiled, caches[0], warm_up))
        before = counter.frame_count, stats["unique_graphs"]
        with torch._dynamo.config.patch(error_on_recompile=True):
            found = list(steps(compiled, caches[0], schedule))
        assert (counter.frame_count, stats["unique_graphs"]) == before
        plain = list(steps(model, caches[1], warm_up + schedule))[len(warm_up) :]
    assert counter.frame_count > 0
    for compiled_step, plain_step in zip(found, plain, strict=True):
        assert torch.equal(compiled_step, plain_step)


def test_the_offline_discarded_mass_follows():
    ids, table = tokens(1, 40, seed=6), offline_table()
    with sparsify(model_of(), table, k=9, sdc="offline"):
        expected = step(begun(ids), ids, 0)
    with sparsify(model_of(), table, k=20, sdc="offline") as run:
        other = step(begun(ids), ids, 0)
        run.set_k(9)
        assert torch.equal(step(begun(ids), ids, 0), expected)
    assert not torch.equal(other, expected)


@pytest.mark.parametrize("options", [{"dense_below": 33}, {"lookup": "fitted"}, {}])
def test_another_k_keeps_the_other_options(options):
    ids, table = tokens(1, 60, seed=7), table_of()
    cache, fresh = begun(ids), []
    for number, k in enumerate((10, 8, 20)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingSparsifiedWarning)
            with sparsify(model_of(), table, sdc="none", vmc=False, k=k, **options):
                fresh.append(step(cache, ids, number))
    cache = begun(ids)
    with sparsify(model_of(), table, k=7, sdc="none", vmc=False, **options) as run:
        for number, k in enumerate((10, 8, 20)):
            run.set_k(k)
            assert torch.equal(step(cache, ids, number), fresh[number])


# --- the tensors --------------------------------------------------------------------------------------


def test_the_tensors_stay_and_hold_what_at_gives_on_every_device():
    table = offline_table()
    held = DeviceThresholds(table.at(20), [torch.device("meta")])
    before = held.on(torch.device("cpu"))
    handed_out = table.at(9)
    as_it_was = copy.deepcopy(handed_out)
    held.replace(handed_out)
    after = held.on(torch.device("cpu"))
    for name in ("theta", "discarded_mass", "aims"):
        for old, new, want in zip(getattr(before, name), getattr(after, name), getattr(table.at(9), name), strict=True):
            assert old is new
            assert torch.equal(new, want)
    assert (after.k, after.dense_up_to) == (9, (9, 10))
    assert held.on(torch.device("meta")).dense_up_to == (9, 10)
    held.replace(table.at(6))
    assert all(torch.equal(mine, was) for mine, was in zip(handed_out.theta, as_it_was.theta, strict=True))
    assert (before.k, handed_out.k, as_it_was.layer_targets) == (20, 9, handed_out.layer_targets)


def test_set_k_works_across_inference_mode():
    ids, table = tokens(1, 40, seed=9), table_of()
    with sparsify(model_of(), table, k=9):
        expected = step(begun(ids), ids, 0)
    with torch.inference_mode():
        context = sparsify(model_of(), table, k=20)
        run = context.__enter__()
    run.set_k(9)
    assert torch.equal(step(begun(ids), ids, 0), expected)
    with torch.inference_mode():
        run.set_k(20)
        run.set_k(9)
        assert torch.equal(step(begun(ids), ids, 0), expected)
    context.__exit__(None, None, None)


# --- refusals and warnings ----------------------------------------------------------------------------


def test_a_refused_k_changes_nothing():
    ids, table = tokens(1, 40, seed=10), table_of()
    with sparsify(model_of(), table, k=9) as run:
        expected = step(begun(ids), ids, 0)
        for k, kind, message in (
            (5, TopThetaValueError, "k: expected 6 to 20, the calibrated range, got 5"),
            (21, TopThetaValueError, "k: expected 6 to 20, the calibrated range, got 21"),
            (9.0, TopThetaTypeError, "k: expected an int, got 9.0"),
            (None, TopThetaTypeError, "k: expected an int, got None"),
        ):
            with pytest.raises(kind, match=message):
                run.set_k(k)
        assert run.k == 9
        assert torch.equal(step(begun(ids), ids, 0), expected)
    with pytest.raises(TopThetaValueError, match="got one that has ended; enter sparsify again"):
        run.set_k(9)


def test_an_idle_context_warns_by_the_k_of_its_time():
    ids = tokens(1, 15, seed=11)

    def generate() -> None:
        model_of().generate(ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)

    with pytest.warns(NothingSparsifiedWarning, match="rows of up to 20 keys"), sparsify(model_of(), table_of(), k=20):
        generate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sparsify(model_of(), table_of(), k=20) as run:
            run.set_k(6)
            generate()
        with sparsify(model_of(), table_of(), k=6) as run:
            generate()
            run.set_k(20)
    with (
        pytest.warns(NothingSparsifiedWarning, match="rows of fewer than dense_below=31 keys"),
        sparsify(model_of(), table_of(), k=6, dense_below=31),
    ):
        generate()
