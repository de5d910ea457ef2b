"""int8 caches, which vLLM allocates and its own kernels do not read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.serving.engines import (
    INT8,
    INT8_TOLERANCE,
    Answer,
    answers,
    dense_table,
    generated,
    generated_by,
    layers_of,
    make_engine,
    prompts,
    reference_model,
    totals,
    wrong_tokens,
)
from tests.vllm.test_answers import RAGGED, staggered
from tests.vllm.test_configuration import TABLE, start, told_last
from toptheta_npu.errors import TopThetaNotImplementedError
from toptheta_npu.fallback.antiquant import dequantise, quantise, token_scale
from toptheta_npu.vllm import cpu
from toptheta_npu.vllm.int8_pages import FEW_TOKENS, row_bytes


def check(ours: list[Answer], reference: list[Answer]) -> None:
    pairs = zip(ours, reference, strict=True)
    assert not [found for pair in pairs if (found := wrong_tokens(*pair, tolerance=INT8_TOLERANCE))]


@pytest.fixture(scope="module")
def int8() -> Any:
    return make_engine({"k": 64}, **INT8)


@pytest.fixture(scope="module")
def chunked() -> Any:
    """An engine whose prompts come in chunks, which finds prefixes in its cache."""
    return make_engine({"k": 64}, enable_prefix_caching=True, max_num_batched_tokens=96, **INT8)


def over_rounded_rows(settings: dict[str, Any] | None = None) -> Any:
    """An engine with a cache of its own dtype, whose rows are rounded before they are written."""
    engine = make_engine(settings)
    for layer in layers_of(engine):
        write = layer.impl.do_kv_cache_update

        def rounded(of: Any, key: Any, value: Any, *where: Any, write: Any = write) -> None:
            rows = [dequantise(quantise(each, scale), scale) for each in (key, value)
                    for scale in (token_scale(each)[..., None],)]  # fmt: skip
            write(of, *rows, *where)

        layer.impl.do_kv_cache_update = rounded
    return engine


def test_thresholds_of_minus_infinity_equal_vllm_over_rounded_rows(tmp_path: Path) -> None:
    engine, stock = make_engine({"table": str(dense_table(tmp_path)), "k": 64}, **INT8), over_rounded_rows()
    asked = prompts(*RAGGED, FEW_TOKENS, FEW_TOKENS + 1)
    ours, reference = answers(engine, asked), answers(stock, asked)
    for pair in zip(ours, reference, strict=True):
        assert not wrong_tokens(*pair, tolerance=INT8_TOLERANCE)
        first, expected = (next(iter(each.best[0].values())) for each in pair)
        assert abs(first - expected) < 1e-4  # prompts: in the same order of sums, so that nothing rounds otherwise
    counted = totals(engine)
    assert counted.kept == counted.elements > 0
    assert counted.value_rows == counted.available_value_rows


def test_thresholds_equal_sparsify_and_generate_with_an_int8_cache(int8: Any) -> None:
    before = totals(int8)
    asked = prompts(700, 1500, 300)
    expected = [generated(ids, 32, k=64, int8=True) for ids in asked]
    check(answers(int8, asked), expected)
    in_32_bits = [generated(ids, 32, k=64) for ids in asked]
    assert any(wrong_tokens(*pair) for pair in zip(expected, in_32_bits, strict=True))  # else this would prove little
    added = totals(int8) - before
    assert added.decode_tokens == 3 * 31
    assert added.rows == 6 * added.decode_tokens
    assert added.prompt_tokens == 2500
    assert added.short_tokens == 0
    assert 0.05 < added.kept / added.elements < 0.5
    assert added.value_rows < 0.8 * added.available_value_rows
    assert 0.5 < added.sparse_kept / added.sparse_aims < 2


def test_requests_that_come_while_others_decode_change_nothing(int8: Any) -> None:
    asked = prompts(500, 900, 40, 3, seed=2)
    check(staggered(int8, asked, gap=7), [generated(ids, 32, k=64, int8=True) for ids in asked])


def test_prompts_in_chunks_and_from_the_cache_change_nothing(chunked: Any) -> None:
    first, other = prompts(800, 150, seed=4)
    asked = [first, first[:640] + other, *prompts(700, 320, 95, 96, 97, seed=3)]
    expected = [generated(ids, 32, k=64, int8=True) for ids in asked]
    check(answers(chunked, asked), expected)
    before = totals(chunked)
    check(answers(chunked, asked), expected)
    assert (totals(chunked) - before).prompt_tokens < 500  # the rest came from the cache


def test_no_step_that_decodes_multiplies_the_cache_out(int8: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = int8.llm_engine
    for index, ids in enumerate(prompts(300, 90, seed=6)):
        llm.add_request(f"decode {index}", {"prompt_token_ids": ids}, greedy_tokens(8))
    llm.step()
    monkeypatch.setattr(cpu, "dequantise_pages", lambda *_: pytest.fail("pages were multiplied out"))
    while llm.has_unfinished_requests():
        llm.step()
    (few,) = prompts(FEW_TOKENS, seed=6)  # nor does one that has as few new tokens as drafts
    answers(int8, [few], 2)


def greedy_tokens(count: int) -> Any:
    from benchmarks.serving.engines import greedy

    return greedy(count)


def test_short_rows_and_dense_layers_are_dense_over_the_same_cache() -> None:
    engine = make_engine({"k": 64, "dense_below": 400, "dense_layers": [0, 3]}, **INT8)
    model, table = reference_model()
    theta = table.theta.clone()
    theta[:, [0, 3]] = -torch.inf
    of_the_others = dataclasses.replace(table, theta=theta)
    asked = prompts(700, 390, 300, seed=12)
    check(answers(engine, asked), [generated_by(model, of_the_others, ids, 32, k=64, dense_below=400, int8=True)
                                   for ids in asked])  # fmt: skip
    added = totals(engine)
    assert (added.decode_tokens, added.short_tokens, added.rows) == (3 * 31, 0, 4 * 3 * 31)


def test_prompts_by_thresholds_equal_those_over_rounded_rows() -> None:
    settings = {"k": 64, "prefill": "thresholded"}
    engine, plain = make_engine(settings, **INT8), over_rounded_rows(settings)
    asked = prompts(700, 60, seed=10)
    check(answers(engine, asked, 16), answers(plain, asked, 16))
    assert totals(engine).thresholded_tokens == 760


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_models_in_half_precision_have_them_too(dtype: str) -> None:
    (ids,) = prompts(500, seed=13)
    engine = make_engine({"k": 64}, dtype=dtype, **INT8)
    (ours,) = answers(engine, [ids], 8)
    expected = generated(ids, 8, k=64, int8=True)
    assert abs(ours.best[0][ours.tokens[0]] - expected.best[0][ours.tokens[0]]) < 0.1
    assert totals(engine).kept < 0.5 * totals(engine).elements


@pytest.mark.parametrize("block_size", [32, 128])
def test_rows_take_two_bytes_a_channel_and_four_for_each_scale(block_size: int) -> None:
    options = {"dtype": "bfloat16", "block_size": block_size}
    plain, ours = (make_engine({"k": 64}, **options, **of) for of in ({}, INT8))
    for engine in (plain, ours):
        answers(engine, prompts(40), 2)
    caches = [[layer.kv_cache for layer in layers_of(engine)] for engine in (plain, ours)]
    half, whole = (sum(cache[0].nbytes for cache in of) for of in reversed(caches))
    head_dim = caches[0][0].shape[3] // 2
    assert half / whole == (2 * head_dim + 8) / (4 * head_dim)
    assert ours.llm_engine.vllm_config.cache_config.num_gpu_blocks == (1 << 28) // half
    (sums,) = {layer.impl.rule.page_sums.nbytes for layer in layers_of(ours)}
    pages, heads = caches[1][0].shape[:2]
    assert sums == (pages * block_size // 32 + 1) * heads * head_dim * 4


def test_a_model_that_vllm_compiles_answers_the_same() -> None:
    engine = make_engine({"k": 64}, enforce_eager=False, **INT8)
    asked = prompts(300, seed=15)
    check(answers(engine, asked, 16), [generated(ids, 16, k=64, int8=True) for ids in asked])


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e5m2", "fp8_per_token_head", "int4_per_token_head"])
def test_other_quantised_caches_stop_the_start_by_name(dtype: str) -> None:
    expected = rf"^kv_cache_dtype: expected none of it with Top-Theta, got {dtype}; .* 'int8_per_token_head'$"
    with pytest.raises(TopThetaNotImplementedError, match=expected):
        make_engine({"k": 64}, kv_cache_dtype=dtype)


def test_why_stands_last_in_the_log() -> None:
    done = start({"table": str(TABLE)}, kv_cache_dtype="fp8")
    assert done.returncode != 0
    assert "kv_cache_dtype: expected none of it with Top-Theta, got fp8" in told_last(done)


def test_without_settings_vllm_allocates_as_it_does() -> None:
    """vLLM takes the option; that its kernels for CPUs make nothing of it is its own affair."""
    done = start(None, kv_cache_dtype=INT8["kv_cache_dtype"])
    if "requires x86 with AVX-512 or AMX" in done.stderr:
        pytest.skip("vLLM itself takes 8-bit caches on a CPU with AVX-512 alone")
    assert "STARTED ['CPUAttentionBackendImpl']" in done.stdout, done.stderr[-3000:]
    log = next(line for line in done.stdout.splitlines() if "KV cache size" in line)
    tokens = int(log.split(" tokens")[0].split()[-1].replace(",", ""))
    assert tokens > (1 << 24) // (6 * 2 * row_bytes(64))  # no room for scales


def test_pages_stand_for_rounded_rows(int8: Any) -> None:
    (ids,) = prompts(50, seed=17)
    answers(int8, [ids], 1)
    (layer, *_) = layers_of(int8)
    pages = layer.impl.pages_of(layer.kv_cache)
    scale = pages.antiquant.key_antiquant_scale
    written = scale[:, 0] > 0
    assert written.sum() >= 50
    assert torch.equal(pages.keys[:, 0].abs().amax(-1)[written], torch.full((int(written.sum()),), 127).to(torch.int8))
