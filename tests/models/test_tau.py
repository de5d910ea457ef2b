"""One probability in place of a table: the same rows as the rule on its own, in every kind of model, without a file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from tests.models.tiny import left_padded, model_of, step_logits, table_of, tokens
from toptheta_npu import use_backend
from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.evaluation.methods.dense import select_all
from toptheta_npu.evaluation.methods.tau import select_probable
from toptheta_npu.fallback import sampled
from toptheta_npu.models import (
    Int8Cache,
    NothingSparsifiedWarning,
    apply_selection,
    calibrate,
    calibrate_cache_scales,
    sparsify,
)
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.sparse import threshold_rule
from toptheta_npu.thresholds.uniform import SHORTEST, uniform_table

pytestmark = pytest.mark.usefixtures("no_grad")
TAU = 0.02


def test_rows_are_those_of_the_rule_itself() -> None:
    ids = tokens(2, 60)
    with sparsify(model_of(), tau=TAU, prefill="thresholded", statistics=True) as run:
        logits = model_of()(ids).logits
    with apply_selection(model_of(), lambda layer: select_probable(TAU), statistics=True) as rule:
        expected = model_of()(ids).logits
    torch.testing.assert_close(logits, expected)
    for found, wanted in zip(run.statistics(), rule.statistics(), strict=True):
        long = found.keys > SHORTEST
        assert torch.equal(found.kept[long], wanted.kept[long])
        assert (found.kept[long] < found.keys[long, None]).any()


def test_rows_of_any_length_have_the_threshold_and_no_warning() -> None:
    at = uniform_table(TAU, 2, 4).at(SHORTEST)
    assert at.longest == SHORTEST + 1
    assert at.dense_up_to == (SHORTEST, SHORTEST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sparsify(model_of(), tau=TAU) as run:
            model_of().generate(tokens(1, 40), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert (run.tau, run.k) == (TAU, None)


@pytest.mark.parametrize("statistics", ["rows", "summary"])
def test_a_probability_that_leaves_nothing_out_is_told(statistics: str) -> None:
    def generate() -> None:
        model_of().generate(tokens(1, 40), max_new_tokens=3, min_new_tokens=3, do_sample=False)

    words = "with tau=1e-12 every row, of up to 42 keys, kept all of them. Raise tau"
    with pytest.warns(NothingSparsifiedWarning, match=words), sparsify(model_of(), tau=1e-12, statistics=statistics):
        generate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sparsify(model_of(), tau=1e-12, statistics=statistics) as run:
            generate()
            run.set_tau(TAU)
            generate()


def test_the_remedy_for_an_idle_context_names_no_k() -> None:
    with pytest.warns(NothingSparsifiedWarning, match="Feed longer sequences; prefill"), sparsify(model_of(), tau=TAU):
        pass


def test_no_number_of_elements_is_aimed_at() -> None:
    with sparsify(model_of(), tau=TAU, prefill="thresholded", statistics="summary") as run:
        model_of()(tokens(1, 60))
    assert all(layer.kept_over_aim.isnan().all() and layer.kept.all() for layer in run.summaries())


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A sample that is less than the rows of tiny models, where its size is no constant."""
    for name, size in (("FIRST", 4), ("NEWEST", 8), ("STRIDED", 8)):
        monkeypatch.setattr(sampled, name, size)
    with use_backend("fallback", device="cpu"):
        yield


def test_a_short_row_keeps_by_its_sample_what_it_keeps_by_all_of_it() -> None:
    ids, kept, logits = tokens(2, 60), [], []
    for lse in ("exact", "sampled"):
        with sparsify(model_of(), tau=TAU, lse=lse, prefill="thresholded", statistics=True) as run:
            logits.append(model_of()(ids).logits)
            cache = DynamicCache()
            model_of()(ids[:, :50], **{CACHE_ARGUMENT: cache})
            logits.append(model_of()(ids[:, 50:51], **{CACHE_ARGUMENT: cache}).logits)
        kept.append([layer.kept for layer in run.statistics()])
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True))
    torch.testing.assert_close(logits[:2], logits[2:])


