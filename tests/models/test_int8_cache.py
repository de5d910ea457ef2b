"""The int8 cache gives what a cache of the rounded rows gives, and decode steps multiply nothing out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Gemma3nTextConfig, MistralConfig
from transformers.cache_utils import DynamicLayer

from tests.models.test_growing_cache import CHANGES, NEED_TWO, OPTIONS, WAYS, rows
from tests.models.tiny import K, left_padded, model_of, new_model, table_of, tokens
from toptheta_npu import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError, use_backend
from toptheta_npu.models import Int8Cache, calibrate_cache_scales, sparsify
from toptheta_npu.models.caches import int8, value_mean
from toptheta_npu.models.caches.int8 import Int8Layer, Packing
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.calibration.cache_scales import with_scales

pytestmark = pytest.mark.usefixtures("no_grad")
SCALES = ("token", "channel")


def channels() -> tuple[Tensor, Tensor]:
    """Scales of keys and values, some of which cut the largest rows."""
    return tuple(torch.rand(3, 16, generator=torch.Generator().manual_seed(seed)) / 40 + 1e-3 for seed in (1, 2))


def packings(scales: str) -> tuple[Packing, Packing]:
    keys, values = (None, None) if scales == "token" else channels()
    return Packing(keys), Packing(values)


def rounded(states: Tensor, scale: Tensor | None) -> Tensor:
    """What int8 makes of rows, computed in float64 but for the scale."""
    beside = states.abs().amax(-1, keepdim=True).float() / 127 if scale is None else scale[:, None]
    steps = (states.double() / beside.double().where(beside > 0, 1.0)).round().clamp(-127, 127)
    return (steps * beside.double()).to(states.dtype)


class RoundedLayer(DynamicLayer):
    """Keeps rounded rows as they are."""

    def __init__(self, packing: tuple[Packing, Packing]) -> None:
        super().__init__()
        self._scales = [each.scale for each in packing]

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        return super().update(*map(rounded, (key_states, value_states), self._scales))


class RoundedCache(DynamicCache):
    def __init__(self, table=None) -> None:
        super().__init__(config=model_of().config)
        pairs = int8._scales(table, self.layers)
        self.layers = [RoundedLayer(pair) for pair in pairs]


def caches(scales: str) -> tuple[Int8Cache, RoundedCache]:
    table = table_with_scales() if scales == "channel" else None
    return Int8Cache(model_of().config, table=table), RoundedCache(table)


def table_with_scales():
    return calibrate_cache_scales(model_of(), table_of(), tokens(3, 40, seed=11))


def held(layer: Int8Layer) -> tuple[Tensor, Tensor]:
    """What the layer stands for."""
    numbers = layer._numbers((layer.keys, layer.values))
    return tuple(each.float() * scale for each, scale in zip(numbers, layer.scales_beside, strict=True))


UNLIKE = ("replace", "edit", "swap")  # write rows that are not int8


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("change", [each for each in CHANGES if each not in UNLIKE])
def test_a_layer_stands_for_the_rounded_rows(change, scales):
    for then in CHANGES:
        if then in UNLIKE:
            continue
        pair = packings(scales)
        ours, theirs = Int8Layer(*pair), RoundedLayer(pair)
        for number, count in enumerate((9, 1, 70, 1)):
            for layer in (ours, theirs):
                layer.update(*rows(count, seed=number))
        for each in (change, then):
            for layer in (ours, theirs):
                if len(layer.keys) == 2 or each not in NEED_TWO:
                    CHANGES[each](layer)
                layer.update(*rows(1, batch=len(layer.keys), seed=7))
        assert ours.get_seq_length() == theirs.get_seq_length()
        for mine, other in zip(held(ours), (theirs.keys, theirs.values), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-6)


def test_rows_of_zeros_and_of_any_size_have_scales_that_fit():
    state = torch.randn(1, 3, 40, 16) * torch.logspace(-30, 30, 40)[:, None]
    state[:, :, 7] = 0
    packed = Packing(None).pack(state)
    scales = Packing(None).scales(packed)
    assert scales[:, :, 7].eq(0).all()
    torch.testing.assert_close(packed[..., :16] * scales[..., None], state, atol=0, rtol=1)
    assert packed[..., :16].abs().amax(-1).sum() == 127 * 3 * 39


@pytest.mark.parametrize("backend", ["native", "fallback"])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("way", [*WAYS, "left padded"])
@pytest.mark.filterwarnings("ignore::toptheta_npu.models.DenseDraftsWarning")
def test_generate_gives_the_tokens_of_rounded_rows(way, scales, backend):
    found = []
    for cache in caches(scales):
        torch.manual_seed(0)
        given = {"inputs": tokens(1 if way in ("assistant", "prompt lookup") else 2, 30, seed=4)}
        if way == "left padded":
            given = left_padded([tokens(1, 30), tokens(1, 22, seed=1)])
        options = OPTIONS | (WAYS[way]() if way in WAYS else {})
        with use_backend(backend, device="cpu"), sparsify(model_of(), table_of(), k=K):
            found.append(model_of().generate(**given, **options, **{CACHE_ARGUMENT: cache}))
    assert torch.equal(*found)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("options", [{}, {"vmc": False, "sdc": "none"}, {"dense_below": 45}, {"prefill": "thresholded"},
                                     {"statistics": "rows"}], ids=str)  # fmt: skip
def test_logits_are_those_of_rounded_rows(options, scales):
    ids, found = tokens(2, 50, seed=6), []
    for cache in caches(scales):
        with sparsify(model_of(), table_of(), k=K, **options) as run:
            logits = [model_of()(ids[:, :30], **{CACHE_ARGUMENT: cache}).logits]
            logits += [model_of()(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache}).logits for at in range(30, 50)]
            kept = [layer.kept for layer in run.statistics()] if options.get("statistics") else []
        found.append((torch.cat(logits, 1), kept))
    (ours, our_kept), (theirs, their_kept) = found
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)
    assert all(torch.equal(*pair) for pair in zip(our_kept, their_kept, strict=True))


def test_no_decode_step_multiplies_the_cache_out(monkeypatch):
    cache = Int8Cache(model_of().config)
    with sparsify(model_of(), table_of(), k=K):
        model_of()(tokens(2, 30), **{CACHE_ARGUMENT: cache})
        model_of()(tokens(2, 1), **{CACHE_ARGUMENT: cache})  # sums V up once
        monkeypatch.setattr(int8, "dequantise", lambda *_: pytest.fail("the layer was multiplied out"))
        monkeypatch.setattr(value_mean, "sum_values", lambda *_: pytest.fail("all of V was read"))
        for _ in range(3):
            model_of()(tokens(2, 1), **{CACHE_ARGUMENT: cache})


WRONG = {
    "a table without scales": (lambda: {"table": table_of()}, TopThetaValueError,
                               "table: expected scales of an int8 cache, got none; calibrate with --kv-cache int8, or "
                               "leave the table out: each row gets a scale of its own"),
    "no table": (lambda: {"table": "t.theta"}, TopThetaTypeError, "table: expected a ThresholdTable or None, got str"),
    "no config": (lambda: {"config": "llama"}, TopThetaTypeError,
                  "config: expected the configuration of a model, got str; pass model.config"),
    "another model": (lambda: {"config": new_model(layers=3).config, "table": table_with_scales()}, TopThetaValueError,
                      "table: expected scales of 3 layers, as the model has, got 2; give the table of this model"),
    "a window": (lambda: {"config": MistralConfig(num_hidden_layers=2, sliding_window=8)}, TopThetaNotImplementedError,
                 "config: expected a model whose layers all attend to every token, got a DynamicSlidingWindowLayer as "
                 "layer 0; pass DynamicCache()"),
    "shared layers": (lambda: {"config": Gemma3nTextConfig(num_hidden_layers=4, num_kv_shared_layers=2,
                                                           layer_types=["full_attention"] * 4)},
                      TopThetaNotImplementedError,
                      "config: expected a model whose layers all have keys and values of their own, got 2 that read "
                      "those of other layers; pass DynamicCache()"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_error(case):
    arguments, error, message = WRONG[case]
    with pytest.raises(error) as caught:
        Int8Cache(**{"config": model_of().config} | arguments())
    assert str(caught.value) == message


def test_scales_of_another_head_dim_are_refused_by_name():
    cache = Int8Cache(new_model(head_dim=32).config, table=table_with_scales())
    with pytest.raises(TopThetaValueError, match=r"table: expected scales of \[2, 32\] channels, .* got \[2, 16\]"):
        new_model(head_dim=32)(tokens(1, 5), **{CACHE_ARGUMENT: cache})


@torch.no_grad()
def test_an_interrupted_step_leaves_no_request_behind():
    def interrupt(*_):
        raise KeyboardInterrupt

    cache = Int8Cache(model_of().config)
    model_of()(tokens(1, 30), **{CACHE_ARGUMENT: cache})
    handle = model_of().model.layers[0].self_attn.v_proj.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), sparsify(model_of(), table_of(), k=K):
        model_of()(tokens(1, 1), **{CACHE_ARGUMENT: cache})
    handle.remove()
    assert not any(layer.asked_for_numbers for layer in cache.layers)
    assert model_of()(tokens(1, 1), **{CACHE_ARGUMENT: cache}).logits.isfinite().all()


def test_a_cache_belongs_to_one_size_of_heads():
    small, large = new_model(head_dim=18), new_model(head_dim=20)  # rows of as many bytes
    cache = Int8Cache(small.config)
    small(tokens(1, 8), **{CACHE_ARGUMENT: cache})
    with pytest.raises(TopThetaValueError, match=r"expected keys and values of 18 and 18 elements.* got 20 and 20"):
        large(tokens(1, 8), **{CACHE_ARGUMENT: cache})


def test_scales_of_ranks_are_joined_before_zeros_are_replaced():
    keys = torch.full((2, 2, 16), 0.01)
    other = keys.clone()
    other[0, 0, 0] = 0
    table = with_scales(table_of(), torch.stack((keys, other)).amax(0), other)
    assert table.key_cache_scale[0, 0, 0] == keys[0, 0, 0]
    assert table.value_cache_scale[0, 0, 0] == 1
    with pytest.raises(TopThetaValueError, match=r"^model: expected finite values, got others in layer 1"):
        with_scales(table_of(), keys, torch.stack((keys[0], keys[0] * torch.nan)))
