"""Entering and leaving: everything is restored, nobody else is affected, and idle contexts say so."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM

from tests.models.tiny import K, model_of, new_model, table_of, tokens
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.methods.dense import select_all as dense
from toptheta_npu.evaluation.methods.last_k import select_last_k as last_k
from toptheta_npu.evaluation.methods.top_k import select_top_k as top_k
from toptheta_npu.models import NothingSparsifiedWarning, apply_selection, calibrate, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.hook.architecture import attention_modules
from toptheta_npu.models.sparse import threshold_rule
from toptheta_npu.thresholds import ThresholdExtrapolationWarning

pytestmark = pytest.mark.usefixtures("no_grad")


def traces(model) -> list[object]:
    """What a context changes on a model."""
    modules = attention_modules(model)
    hooks = [dict(module._forward_pre_hooks) for module in modules]
    attributes = [(type(module), sorted(module.__dict__)) for module in modules]
    return [model.config._attn_implementation, hooks, attributes]


def sparse_step(model, seed: int = 0) -> torch.Tensor:
    cache = DynamicCache()
    model(tokens(1, 30, seed=seed), **{CACHE_ARGUMENT: cache})
    return model(tokens(1, 1, seed=seed + 1), **{CACHE_ARGUMENT: cache}).logits


@pytest.mark.parametrize("original", ["sdpa", "eager"])
def test_leaving_restores_the_model(original):
    model = new_model()
    model.set_attn_implementation(original)
    before, expected = traces(model), sparse_step(model)
    with sparsify(model, table_of(), k=K):
        assert model.config._attn_implementation == "toptheta"
        assert (sparse_step(model) - expected).abs().max() > 1e-3
    assert traces(model) == before
    assert torch.equal(sparse_step(model), expected)


def test_an_exception_inside_the_attention_restores_the_model_and_leaves_no_trace():
    model, table = new_model(), table_of()
    before = traces(model)
    with sparsify(model, table, k=K):
        expected = sparse_step(model)
    with pytest.raises(NotImplementedError), sparsify(model, table, k=K):
        model(tokens(1, 30), output_attentions=True)
    with sparsify(model, table, k=K):
        with pytest.raises(NotImplementedError):
            model(tokens(1, 30), output_attentions=True)
        assert torch.equal(sparse_step(model), expected)
    assert traces(model) == before


def test_a_refused_context_changes_nothing():
    model = new_model(seed=1)
    before = traces(model)
    with pytest.raises(TopThetaValueError), sparsify(model, table_of(), k=K):
        pass
    with pytest.raises(RuntimeError, match="no rule"), apply_selection(model, _no_rule):
        pass
    assert traces(model) == before


def _no_rule(layer: int):
    raise RuntimeError("no rule")


def test_nesting_on_one_model_is_refused():
    model = new_model()
    with sparsify(model, table_of(), k=K):
        with pytest.raises(TopThetaValueError, match="leave the other context first"), sparsify(model, table_of(), k=K):
            pass
        with pytest.raises(TopThetaValueError, match="leave the other context first"):
            calibrate(model, tokens(2, 40), k=K, layer_k=[0, 0])
        with pytest.raises(TopThetaValueError), apply_selection(model, lambda layer: dense()):
            pass
        sparse_step(model)


@pytest.mark.parametrize("first_out", [0, 1])
def test_models_that_share_a_configuration(first_out):
    first = new_model()
    second = LlamaForCausalLM(first.config).eval()
    second.load_state_dict(first.state_dict())
    table, dense_step = table_of(), sparse_step(first)
    contexts = [sparsify(model, table, k=K) for model in (first, second)]
    contexts[0].__enter__()
    assert torch.equal(sparse_step(second), dense_step)
    sparse = sparse_step(first)
    contexts[1].__enter__()
    assert torch.equal(sparse_step(second), sparse)
    contexts[first_out].__exit__(None, None, None)
    left, gone = (second, first) if first_out == 0 else (first, second)
    assert torch.equal(sparse_step(left), sparse)
    assert torch.equal(sparse_step(gone), dense_step)
    contexts[1 - first_out].__exit__(None, None, None)
    assert first.config._attn_implementation == "sdpa"


def test_the_registered_name_alone_is_the_original_attention():
    model = new_model()
    with sparsify(model_of(), table_of(), k=K):
        sparse_step(model_of())
    expected, prompt = sparse_step(model), model(tokens(2, 30)).logits
    model.set_attn_implementation("toptheta")
    assert torch.equal(sparse_step(model), expected)
    assert torch.equal(model(tokens(2, 30)).logits, prompt)
    out = model.train()(tokens(1, 30), labels=tokens(1, 30))
    assert out.loss.isfinite()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda model: None, "no decode step"),
        (lambda model: model(tokens(1, 30)), "no decode step"),
        (lambda model: model.generate(tokens(1, 3), max_new_tokens=3), "the longest had 5 keys"),
    ],
    ids=["nothing ran", "only a dense prompt", "short rows"],
)
def test_a_context_without_any_sparse_row_warns(act, words):
    with pytest.warns(NothingSparsifiedWarning, match=words) as caught, sparsify(model_of(), table_of(), k=K):
        act(model_of())
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_rows_beyond_the_calibrated_lengths_warn():
    model, table = model_of(), table_of()
    with pytest.warns(ThresholdExtrapolationWarning, match="up to 93 keys"), sparsify(model, table, k=K):
        model.generate(tokens(1, 90), max_new_tokens=4, min_new_tokens=4)
    with (
        pytest.warns(ThresholdExtrapolationWarning, match="fitted") as caught,
        sparsify(model, table, k=K, max_length=120, lookup="fitted"),
    ):
        model.generate(tokens(1, 90), max_new_tokens=4)
    assert sum(issubclass(warning.category, ThresholdExtrapolationWarning) for warning in caught) == 1


def test_statistics_count_every_row():
    model, table = model_of(), table_of()
    with sparsify(model, table, k=K, prefill="thresholded", statistics=True) as run:
        with_counts = model.generate(tokens(2, 20), max_new_tokens=6, min_new_tokens=6, do_sample=False)
        layers = run.statistics()
        run.clear()
        assert run.statistics()[1].keys.numel() == 0
    with sparsify(model, table, k=K, prefill="thresholded"):
        assert torch.equal(
            with_counts, model.generate(tokens(2, 20), max_new_tokens=6, min_new_tokens=6, do_sample=False)
        )
    for rows in layers:
        assert rows.keys.tolist() == [*range(1, 21), *range(1, 21), *(n for n in range(21, 26) for _ in range(2))]
        assert rows.decode.tolist() == [False] * 40 + [True] * 10
        assert rows.kept.shape == (50, 4)
        assert rows.value_rows.shape == (50, 2)
        short = rows.keys <= K
        assert torch.equal(rows.kept[short], rows.keys[short, None].expand(-1, 4))
        assert 4 < rows.kept[~short].float().mean() < 14
        most = rows.kept.unflatten(1, (2, 2)).amax(2)
        assert (rows.value_rows >= most).all()
        assert (rows.value_rows <= rows.keys[:, None]).all()


def test_statistics_leave_padding_out():
    batch = {"input_ids": tokens(2, 20), "attention_mask": torch.ones(2, 20, dtype=torch.long)}
    batch["attention_mask"][1, :12] = 0
    with sparsify(model_of(), table_of(), k=K, prefill="thresholded", statistics=True) as run:
        model_of().generate(**batch, max_new_tokens=3, min_new_tokens=3)
        left = run.statistics()[0].keys.tolist()
        run.clear()
        model_of()(batch["input_ids"], attention_mask=batch["attention_mask"].flip(-1))
        right = run.statistics()[0].keys.tolist()
    assert left == [*range(1, 21), *range(1, 9), 21, 9, 22, 10]
    assert right == [*range(1, 21), *range(1, 9)]


def test_apply_selection_runs_prompts_and_steps_under_a_rule():
    model, ids = model_of(), tokens(2, 30, seed=3)
    expected = model(ids).logits
    with apply_selection(model, lambda layer: dense()):
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=1e-5)
    with apply_selection(model, lambda layer: top_k(5 + layer), statistics=True) as run:
        whole = model(ids).logits
        cache = DynamicCache()
        parts = [model(part, **{CACHE_ARGUMENT: cache}).logits for part in ids.split([20, *[1] * 10], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=1e-4)
    for layer, rows in enumerate(run.statistics()):
        assert torch.equal(rows.kept, rows.keys.clamp_max(5 + layer)[:, None].expand(-1, 4))
    with apply_selection(model, lambda layer: last_k(5), vmc=False, sdc="none", statistics=True) as run:
        assert (model(ids).logits - whole).abs().max() > 0.1
    assert run.statistics()[0].value_rows.max() == 5


def test_importing_the_package_imports_no_transformers():
    code = "import sys, toptheta_npu; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(16, 1, 16), (8, 1, 272), (8, 1, 16)])
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("static", [False, True])
def test_statistics_count_the_union_of_a_group_of_any_size(heads, kv_heads, head_dim, placement, static, monkeypatch):
    model = new_model(layers=1, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim)
    table = calibrate(model, tokens(3, 60, seed=1), k=K, layer_k=[0], placement=placement)
    unions = []
    original = threshold_rule.incremental_attention_with_stats

    def with_union(query, key, value, threshold, *, actual_seq_lengths, key_start, scale_value, **options):
        for row in range(len(query)):
            first = 0 if key_start is None else int(key_start[row])
            last = key.shape[2] if actual_seq_lengths is None else first + int(actual_seq_lengths[row])
            scores = (query[row, :, 0].double() * scale_value) @ key[row, 0, first:last].double().T
            shown = scores.softmax(-1) if placement == "post_softmax" else scores
            keep = shown > threshold[row].double()[:, None]
            largest = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).bool()
            keep |= ~keep.any(-1, keepdim=True) & largest
            unions.append(int(keep.any(0).sum()))
        return original(
            query, key, value, threshold, actual_seq_lengths=actual_seq_lengths, key_start=key_start,
            scale_value=scale_value, **options,
        )  # fmt: skip

    monkeypatch.setattr(threshold_rule, "incremental_attention_with_stats", with_union)
    ids, mask = tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    mask[1, :7] = 0
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "cache_implementation": "static" if static else None}
    with sparsify(model, table, k=K, statistics=True) as run:
        model.generate(ids, attention_mask=mask, **options)
        decode = run.statistics()[0]
        run.clear()
    assert decode.value_rows.flatten().tolist() == unions
    assert (decode.value_rows <= decode.keys[:, None]).all()
    with sparsify(model, table, k=K, statistics=True, prefill="thresholded") as run:
        model(ids)
        prompt = run.statistics()[0]
    with apply_selection(model, lambda layer: dense(), statistics=True) as run:
        model(ids)
        everything = run.statistics()[0]
    assert (prompt.value_rows[20:] < prompt.keys[20:, None]).any()
    assert (prompt.value_rows <= prompt.keys[:, None]).all()
    assert torch.equal(everything.value_rows, everything.keys[:, None])
