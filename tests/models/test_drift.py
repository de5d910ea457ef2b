"""Drift control: the controller by itself, its state beside the cache, and what generation makes of it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, StaticCache

from tests.models.tiny import CACHES, K, left_padded, model_of, new_cache, new_model, table_of, tokens
from tests.tiers import full
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import DriftControl, calibrate, sparsify
from toptheta_npu.models.caches.value_mean import DRIFT
from toptheta_npu.models.sparse import drift, threshold_rule
from toptheta_npu.models.sparse.drift import Slopes, dense_rows, integrated, shifted
from toptheta_npu.thresholds import ThresholdTable

pytestmark = pytest.mark.usefixtures("no_grad")

CONTROL = DriftControl()


def run_plant(control: DriftControl, k_at_0: Tensor, noise: Tensor, aim: float = 32.0) -> tuple[Tensor, Tensor]:
    """k̃ and shifts [T, B, Hq] of rows whose k̃ falls as exp(-shift) from ``k_at_0`` [B, Hq], times noise [T, B, Hq]."""
    shift, steps = torch.zeros_like(k_at_0), torch.zeros_like(k_at_0)
    kept, shifts = [], []
    for factor in noise:
        kept.append((k_at_0 * (-shift).exp() * factor).round())
        shift = integrated(control, shift, steps, kept[-1], torch.full((len(k_at_0), 1), aim))
        steps = steps + 1
        shifts.append(shift)
    return torch.stack(kept), torch.stack(shifts)


def lognormal(steps: int, shape: tuple[int, ...], spread: float, seed: int = 0) -> Tensor:
    """Factors of mean 1."""
    draw = torch.randn(steps, *shape, generator=torch.Generator().manual_seed(seed))
    return (spread * draw - spread**2 / 2).exp()


def test_a_constant_plant_settles_at_k():
    k_at_0 = torch.tensor([[8.0, 20.0, 32.0, 60.0, 200.0]])
    kept, shifts = run_plant(CONTROL, k_at_0, torch.ones(400, 1, 5))
    assert (kept[300:] - 32).abs().max() <= 1
    torch.testing.assert_close(shifts[-1], (k_at_0 / 32).log(), atol=0.05, rtol=0)


@pytest.mark.parametrize("spread", [0.3, 0.8, 1.2])
@pytest.mark.parametrize("error", [0.3, 1.0, 3.0])
def test_the_mean_of_a_heavy_tailed_count_becomes_k(spread, error):
    kept, _ = run_plant(CONTROL, torch.full((64, 8), 32 * error), lognormal(512, (64, 8), spread))
    assert kept[256:].mean() / 32 == pytest.approx(1, abs=0.02)
    per_head = kept[256:].mean(0) / 32
    assert per_head.std() < 0.05


def test_a_shift_stays_within_its_bounds():
    control = DriftControl(most=2.0)
    _, shifts = run_plant(control, torch.tensor([[0.0, 3200.0]]), torch.ones(300, 1, 2))
    assert shifts.abs().max() == pytest.approx(math.log(2))
    assert shifts[-1].tolist() == [pytest.approx([-math.log(2), math.log(2)])]


def test_the_gain_falls_as_one_over_the_steps_to_its_floor():
    control = DriftControl(gain=0.1, start=4)
    steps = torch.tensor([[0.0, 3.0, 6.0, 500.0]])
    shift = integrated(control, torch.zeros(1, 4), steps, torch.full((1, 4), 64.0), torch.tensor([[32.0]]))
    torch.testing.assert_close(shift, torch.tensor([[1 / 4, 1 / 7, 0.1, 0.1]]))


@given(st.integers(0, 2**31), st.integers(2, 4))
def test_sequences_are_controlled_by_themselves(seed, batch):
    noise = lognormal(40, (batch, 3), 0.8, seed)
    together = run_plant(CONTROL, torch.full((batch, 3), 50.0), noise)
    again = run_plant(CONTROL, torch.full((batch, 3), 50.0), noise)
    for name in range(2):
        assert torch.equal(together[name], again[name])
    for row in range(batch):
        alone = run_plant(CONTROL, torch.full((1, 3), 50.0), noise[:, row : row + 1])
        assert torch.equal(together[1][:, row : row + 1], alone[1])


def test_post_softmax_thresholds_move_by_a_factor_and_stay_probabilities():
    theta = torch.tensor([[0.01, 0.9, -torch.inf, 0.0, 1e-37]])
    up, down = (shifted(theta, torch.full_like(theta, by), "post_softmax") for by in (1.0, -30.0))
    torch.testing.assert_close(up[0, 0], torch.tensor(0.01 * math.e))
    assert up[0, 1] == 1
    assert (down[0, [0, 1, 4]] > 0).all()
    for moved in (up, down):
        assert torch.equal(dense_rows(moved, "post_softmax"), dense_rows(theta, "post_softmax"))
    pre = shifted(torch.tensor([[2.0, -torch.inf]]), torch.tensor([[0.5, 0.5]]), "pre_softmax")
    assert pre.tolist() == [[2.5, -math.inf]]


def table_with(theta: Tensor, k: list[int], layer_k: list[int], placement: str = "pre_softmax") -> ThresholdTable:
    _, layers, heads, lengths = theta.shape
    return ThresholdTable(
        theta=theta, k=torch.tensor(k), lengths=64 * 2 ** torch.arange(lengths),
        counts=torch.ones(layers, heads, lengths, dtype=torch.int64), std=torch.zeros_like(theta),
        placement=placement, estimator="pooled", alpha=0.0, layer_k=layer_k, fingerprint="test",
    )  # fmt: skip


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_slopes_are_those_of_the_tables_curves_over_k(placement):
    """ln k falls by 0.5, 1 and 2 per unit of θ up to k = 16, and by twice that above."""
    true = torch.tensor([0.5, 1.0, 2.0])
    theta = torch.stack([torch.zeros(3), -math.log(2) / true, -math.log(2) * 1.5 / true]) - 3.0
    theta = theta[:, None, :, None].expand(3, 2, 3, 4)  # [K, L, Hq, R]
    if placement == "post_softmax":
        theta = theta.exp()
    slopes = Slopes(table_with(theta, [8, 16, 32], [0, 32], placement))
    aim = torch.tensor([[8.0], [12.0], [16.0], [32.0], [500.0]]).expand(-1, 3)
    expected = torch.outer(torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0]), true)
    torch.testing.assert_close(slopes.at(0, aim), expected)
    # all of this layer's targets are 32
    torch.testing.assert_close(slopes.at(1, aim), torch.full((5, 3), 0.5))


def test_slopes_without_a_curve_are_typical():
    single = Slopes(table_with(torch.ones(1, 1, 2, 3), [8], [0]))
    assert single.at(0, torch.full((1, 2), 8.0)).tolist() == [[0.5, 0.5]]
    flat = Slopes(table_with(torch.ones(2, 1, 2, 3), [8, 16], [0]))
    assert flat.at(0, torch.full((1, 2), 8.0)).tolist() == [[0.5, 0.5]]


# Beside the cache


def feed(ids: Tensor, cache, first: int, model=None, **options) -> Tensor:
    model = model_of() if model is None else model
    steps = [model(ids[:, at : at + 1], past_key_values=cache, **options).logits for at in range(first, ids.shape[1])]
    return torch.cat(steps, dim=1)


def shifts(cache) -> Tensor:
    """[layers, B, Hq]"""
    return torch.stack([getattr(layer, DRIFT).shift for layer in cache.layers])


@pytest.fixture
def thresholds(monkeypatch):
    """The thresholds that the operator gets: a list of [B, Hq], layer by layer."""
    seen: list[Tensor] = []
    original = threshold_rule.incremental_attention_with_stats

    def noted(query, key, value, threshold, **options):
        seen.append(threshold.clone())
        return original(query, key, value, threshold, **options)

    monkeypatch.setattr(threshold_rule, "incremental_attention_with_stats", noted)
    return seen


def filled(ids: Tensor, prompt: int, *, kind: str = "growing", steps: int = 10):
    cache = new_cache(kind, 128)
    model_of()(ids[:, :prompt], past_key_values=cache)
    feed(ids[:, : prompt + steps], cache, prompt)
    return cache


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@pytest.mark.parametrize("kind", CACHES)
def test_a_fresh_cache_starts_with_the_tables_thresholds(thresholds, placement, kind):
    table, ids = table_of(placement=placement), tokens(2, 40)
    expected = [table.at(K).theta[layer][21].expand(2, -1) for layer in range(2)]
    with sparsify(model_of(), table, k=K, drift_control=CONTROL):
        for _ in range(2):
            thresholds.clear()
            filled(ids, 20, kind=kind)
            assert all(torch.equal(*pair) for pair in zip(thresholds[:2], expected, strict=True))
            assert not torch.equal(thresholds[2], table.at(K).theta[0][22].expand(2, -1))


@pytest.mark.parametrize("static", [False, pytest.param(True, marks=full)])
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_thresholds_that_keep_too_much_or_too_little_are_brought_to_k(placement, static):
    """The thresholds of 8 elements are taken for those of 4, and for those of 16."""
    model, ids = model_of(), tokens(4, 220, seed=3)
    table = calibrate(
        model, tokens(6, 220, seed=1), k=(4, 8, 16), layer_k=[0, 0], placement=placement, estimator="pooled",
        top_k_at_calibration=False,
    )  # fmt: skip
    wrong = ThresholdTable(**{**vars(table), "theta": table.theta[[1, 1, 1]]})

    def ratio(k, control) -> Tensor:
        cache = StaticCache(config=model.config, max_cache_len=256) if static else DynamicCache()
        with sparsify(model, wrong, k=k, drift_control=control, statistics=True) as run:
            model(ids[:, :40], past_key_values=cache)
            feed(ids, cache, 40)
            kept = torch.stack([layer.kept.view(180, 4, 4) for layer in run.statistics()])
        return kept[:, 60:].float().mean((1, 2)) / k

    for k in (4, 16):
        without, controlled = ratio(k, None), ratio(k, CONTROL)
        assert without.mean() > 1.5 if k == 4 else without.mean() < 0.7
        assert (controlled - 1).abs().max() < 0.1


@pytest.mark.parametrize("kind", CACHES)
def test_state_tensors_of_a_preallocated_cache_stay_where_they_are(kind):
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        ids = tokens(2, 40)
        cache = filled(ids, 20, kind=kind)
        before = [getattr(layer, DRIFT) for layer in cache.layers]
        places = [(state.shift.data_ptr(), state.steps.data_ptr(), state.count.data_ptr()) for state in before]
        old = shifts(cache).clone()
        feed(ids[:, :32], cache, 30)
        after = [getattr(layer, DRIFT) for layer in cache.layers]
        stay = [(state.shift.data_ptr(), state.steps.data_ptr(), state.count.data_ptr()) for state in after] == places
    assert stay == (kind == "static")
    assert not torch.equal(shifts(cache), old)


RESETS = {
    "reorder": lambda cache: cache.reorder_cache(torch.tensor([1, 0])),
    "write": lambda cache: [layer.values[:, :, :3].fill_(0.5) for layer in cache.layers],
    "replace": lambda cache: [setattr(layer, "values", layer.values * 1.0) for layer in cache.layers],
}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("change", RESETS)
def test_a_cache_that_changed_starts_over(thresholds, change, kind):
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        cache = filled(tokens(2, 40), 20, kind=kind)
        assert shifts(cache).abs().max() > 0
        RESETS[change](cache)
        thresholds.clear()
        feed(tokens(2, 31), cache, 30)
    expected = [table_of().at(K).theta[layer][31].expand(2, -1) for layer in range(2)]
    assert all(torch.equal(*pair) for pair in zip(thresholds, expected, strict=True))
    assert all(getattr(layer, DRIFT).steps.max() == 1 for layer in cache.layers)


def test_crop_starts_over(thresholds):
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        cache = filled(tokens(2, 40), 20)
        cache.crop(-4)
        thresholds.clear()
        feed(tokens(2, 27), cache, 26)
    assert torch.equal(thresholds[0], table_of().at(K).theta[0][27].expand(2, -1))


@pytest.mark.parametrize("kind", CACHES)
def test_a_reset_cache_starts_over(thresholds, kind):
    ids = tokens(2, 40)
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        cache = filled(ids, 20, kind=kind)
        first = shifts(cache).clone()
        cache.reset()
        if cache.get_seq_length():
            pytest.skip("this transformers fills a DynamicCache with zeros instead of emptying it")
        model_of()(ids[:, :20], past_key_values=cache)
        feed(ids[:, :30], cache, 20)
        assert torch.equal(shifts(cache), first)
        copied = copy.deepcopy(cache)
        thresholds.clear()
        feed(ids[:, :31], copied, 30)
    assert torch.equal(thresholds[0], table_of().at(K).theta[0][31].expand(2, -1))


@pytest.mark.parametrize("kind", CACHES)
def test_a_further_piece_of_the_prompt_leaves_the_shift(kind):
    ids = tokens(2, 60)
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        cache = filled(ids, 20, kind=kind)
        before = shifts(cache).clone()
        model_of()(ids[:, 30:42], past_key_values=cache)
        assert torch.equal(shifts(cache), before)
        feed(ids[:, :43], cache, 42)
        assert all((getattr(layer, DRIFT).steps == 11).all() for layer in cache.layers)


def test_another_context_starts_over():
    ids = tokens(2, 40)
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        cache = filled(ids, 20)
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        feed(ids[:, :31], cache, 30)
    assert all((getattr(layer, DRIFT).steps == 1).all() for layer in cache.layers)


def test_dense_rows_do_not_count():
    """The first layer is dense up to 25 keys, the second up to 8."""
    table = calibrate(model_of(), tokens(6, 80, seed=1), k=K, layer_k=[25, 0])
    with sparsify(model_of(), table, k=K, drift_control=CONTROL):
        cache = filled(tokens(2, 40), 20)
    steps = [getattr(layer, DRIFT).steps for layer in cache.layers]
    assert (steps[0] == 5).all()
    assert (steps[1] == 10).all()


@pytest.mark.parametrize("static", [False, True])
def test_a_sequence_does_not_depend_on_its_neighbours(static):
    alone, other = tokens(1, 24, seed=4), tokens(1, 17, seed=5)
    batch = left_padded([alone, other])

    def state(ids: Tensor, mask: Tensor) -> Tensor:
        cache = StaticCache(config=model_of().config, max_cache_len=64) if static else DynamicCache()
        with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
            model_of()(ids, attention_mask=mask, past_key_values=cache)
            for at in range(15):
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
                model_of()(tokens(len(ids), 1, seed=100 + at)[:1].expand(len(ids), 1), attention_mask=mask,
                           past_key_values=cache)  # fmt: skip
        return shifts(cache)

    together = state(batch["input_ids"], batch["attention_mask"])
    for row, ids in enumerate((alone, other)):
        torch.testing.assert_close(together[:, row : row + 1], state(ids, torch.ones_like(ids)), atol=1e-6, rtol=0)
    assert (together[:, 0] - together[:, 1]).abs().max() > 0.01


# Generation


def test_greedy_generation_repeats_and_depends_on_the_control():
    options = {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": False}
    ids = tokens(2, 30, seed=6)
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        first, second = (model_of().generate(ids, **options) for _ in range(2))
        static = model_of().generate(ids, cache_implementation="static", disable_compile=True, **options)
    with sparsify(model_of(), table_of(), k=K):
        without = model_of().generate(ids, **options)
    assert torch.equal(first, second)
    assert torch.equal(first, static)
    assert not torch.equal(first, without)


def test_off_is_the_default_and_changes_nothing():
    ids = tokens(2, 40, seed=7)
    with sparsify(model_of(), table_of(), k=K):
        cache = DynamicCache()
        model_of()(ids[:, :20], past_key_values=cache)
        expected = feed(ids, cache, 20)
    assert not any(hasattr(layer, DRIFT) for layer in cache.layers)
    # with bounds this narrow, the shift is lost in float32
    with sparsify(model_of(), table_of(), k=K, drift_control=DriftControl(most=1 + 1e-15)):
        cache = DynamicCache()
        model_of()(ids[:, :20], past_key_values=cache)
        assert torch.equal(feed(ids, cache, 20), expected)


def test_beam_search_and_sampling_run():
    ids = tokens(2, 30, seed=8)
    options = {"max_new_tokens": 8, "min_new_tokens": 8}
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        assert model_of().generate(ids, num_beams=3, do_sample=False, **options).shape == (2, 38)
        assert model_of().generate(ids, do_sample=True, num_return_sequences=2, **options).shape == (4, 38)


@full
def test_a_compiled_step_with_a_static_cache_does_what_the_plain_one_does():
    model, ids = new_model(), tokens(2, 45, seed=20)
    compiled = torch.compile(model.forward, fullgraph=True, backend="eager")

    def steps(forward) -> tuple[Tensor, Tensor]:
        cache = StaticCache(config=model.config, max_cache_len=64)
        model(ids[:, :20], past_key_values=cache)
        logits = [forward(ids[:, at : at + 1], past_key_values=cache).logits for at in range(20, 45)]
        return torch.cat(logits, dim=1), shifts(cache)

    with sparsify(model, table_of(), k=K, drift_control=CONTROL):
        for found, expected in zip(steps(compiled), steps(model), strict=True):
            torch.testing.assert_close(found, expected)


def test_inference_mode_and_no_grad_may_take_turns():
    ids = tokens(2, 40)
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        expected = shifts(filled(ids, 20))
        cache = DynamicCache()
        model_of()(ids[:, :20], past_key_values=cache)
        for at in range(20, 30):
            with torch.inference_mode() if at % 3 == 0 else torch.no_grad():
                model_of()(ids[:, at : at + 1], past_key_values=cache)
        static = StaticCache(config=model_of().config, max_cache_len=64)
        model_of()(ids[:, :20], past_key_values=static)
        for at in range(20, 30):
            with torch.inference_mode() if at % 3 == 0 else torch.no_grad():
                model_of()(ids[:, at : at + 1], past_key_values=static)
    torch.testing.assert_close(shifts(static), expected)
    assert getattr(cache.layers[0], DRIFT).steps.max() >= 1


# Refused


def test_it_is_refused_with_thresholded_prompts():
    with (
        pytest.raises(TopThetaNotImplementedError, match=r"drift_control.*prefill='thresholded'"),
        sparsify(model_of(), table_of(), k=K, prefill="thresholded", drift_control=CONTROL),
    ):
        pass


def test_something_else_is_refused():
    with (
        pytest.raises(TopThetaTypeError, match="drift_control: expected a DriftControl or None, got True"),
        sparsify(model_of(), table_of(), k=K, drift_control=True),  # type: ignore[arg-type]
    ):
        pass


def test_a_decode_step_without_a_cache_is_refused():
    with (
        sparsify(model_of(), table_of(), k=K, drift_control=CONTROL),
        pytest.raises(TopThetaNotImplementedError, match=r"drift_control: expected a cache.*use_cache=True"),
    ):
        model_of()(tokens(1, 1), use_cache=False)


class Offloaded(DynamicCache):
    """Says that it is offloaded, which needs CUDA."""

    def update(self, *args, **kwargs):
        self.offloading = False
        try:
            return super().update(*args, **kwargs)
        finally:
            self.offloading = True


def test_an_offloaded_cache_is_refused():
    cache = Offloaded()
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        model_of()(tokens(1, 20), past_key_values=cache)
        with pytest.raises(TopThetaNotImplementedError, match=r"drift_control.*offloaded"):
            model_of()(tokens(1, 1), past_key_values=cache)


def test_the_capture_of_a_first_step_is_refused_and_of_a_later_one_is_not(monkeypatch):
    ids = tokens(1, 30)
    cache = StaticCache(config=model_of().config, max_cache_len=64)
    with sparsify(model_of(), table_of(), k=K, drift_control=CONTROL):
        model_of()(ids[:, :20], past_key_values=cache)
        monkeypatch.setattr(torch.cpu, "is_current_stream_capturing", lambda: True, raising=False)
        with pytest.raises(TopThetaNotImplementedError, match="one decode step with this cache, then capture"):
            feed(ids[:, :21], cache, 20)
        monkeypatch.undo()
        cache = filled(ids, 20, kind="static", steps=2)
        monkeypatch.setattr(torch.cpu, "is_current_stream_capturing", lambda: True, raising=False)
        feed(ids[:, :23], cache, 22)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"gain": 0.0}, TopThetaValueError, "gain"), ({"gain": 1.5}, TopThetaValueError, "gain"),
        ({"gain": "much"}, TopThetaTypeError, "gain"), ({"start": 0}, TopThetaValueError, "start"),
        ({"start": 2.5}, TopThetaTypeError, "start"), ({"most": 1.0}, TopThetaValueError, "most"),
        ({"most": math.inf}, TopThetaValueError, "most"), ({"gain": math.nan}, TopThetaValueError, "gain"),
        ({"start": 2**64}, TopThetaValueError, "start: expected an int from 1 to 16777216, got 18446744073709551616"),
    ],
)  # fmt: skip
def test_unusable_numbers_are_refused(options, error, named):
    with pytest.raises(error, match=named):
        DriftControl(**options)


def test_what_is_aimed_at_follows_the_run_and_the_row(monkeypatch):
    """A fixed k, another one from the next step on, and a share of the row, which grows with it."""
    table = calibrate(
        model_of(), tokens(6, 80, seed=1), k=[4, 24], layer_k=[0, 6], top_k_at_calibration=False, estimator="pooled"
    )
    aims: list[list[float]] = []

    def noted(control, shift, steps, kept, aim):
        aims.append(aim.flatten().tolist())
        return integrated(control, shift, steps, kept, aim)

    monkeypatch.setattr(drift, "integrated", noted)
    ids, cache = tokens(2, 44), DynamicCache()
    with torch.no_grad(), sparsify(model_of(), table, k=5, drift_control=DriftControl()) as run:
        model_of()(ids[:, :39], past_key_values=cache)
        feed(ids[:, :40], cache, 39)
        run.set_k(8)
        feed(ids[:, :41], cache, 40)
        run.set_target_kept(0.25)
        feed(ids[:, :44], cache, 41)
    # two sequences, four heads
    assert aims[:4] == [[each] * 8 for each in (5.0, 6.0, 8.0, 8.0)]
    assert aims[4::2] == [[each] * 8 for each in (10.0, 11.0, 11.0)]  # of 42, 43 and 44 keys