@pytest.mark.usefixtures("small_sample")
@pytest.mark.parametrize("padded", [False, True])
def test_rows_by_a_sample_are_those_of_the_rule_itself(padded: bool) -> None:
    given = left_padded([tokens(1, 60), tokens(1, 41, seed=1)]) if padded else {"input_ids": tokens(2, 60)}
    ids, mask = given["input_ids"], given.get("attention_mask")
    with apply_selection(model_of(), lambda layer: select_probable(TAU, "sampled"), statistics=True) as rule:
        expected = model_of()(ids, attention_mask=mask).logits
    with sparsify(model_of(), tau=TAU, lse="sampled", prefill="thresholded", statistics=True) as run:
        whole = model_of()(ids, attention_mask=mask).logits
        cache, steps = DynamicCache(), []
        for part in (ids[:, :50], *ids[:, 50:56].split(1, 1), ids[:, 56:]):  # single tokens, and some at once
            seen = None if mask is None else mask[:, : int(cache.get_seq_length()) + part.shape[1]]
            steps.append(model_of()(part, attention_mask=seen, **{CACHE_ARGUMENT: cache}).logits)
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    for found in (whole, torch.cat(steps, 1)):
        torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=1e-4)
    for found, wanted in zip(run.statistics(), rule.statistics(), strict=True):
        rows = len(wanted.keys)
        long = found.keys[:rows] > SHORTEST
        assert torch.equal(found.kept[:rows][long], wanted.kept[long])
        assert (found.kept[:rows][long] < found.keys[:rows][long, None]).any()


@pytest.mark.parametrize("scales", ["token", "channel"])
def test_a_sample_of_an_int8_cache_is_what_its_numbers_stand_for(scales: str) -> None:
    ids, kept = tokens(1, 60), []
    table = calibrate_cache_scales(model_of(), table_of(), tokens(4, 60, seed=1)) if scales == "channel" else None
    for lse in ("exact", "sampled"):
        cache = Int8Cache(model_of().config, table=table)
        with sparsify(model_of(), tau=TAU, lse=lse, statistics=True) as run:
            model_of()(ids[:, :50], **{CACHE_ARGUMENT: cache})
            model_of()(ids[:, 50:51], **{CACHE_ARGUMENT: cache})
            model_of()(ids[:, 51:], **{CACHE_ARGUMENT: cache})
        kept.append([layer.kept for layer in run.statistics()])
    assert all(torch.equal(*pair) for pair in zip(*kept, strict=True))


def test_another_tau_holds_from_the_next_step_on() -> None:
    ids = tokens(1, 60)
    kept = {}
    for tau in (0.05, TAU):
        with sparsify(model_of(), tau=tau, prefill="thresholded", statistics=True) as run:
            model_of()(ids)
        kept[tau] = run.statistics()[0].kept
    with sparsify(model_of(), tau=0.05, prefill="thresholded", statistics=True) as run:
        model_of()(ids)
        run.set_tau(TAU)
        model_of()(ids)
    assert run.tau == TAU
    assert torch.equal(run.statistics()[0].kept, torch.cat([kept[0.05], kept[TAU]]))
    with pytest.raises(TopThetaValueError, match="one that has ended; enter sparsify again"):
        run.set_tau(0.1)


def test_a_run_changes_by_what_it_was_entered_with() -> None:
    table = calibrate(model_of(), tokens(4, 60, seed=1), k=6, layer_k=[0, 0])
    with sparsify(model_of(), table, k=6) as run:
        with pytest.raises(TopThetaValueError, match=r"^tau excludes thresholds; enter sparsify with tau alone$"):
            run.set_tau(TAU)
        assert (run.k, run.tau) == (6, None)
        model_of().generate(tokens(1, 40), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    with sparsify(model_of(), tau=TAU) as run:
        with pytest.raises(TopThetaValueError, match=r"^tau excludes a number of elements to keep; change tau with"):
            run.set_k(6)
        model_of().generate(tokens(1, 40), max_new_tokens=3, min_new_tokens=3, do_sample=False)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{}, {"vmc": False}, {"lse": "sampled"}, {"dense_below": 30}], ids=str)
