"""What Top-Theta does not do raises an error that names the thing and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    DynamicCache,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    MistralConfig,
)
from transformers.cache_utils import Cache, DynamicLayer

from tests.models.tiny import K, model_of, new_model, table_of, tokens
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.evaluation.methods.dense import select_all as dense
from toptheta_npu.models import apply_selection, calibrate, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.hook.architecture import attention_modules

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("softcap", 30.0), ("s_aux", torch.zeros(5)), ("sinks", torch.zeros(4)), ("sliding_window", 16),
        ("position_bias", torch.zeros(1)),
        ("cu_seq_lens_q", torch.tensor([0, 5])), ("is_causal", False), ("indices", torch.zeros(1, dtype=torch.int)),
    ],
)  # fmt: skip
def test_unsupported_arguments_are_refused_in_the_call(name, value):
    model = new_model()
    with torch.no_grad(), sparsify(model, table_of(), k=K, prefill="thresholded"):
        model(tokens(1, 20))
        for module in attention_modules(model):
            module.register_forward_pre_hook(lambda m, args, kwargs: (args, {**kwargs, name: value}), with_kwargs=True)
        with pytest.raises(TopThetaNotImplementedError, match=name):
            model(tokens(1, 20))


def test_sinks_that_a_model_keeps_to_itself_are_refused_in_the_call():
    model = new_model()
    for module in attention_modules(model):
        module.sinks = torch.nn.Parameter(torch.zeros(4))
    named = "s_aux: expected one attention sink for each of the 4 query heads, got None"
    with torch.no_grad(), sparsify(model, table_of(), k=K), pytest.raises(TopThetaNotImplementedError, match=named):
        model(tokens(1, 20))


_LATER = (
    "^attention_mask: expected plain causal attention, got a mask by which tokens see later ones, as those of an image "
    "or a prefix do; run a prompt with images or a prefix before the context, and pass the cache it filled to the "
    "calls within"
)


def _hole(ids):
    mask = torch.ones_like(ids)
    mask[:, 7] = 0
    return {"attention_mask": mask}


def _right_padding_then_more(ids):
    mask = torch.ones_like(ids)
    mask[:, -2] = 0
    return {"attention_mask": mask}


def _bidirectional(ids):
    n = ids.shape[1]
    return {"attention_mask": torch.ones(len(ids), 1, n, n, dtype=torch.bool)}


def _additive(ids):
    n = ids.shape[1]
    mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)
    return {"attention_mask": mask.expand(len(ids), 1, n, n)}


def _per_head(ids):
    n = ids.shape[1]
    return {"attention_mask": torch.ones(n, n, dtype=torch.bool).tril().expand(len(ids), 4, n, n)}


def _packed(ids):
    positions = torch.cat([torch.arange(9), torch.arange(ids.shape[1] - 9)])[None]
    return {"position_ids": positions, "use_cache": False}


@pytest.mark.parametrize("arguments", [_hole, _right_padding_then_more, _additive, _per_head, _packed])
def test_masks_of_other_patterns_are_refused_in_prompts(arguments):
    ids = tokens(2, 20)
    with torch.no_grad(), sparsify(model_of(), table_of(), k=K):
        model_of()(ids)
        with pytest.raises(TopThetaNotImplementedError, match=r"attention_mask: .*; (pad on the left|pass the 2-D)"):
            model_of()(ids, **arguments(ids))
        _one_step()


def _prefix(ids):
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    mask[:5, :5] = True
    return {"attention_mask": mask.expand(len(ids), 1, -1, -1)}


@pytest.mark.parametrize("arguments", [_bidirectional, _prefix])
def test_masks_that_show_later_tokens_are_refused_without_advice_on_padding(arguments):
    ids = tokens(2, 20)
    with torch.no_grad(), sparsify(model_of(), table_of(), k=K):
        with pytest.raises(TopThetaNotImplementedError, match=f"{_LATER}$"):
            model_of()(ids, **arguments(ids))
        _one_step()


def _gemma_that_sees():
    text = SIZES | {
        "vocab_size": 97, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 12, "initializer_range": 0.1,
    }  # fmt: skip
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 16, "patch_size": 4}  # fmt: skip
    torch.manual_seed(0)
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=90)
    return Gemma3ForConditionalGeneration(config).eval()


def test_a_prompt_with_an_image_is_refused_and_the_remedy_works():
    model, ids = _gemma_that_sees(), tokens(1, 30).clamp_max(80)
    ids[:, 5:9] = 90
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    given = {"pixel_values": image, "token_type_ids": (ids == 90).long(), "attention_mask": torch.ones_like(ids)}
    options = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
    with torch.no_grad():
        expected = model.generate(ids, **given, **options)
        with sparsify(model, tau=1e-9), pytest.raises(TopThetaNotImplementedError, match=f"{_LATER}$"):
            model.generate(ids, **given, **options)
        cache = DynamicCache(config=model.config)
        model(ids, **given, **{CACHE_ARGUMENT: cache})
        with sparsify(model, tau=1e-9):
            longer = expected[:, :31]
            found = model.generate(
                longer, **{CACHE_ARGUMENT: cache}, **options | {"max_new_tokens": 4, "min_new_tokens": 4}
            )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("static", [False, True])
def test_masks_with_holes_are_refused_in_decode(static):
    ids = tokens(1, 20)
    mask = _hole(tokens(1, 23))["attention_mask"]
    with torch.no_grad(), sparsify(model_of(), table_of(), k=K):
        options = {"cache_implementation": "static"} if static else {}
        with pytest.raises(TopThetaNotImplementedError, match="holes"):
            model_of().generate(ids, attention_mask=mask[:, :20], max_new_tokens=3, **options)
        cache = DynamicCache()
        model_of()(ids, **{CACHE_ARGUMENT: cache})
        with pytest.raises(TopThetaNotImplementedError, match="holes"):
            model_of()(tokens(1, 1), attention_mask=mask[:, :21], **{CACHE_ARGUMENT: cache})
        _one_step()


def _one_step():
    cache = DynamicCache()
    model_of()(tokens(1, 20), **{CACHE_ARGUMENT: cache})
    model_of()(tokens(1, 1), **{CACHE_ARGUMENT: cache})


def test_a_four_dimensional_mask_that_is_plain_causal_is_taken():
    ids = tokens(2, 20)
    mask = torch.ones(20, 20, dtype=torch.bool).tril().expand(2, 1, 20, 20)
    with torch.no_grad(), sparsify(model_of(), table_of(), k=K, prefill="thresholded"):
        torch.testing.assert_close(model_of()(ids, attention_mask=mask).logits, model_of()(ids).logits)


def test_other_caches_are_refused():
    window = DynamicCache(config=MistralConfig(**SIZES, sliding_window=8))
    with torch.no_grad(), sparsify(model_of(), table_of(), k=K, prefill="thresholded"):
        model_of()(tokens(1, 20))
        with pytest.raises(TopThetaNotImplementedError, match=rf"^{CACHE_ARGUMENT}: .*DynamicCache"):
            model_of()(tokens(1, 4), **{CACHE_ARGUMENT: window})


class _Listed(DynamicLayer):
    """A layer that keeps keys and values where nobody else finds them."""

    def update(self, key_states, value_states, *args, **kwargs):
        self.rows = [*getattr(self, "rows", []), (key_states, value_states)]
        self.is_initialized = True
        keys, values = zip(*self.rows, strict=True)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def get_seq_length(self):
        return sum(keys.shape[2] for keys, _ in getattr(self, "rows", []))


class _Halves(DynamicLayer):
    """A layer that hands out half of its rows."""

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = super().update(key_states, value_states)
        return keys[:, :, ::2], values[:, :, ::2]

    def get_seq_length(self):
        return (super().get_seq_length() + 1) // 2


@pytest.mark.parametrize("layer", [_Listed, _Halves])
def test_caches_that_do_not_keep_plain_keys_and_values_are_refused(layer):
    named = rf"^{CACHE_ARGUMENT}: expected .*plain tensors.*got {layer.__name__}; .*DynamicCache\(\) or StaticCache"
    with torch.no_grad(), sparsify(model_of(), table_of(), k=K):
        with pytest.raises(TopThetaNotImplementedError, match=named):
            model_of()(tokens(1, 20), **{CACHE_ARGUMENT: Cache(layers=[layer() for _ in range(2)])})
        _one_step()


def test_output_attentions():
    model = model_of()
    with torch.no_grad(), sparsify(model, table_of(), k=K):
        with pytest.raises(TopThetaNotImplementedError, match=r"output_attentions.*statistics=True"):
            model(tokens(1, 20), output_attentions=True)
        with pytest.raises(TopThetaNotImplementedError, match="output_attentions"):
            model.generate(tokens(1, 20), max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)
        _one_step()
    eager = new_model()
    eager.set_attn_implementation("eager")
    eager.config.output_attentions = True
    with pytest.raises(TopThetaNotImplementedError, match="output_attentions"), sparsify(eager, table_of(), k=K):
        pass


def test_training_mode_and_gradients():
    model = new_model().train()
    with pytest.raises(TopThetaValueError, match=r"model\.eval\(\)"), sparsify(model, table_of(), k=K):
        pass
    with pytest.raises(TopThetaValueError, match=r"model\.eval\(\)"):
        calibrate(model, tokens(2, 40), k=K, layer_k=[0, 0])
    model.eval()
    with sparsify(model, table_of(), k=K, prefill="thresholded"):
        with pytest.raises(TopThetaValueError, match="no_grad"):
            model(tokens(1, 20))
        model.train()
        with torch.no_grad(), pytest.raises(TopThetaValueError, match=r"model\.eval\(\)"):
            model(tokens(1, 20))
        model.eval()
        with torch.inference_mode():
            model.generate(tokens(1, 20), max_new_tokens=3)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"k": 9}, TopThetaValueError, "k: expected 8"),
        ({"sdc": "offline"}, TopThetaValueError, "calibrate_discarded_mass"),
        ({"sdc": "none"}, TopThetaValueError, "vmc"),
        ({"sdc": "most"}, TopThetaValueError, "sdc"),
        ({"prefill": "sparse"}, TopThetaValueError, "prefill: expected one of dense, thresholded"),
        ({"sdc_gamma": -1.0, "sdc": "exp_threshold"}, TopThetaValueError, "sdc_gamma"),
        ({"k": "8"}, TopThetaTypeError, "k: expected an int, got '8'"),
        ({"k": None}, TopThetaValueError, "k: expected 8, the calibrated k, got 128"),
        ({"dense_below": None}, TopThetaTypeError, "dense_below: expected an int, got None"),
        ({"lookup": "smoothed"}, TopThetaValueError, "lookup: expected tabulated or fitted, got 'smoothed'"),
        ({"vmc": "yes"}, TopThetaTypeError, "vmc: expected True or False, got 'yes'"),
        ({"max_length": 0}, TopThetaValueError, "max_length: expected an int from 1 to 16777216, or None, got 0"),
    ],
)
def test_unusable_options(options, error, named):
    with pytest.raises(error, match=named), sparsify(model_of(), table_of(), **{"k": K, **options}):
        pass


@pytest.mark.parametrize("table", ["table.theta", Path("table.safetensors"), torch.zeros(2)])
def test_what_is_no_table(table):
    named = rf"thresholds: expected a ThresholdTable, got {type(table).__name__}.*ThresholdTable\.load"
    with pytest.raises(TopThetaTypeError, match=named), sparsify(model_of(), table, k=K):
        pass


@pytest.mark.parametrize(
    ("select", "options", "error", "named"),
    [
        ("top_k", {}, TopThetaTypeError, "select_for_layer: expected a function of the layer"),
        (lambda layer: None, {}, TopThetaTypeError, "select_for_layer: expected.*a rule for layer 0, got None"),
        (lambda layer: dense(), {"vmc": 1}, TopThetaTypeError, "vmc: expected True or False, got 1"),
        (lambda layer: dense(), {"sdc": "offline"}, TopThetaValueError, "sdc: expected one of none, exact"),
        (lambda layer: dense(), {"sdc": "none"}, TopThetaValueError, "vmc"),
    ],
)
def test_unusable_selections(select, options, error, named):
    with torch.no_grad(), pytest.raises(error, match=named), apply_selection(model_of(), select, **options):
        model_of()(tokens(1, 4))


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_prompt_padded_on_the_right_is_refused_where_tokens_follow(cache):
    ids, mask = tokens(2, 20), torch.ones(2, 20, dtype=torch.long)
    mask[1, 13:] = 0
    with sparsify(model_of(), table_of(), k=K):
        with pytest.raises(TopThetaNotImplementedError, match=r"attention_mask: .*; pad on the left .*= 'left'"):
            model_of().generate(ids, attention_mask=mask, max_new_tokens=3, cache_implementation=cache)
        model_of().generate(ids, attention_mask=mask.flip(-1), max_new_tokens=3, cache_implementation=cache)


@pytest.mark.parametrize(
    ("options", "double", "error", "message"),
    [
        ({}, True, TopThetaTypeError, "model: expected weights in one of float16, bfloat16, float32, got float64 in "
         "layer 0; convert it with model.float()"),
        ({"head_dim": 8}, False, TopThetaNotImplementedError, "head_dim: expected from 16 to 512 in a layer that "
         "attends to all tokens, got 8; use a model with heads of such a size"),
        ({"head_dim": 520}, False, TopThetaNotImplementedError, "head_dim: expected from 16 to 512 in a layer that "
         "attends to all tokens, got 520; use a model with heads of such a size"),
    ],
)  # fmt: skip
def test_what_a_decode_step_would_refuse_is_refused_on_entry(options, double, error, message):
    model = new_model(layers=1, **options)
    model = model.double() if double else model
    with pytest.raises(error) as caught, sparsify(model, tau=0.01):
        pytest.fail("entered")
    assert str(caught.value) == message
