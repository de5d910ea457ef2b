"""Text generation under thresholds: every way of generating, against the oracle and against each other."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from transformers import StaticCache

from tests.models.tiny import (
    CACHES,
    NEW,
    PROMPT,
    K,
    generate,
    left_padded,
    model_of,
    new_cache,
    oracle_attention,
    step_logits,
    table_of,
    tokens,
)
from toptheta_npu import SdcWithoutVmcWarning, use_backend
from toptheta_npu.models import (
    NothingSparsifiedWarning,
    calibrate_discarded_mass,
    sparsify,
)
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.sparse import threshold_rule

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("backend", ["native", "fallback"])
def test_decode_after_a_dense_prompt_agrees_with_the_oracle(placement, backend):
    model, table, ids = model_of(), table_of(placement=placement), tokens(2, 40, seed=3)
    with oracle_attention(model, table, first_row=20):
        expected = model(ids).logits[:, 19:]
    dense = model(ids).logits[:, 19:]
    with use_backend(backend, device="cpu"), sparsify(model, table, k=K):
        found = step_logits(model, ids, 20)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (found[:, 5:] - dense[:, 5:]).abs().max() > 0.05


@pytest.mark.parametrize(
    ("sdc", "vmc"), [("none", False), ("exact", False), ("exact", True), ("exp_threshold", True), ("offline", True)]
)
def test_every_compensation_in_decode_equals_its_prefill(sdc, vmc):
    model, ids = model_of(), tokens(1, 36, seed=5)
    table = table_of()
    if sdc == "offline":
        table = calibrate_discarded_mass(model, table, tokens(6, 80, seed=1))
    warned = pytest.warns(SdcWithoutVmcWarning) if (sdc, vmc) == ("exact", False) else nullcontext()
    with warned, sparsify(model, table, k=K, sdc=sdc, vmc=vmc, prefill="thresholded"):
        whole = model(ids).logits
        steps = step_logits(model, ids, 1)
    torch.testing.assert_close(steps, whole, atol=1e-4, rtol=1e-4)
    if sdc in ("none", "exact"):
        with oracle_attention(model, table, sdc=sdc, vmc=vmc):
            torch.testing.assert_close(whole, model(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prefill", ["dense", "thresholded"])
def test_rows_no_longer_than_k_are_dense(prefill):
    model, table, ids = model_of(), table_of(k=60), tokens(2, 40, seed=6)
    dense_logits, dense_tokens = step_logits(model, ids, 20), generate(model)
    with pytest.warns(NothingSparsifiedWarning), sparsify(model, table, k=60, prefill=prefill):
        logits, new_tokens = step_logits(model, ids, 20), generate(model)
    torch.testing.assert_close(logits, dense_logits, atol=1e-5, rtol=1e-5)
    assert torch.equal(new_tokens, dense_tokens)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("dense_below", [26, 300])
def test_steps_below_a_length_run_the_attention_of_the_dense_model(monkeypatch, dense_below, padding):
    """Also where that length is beyond the table's, and where sparse steps follow."""
    model, lengths, original = model_of(), [], threshold_rule.incremental_attention

    def noted(query, key, *args, **options):
        lengths.append(key.shape[2] - padding)
        return original(query, key, *args, **options)

    monkeypatch.setattr(threshold_rule, "incremental_attention", noted)
    mask = torch.arange(PROMPT.shape[1])[None] >= padding
    options = {"attention_mask": mask.long(), "return_dict_in_generate": True, "output_logits": True}
    dense = generate(model, **options)
    nothing = pytest.warns(NothingSparsifiedWarning, match="fewer than dense_below=300 keys")
    with nothing if dense_below == 300 else nullcontext(), sparsify(model, table_of(), k=K, dense_below=dense_below):
        found = generate(model, **options)
    visible = range(PROMPT.shape[1] - padding + 1, PROMPT.shape[1] - padding + NEW)
    assert lengths == [length for length in visible if length >= dense_below for _ in range(2)]
    same = NEW - len(lengths) // 2
    assert all(torch.equal(*pair) for pair in list(zip(found.logits, dense.logits, strict=True))[:same])


def test_a_batch_is_dense_below_a_length_row_by_row():
    model, short = model_of(), tokens(1, 10, seed=5)
    batch = left_padded([tokens(1, 30, seed=4), short])
    options = {"return_dict_in_generate": True, "output_logits": True}
    with sparsify(model, table_of(), k=K, dense_below=25):
        together = generate(model, ids=batch["input_ids"], attention_mask=batch["attention_mask"], **options)
    alone = generate(model, ids=short, **options)
    for ours, theirs in zip(together.logits, alone.logits, strict=True):
        torch.testing.assert_close(ours[1], theirs[0], atol=1e-4, rtol=1e-4)