@pytest.mark.parametrize("prefill", ["dense", "thresholded"])
def test_a_tau_of_zero_is_dense_attention_that_reads_every_row(prefill: str, options: dict[str, Any]) -> None:
    ids = tokens(2, 56, seed=3)
    expected = step_logits(model_of(), ids, 50)
    with sparsify(model_of(), tau=0, prefill=prefill, statistics=True, **options) as run:
        torch.testing.assert_close(step_logits(model_of(), ids, 50), expected, atol=2e-5, rtol=1e-4)
    for layer in run.statistics():
        assert layer.decode.sum() == 12
        assert torch.equal(layer.kept, layer.keys[:, None].expand_as(layer.kept))
        assert torch.equal(layer.value_rows, layer.keys[:, None].expand_as(layer.value_rows))
    with sparsify(model_of(), tau=0.0, statistics="summary", **options) as run:
        model_of().generate(ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert all((layer.kept == layer.keys).all() and layer.keys for layer in run.summaries())


@pytest.mark.parametrize("scales", ["token", "channel"])
def test_a_tau_of_zero_reads_all_of_an_int8_cache(scales: str) -> None:
    ids = tokens(1, 56, seed=3)
    table = calibrate_cache_scales(model_of(), table_of(), tokens(4, 60, seed=1)) if scales == "channel" else None
    with apply_selection(model_of(), lambda layer: select_all()):
        expected = step_logits(model_of(), ids, 50, cache=Int8Cache(model_of().config, table=table))
    with sparsify(model_of(), tau=0, statistics=True) as run:
        found = step_logits(model_of(), ids, 50, cache=Int8Cache(model_of().config, table=table))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert all(torch.equal(layer.kept, layer.keys[:, None].expand_as(layer.kept)) for layer in run.statistics())


def test_a_tau_of_zero_goes_over_the_scores_once_and_compensates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = threshold_rule.incremental_attention, []

    def seen(*given: Any, **options: Any) -> torch.Tensor:
        calls.append((options["placement"], options["value_mean"]))
        return original(*given, **options)

    monkeypatch.setattr(threshold_rule, "incremental_attention", seen)
    with sparsify(model_of(), tau=0):
        step_logits(model_of(), tokens(1, 42), 40)
    assert calls == [("pre_softmax", None)] * 4


@pytest.mark.parametrize("lse", ["exact", "sampled"])
def test_tau_may_become_zero_and_something_again(lse: str) -> None:
    ids, kept = tokens(1, 60), []
    with sparsify(model_of(), tau=TAU, lse=lse, prefill="thresholded", statistics=True) as run:
        for tau in (TAU, 0, TAU):
            run.set_tau(tau)
            run.clear()
            model_of()(ids)
            kept.append(run.statistics()[0])
    assert torch.equal(kept[1].kept, kept[1].keys[:, None].expand_as(kept[1].kept))
    assert torch.equal(kept[0].kept, kept[2].kept)
    assert (kept[0].kept < kept[1].kept).any()


def test_a_context_of_zero_stays_one() -> None:
    named = (
        r"^tau: expected 0, as the context was entered with, got 0\.02; enter sparsify with a tau above 0, and set it"
    )
    with sparsify(model_of(), tau=0) as run:
        run.set_tau(0.0)
        with pytest.raises(TopThetaValueError, match=named):
            run.set_tau(TAU)
    assert run.tau == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TopThetaTypeError, "thresholds: expected a ThresholdTable, or tau in its place, got neither; "
         "load a file with ThresholdTable.load(path), or pass tau=0.001, for example"),
        ({"tau": "0.1"}, TopThetaTypeError, "tau: expected a number, got '0.1'"),
        ({"tau": -0.1}, TopThetaValueError, "tau: expected a probability from 0 to below 1, got -0.1; such as 0.001"),
        ({"tau": 1}, TopThetaValueError, "tau: expected a probability from 0 to below 1, got 1; such as 0.001"),
        ({"tau": 0.1, "k": 8}, TopThetaValueError, "tau excludes k; leave one of them out"),
        ({"tau": 0.1, "lookup": "fitted"}, TopThetaValueError, "tau excludes lookup; leave one of them out"),
        ({"lse": "sampled", "thresholds": table_of()}, TopThetaValueError,
         "lse='sampled' needs tau; leave it out with calibrated thresholds"),
        ({"tau": 0.1, "lse": "running"}, TopThetaValueError, "lse: expected one of exact, sampled, got 'running'"),
        ({"tau": 0.1, "sdc": "exp_threshold"}, TopThetaValueError,
         "sdc='exp_threshold' needs placement='pre_softmax'; post-softmax the denominator is exact by construction: "
         "use sdc='exact'"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments: dict[str, Any], error: type[TopThetaError], message: str) -> None:
    with pytest.raises(error) as caught, sparsify(model_of(), **arguments):
        pass
    assert str(caught.value) == message