def test_beam_search_scores_its_beams_as_a_thresholded_prefill_does():
    model, table = model_of(), table_of()
    with sparsify(model, table, k=K, prefill="thresholded"):
        found = generate(model, num_beams=3, return_dict_in_generate=True, output_scores=True, length_penalty=0.0)
        logits = model(found.sequences[:, :-1]).logits[:, 19:]
    assert found.beam_indices.unique().numel() > 1  # the cache was reordered
    likelihood = logits.log_softmax(-1).gather(-1, found.sequences[:, 20:, None]).sum()
    torch.testing.assert_close(found.sequences_scores[0], likelihood, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("prefill", ["dense", "thresholded"])
def test_static_cache_gives_the_logits_of_a_growing_cache(prefill):
    model, table, ids = model_of(), table_of(), tokens(2, 40, seed=9)
    static = StaticCache(config=model.config, max_cache_len=64)
    with sparsify(model, table, k=K, prefill=prefill):
        growing = step_logits(model, ids, 20)
        found = step_logits(model, ids, 20, cache=static)
        static.reset()
        again = step_logits(model, ids, 20, cache=static)
    torch.testing.assert_close(found, growing, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again, growing, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prefill", ["dense", "thresholded"])
@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
def test_rows_of_a_left_padded_batch_equal_single_runs(prefill, cache):
    model, table = model_of(), table_of()
    prompts = [tokens(1, length, seed=length) for length in (20, 9, 14)]
    options = {"return_dict_in_generate": True, "output_logits": True, "cache_implementation": cache}
    with sparsify(model, table, k=K, prefill=prefill):
        batch = left_padded(prompts)
        together = generate(model, ids=batch["input_ids"], attention_mask=batch["attention_mask"], **options)
        alone = [generate(model, ids=prompt, **options) for prompt in prompts]
    for row, single in enumerate(alone):
        assert torch.equal(together.sequences[row, -NEW:], single.sequences[0, -NEW:])
        for ours, theirs in zip(together.logits, single.logits, strict=True):
            torch.testing.assert_close(ours[row], theirs[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", CACHES)
def test_a_prompt_in_chunks_equals_the_whole_prompt(kind):
    model, table, ids = model_of(), table_of(), tokens(2, 37, seed=11)
    cache = new_cache(kind)
    with sparsify(model, table, k=K, prefill="thresholded"):
        whole = model(ids).logits
        parts = [model(part, **{CACHE_ARGUMENT: cache}).logits for part in ids.split([15, 1, 9, 12], dim=1)]
        chunked = generate(model, ids=ids, prefill_chunk_size=10)
        at_once = generate(model, ids=ids)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=1e-4)
    assert torch.equal(chunked, at_once)


@pytest.mark.parametrize("kind", ["dynamic", "growing"])
def test_a_cropped_cache_goes_on_as_if_the_rest_had_never_been(kind):
    model, table, ids = model_of(), table_of(), tokens(1, 40, seed=14)
    with sparsify(model, table, k=K):
        expected = step_logits(model, ids, 20)[:, 11:]
        cache = new_cache(kind)
        step_logits(model, torch.cat([ids[:, :30], tokens(1, 6, seed=15)], dim=1), 20, cache=cache)
        cache.crop(-6)
        found = [model(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache}).logits for at in range(30, 40)]
    torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=1e-5, rtol=1e-5)


def test_without_a_cache():
    model, table, ids = model_of(), table_of(), tokens(1, 20, seed=19)
    with sparsify(model, table, k=K, prefill="thresholded"):
        cached, uncached = generate(model, ids=ids), generate(model, ids=ids, use_cache=False)
    assert torch.equal(cached, uncached)


def test_a_compiled_decode_step_is_one_graph():
    model, table, ids = model_of(), table_of(), tokens(1, 40, seed=20)
    compiled = torch.compile(model.forward, fullgraph=True, backend="eager")

    def steps(forward) -> Tensor:
        cache = StaticCache(config=model.config, max_cache_len=64)
        model(ids[:, :20], **{CACHE_ARGUMENT: cache})
        return torch.cat(
            [forward(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache}).logits for at in range(20, 40)], dim=1
        )

    with sparsify(model, table, k=K):
        assert torch.equal(steps(compiled), steps(model))
