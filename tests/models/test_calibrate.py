"""Calibration of a model: the thresholds keep k, and every option does what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import BatchEncoding, DynamicCache, LlamaModel

from tests.models.tiny import K, model_of, new_model, tokens
from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import calibrate, calibrate_discarded_mass, model_fingerprint, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.thresholds import MeanDiscardedMassWarning, ThresholdTable

TEXTS = tokens(8, 60, seed=1)
DENSE = {"layer_k": [0, 0]}


def kept(table: ThresholdTable, texts: torch.Tensor, k: int) -> list[torch.Tensor]:
    """Kept elements per head of the sparse rows, per layer."""
    with torch.no_grad(), sparsify(model_of(), table, k=k, prefill="thresholded", statistics=True) as run:
        model_of()(texts)
    return [rows.kept[rows.keys > k].float() for rows in run.statistics()]


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_pooled_thresholds_keep_k_on_the_calibration_rows(placement):
    table = calibrate(model_of(), TEXTS, k=K, estimator="pooled", placement=placement, **DENSE)
    first_layer = kept(table, TEXTS, K)[0]
    # the scores of layer 0 do not depend on the thresholds, so there the rows are the calibration's own
    torch.testing.assert_close(first_layer.mean(0), torch.full((4,), float(K)), atol=0.25, rtol=0)
    assert 6 < kept(table, TEXTS, K)[1].mean() < 10


def test_algorithm_1_is_the_mean_of_the_rows_own_thresholds():
    """Against a plain transcription of Algorithm 1 for layer 0, one length at a time."""
    model, length = model_of(), 40
    table = calibrate(model, TEXTS, placement="pre_softmax", k=K, alpha=0.5, **DENSE)
    attention, seen = model.model.layers[0].self_attn, []
    hook = attention.register_forward_pre_hook(lambda m, args, kwargs: seen.append(kwargs), with_kwargs=True)
    with torch.no_grad():
        model(TEXTS)
        hook.remove()
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        hidden = seen[0]["hidden_states"]
        query, key = (
            projection(hidden).unflatten(-1, (-1, 16)).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *seen[0]["position_embeddings"])
        row = (query[:, :, length - 1 : length] * 0.25) @ key[:, :, :length].repeat_interleave(2, 1).transpose(2, 3)
    own = row[:, :, 0].sort(descending=True).values[..., K]
    expected = own.mean(0) + 0.5 * own.std(0, correction=0)
    torch.testing.assert_close(table.at(K).theta[0][length], expected, atol=1e-4, rtol=1e-4)


def test_top_k_at_calibration_changes_later_layers_only():
    with_top_k = calibrate(model_of(), TEXTS, placement="pre_softmax", k=K, **DENSE)
    without = calibrate(model_of(), TEXTS, placement="pre_softmax", k=K, top_k_at_calibration=False, **DENSE)
    torch.testing.assert_close(with_top_k.theta[:, 0], without.theta[:, 0])
    assert (with_top_k.theta[:, 1] - without.theta[:, 1]).abs().max() > 0.01


def test_compensations_matter_at_calibration():
    with_both = calibrate(model_of(), TEXTS, placement="pre_softmax", k=K, **DENSE)
    without = calibrate(model_of(), TEXTS, placement="pre_softmax", k=K, sdc="none", vmc=False, **DENSE)
    torch.testing.assert_close(with_both.theta[:, 0], without.theta[:, 0])
    assert (with_both.theta[:, 1] - without.theta[:, 1]).abs().max() > 0.01


def test_the_same_seed_gives_the_same_table():
    options = {"k": K, "row_fraction": 0.3, **DENSE}
    first, second = (calibrate(model_of(), TEXTS, seed=5, **options) for _ in range(2))
    other = calibrate(model_of(), TEXTS, seed=6, **options)
    assert torch.equal(first.theta, second.theta)
    assert not torch.equal(first.counts, other.counts)
    rows = calibrate(model_of(), TEXTS, k=K, **DENSE).counts.sum(-1).float()
    torch.testing.assert_close(first.counts.sum(-1) / rows, torch.full((2, 4), 0.3), atol=0.05, rtol=0)


def test_batches_lists_and_iterators_are_the_same_texts():
    options = {"k": K, "row_fraction": 0.5, **DENSE}
    expected = calibrate(model_of(), TEXTS, **options)
    for texts in (list(TEXTS), [TEXTS[:3], TEXTS[3:4], TEXTS[4:]]):
        assert torch.equal(calibrate(model_of(), texts, **options).theta, expected.theta)
    assert torch.equal(calibrate(model_of(), iter(TEXTS), **options).theta, expected.theta)


@pytest.fixture(scope="module")
def expected_theta() -> torch.Tensor:
    return calibrate(model_of(), TEXTS, k=K, **DENSE).theta


def padded(side: str, add: int = 7) -> dict[str, torch.Tensor]:
    """The texts as a tokenizer returns them, padded by ``add`` and more on one side."""
    pad = (add, 0) if side == "left" else (0, add)
    mask = torch.nn.functional.pad(torch.ones_like(TEXTS), pad)
    return {"input_ids": torch.nn.functional.pad(TEXTS, pad), "attention_mask": mask}


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS.tolist(),
        [TEXTS[:3].tolist(), *TEXTS[3:].tolist()],
        TEXTS.numpy(),
        {"input_ids": TEXTS},
        {"input_ids": TEXTS.tolist(), "attention_mask": torch.ones_like(TEXTS).tolist()},
        BatchEncoding({"input_ids": TEXTS, "attention_mask": TEXTS >= 0}),
        BatchEncoding({"input_ids": TEXTS.numpy(), "attention_mask": np.ones((8, 60), dtype=np.int64)}),
        padded("left"),
        BatchEncoding(padded("right")),
        [padded("left"), padded("right")],
        [{"input_ids": row.tolist()} for row in TEXTS],
        DataLoader(list(TEXTS), batch_size=3),
        DataLoader([{"input_ids": row, "attention_mask": torch.ones(60).long()} for row in TEXTS], batch_size=3),
    ],
    ids=range(13),
)  # fmt: skip
def test_tokens_are_taken_in_any_plain_form(texts, expected_theta):
    theta = calibrate(model_of(), texts, k=K, **DENSE).theta
    # twice the same texts have the same means and deviations
    torch.testing.assert_close(theta, expected_theta, atol=1e-5, rtol=1e-5)


def test_one_sequence_need_not_be_in_a_list():
    expected = calibrate(model_of(), TEXTS[:1], k=K, **DENSE).theta
    for texts in (TEXTS[0], TEXTS[0].tolist(), tuple(TEXTS[0].tolist()), {"input_ids": TEXTS[0].tolist()}):
        assert torch.equal(calibrate(model_of(), texts, k=K, **DENSE).theta, expected)


def test_sequences_of_different_lengths_and_streams():
    ragged = [TEXTS[0, :40].tolist(), TEXTS[1].tolist()]
    expected = calibrate(model_of(), [TEXTS[0, :40], TEXTS[1]], k=K, **DENSE).theta
    for texts in (ragged, {"input_ids": ragged}, DataLoader(ragged, collate_fn=lambda batch: batch)):
        assert torch.equal(calibrate(model_of(), texts, k=K, **DENSE).theta, expected)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.tensor(each) for each in ragged)

    assert torch.equal(calibrate(model_of(), DataLoader(Stream()), k=K, **DENSE).theta, expected)


def test_several_k_without_top_k_at_calibration():
    table = calibrate(model_of(), TEXTS, k=[16, K], top_k_at_calibration=False, estimator="pooled", **DENSE)
    assert table.k.tolist() == [8, 16]
    for k in (8, 16):
        assert abs(kept(table, TEXTS, k)[0].mean() - k) < 0.25
    with pytest.raises(TopThetaValueError, match="top_k_at_calibration=False"):
        calibrate(model_of(), TEXTS, k=[8, 16], **DENSE)


def test_layers_with_a_larger_k_of_their_own():
    table = calibrate(model_of(), TEXTS, k=K, layer_k=[20, 0], estimator="pooled")
    with torch.no_grad(), sparsify(model_of(), table, k=K, prefill="thresholded", statistics=True) as run:
        model_of()(TEXTS)
    first = run.statistics()[0]
    assert (first.kept[first.keys <= 20] == first.keys[first.keys <= 20, None]).all()
    assert abs(first.kept[first.keys > 20].float().mean() - 20) < 0.5


def test_one_number_is_the_least_k_of_all_layers():
    table, listed = (calibrate(model_of(), TEXTS, k=K, layer_k=layer_k) for layer_k in (12, [12, 12]))
    assert table.layer_k == (12, 12)
    assert torch.equal(table.theta, listed.theta)


def test_discarded_mass_is_what_is_left_out():
    table = calibrate(model_of(), TEXTS, placement="pre_softmax", k=K, **DENSE)
    full = calibrate_discarded_mass(model_of(), table, TEXTS)
    assert full.discarded_mass.shape == table.theta.shape
    assert (full.discarded_mass[table.theta > -torch.inf] > 0).all()
    assert torch.equal(full.theta, table.theta)
    several = calibrate(model_of(), TEXTS, placement="pre_softmax", k=[8, 16], top_k_at_calibration=False, **DENSE)
    mass = calibrate_discarded_mass(model_of(), several, TEXTS).discarded_mass
    # keeping more leaves less
    assert mass[1][several.theta[1] > -torch.inf].mean() < mass[0][several.theta[0] > -torch.inf].mean()
    post = calibrate(model_of(), TEXTS, k=K, placement="post_softmax", **DENSE)
    with pytest.raises(TopThetaValueError, match="pre_softmax"):
        calibrate_discarded_mass(model_of(), post, TEXTS)


@pytest.mark.filterwarnings("error::toptheta_npu.thresholds.MeanDiscardedMassWarning")
def test_the_mean_discarded_mass_is_kept_by_name_and_warned_of(tmp_path):
    table = calibrate(model_of(), TEXTS, placement="pre_softmax", k=K, **DENSE)
    typical = calibrate_discarded_mass(model_of(), table, TEXTS)
    mean = calibrate_discarded_mass(model_of(), table, TEXTS, statistic="mean")
    sparse = table.theta > -torch.inf
    assert (mean.discarded_mass[sparse] > typical.discarded_mass[sparse]).all()
    for each, statistic in ((typical, "geometric_mean"), (mean, "mean")):
        each.save(tmp_path / statistic)
        assert ThresholdTable.load(tmp_path / statistic).discarded_statistic == statistic
    for quiet, sdc in ((typical, "offline"), (mean, "exact")):
        with sparsify(model_of(), quiet, k=K, sdc=sdc, prefill="thresholded"), torch.no_grad():
            model_of()(TEXTS)
    with (
        pytest.warns(MeanDiscardedMassWarning, match="calibrate_discarded_mass again, whose default") as caught,
        sparsify(model_of(), mean, k=K, sdc="offline", prefill="thresholded"),
        torch.no_grad(),
    ):
        model_of()(TEXTS)
    assert caught[0].filename == __file__
    with pytest.raises(TopThetaValueError, match="statistic: expected one of geometric_mean, mean, got 'median'"):
        calibrate_discarded_mass(model_of(), table, TEXTS, statistic="median")


def test_progress_and_provenance():
    done = []
    table = calibrate(model_of(), TEXTS, k=K, progress=done.append, provenance={"text": "noise"}, **DENSE)
    assert done == list(range(1, 9))
    assert table.fingerprint == model_fingerprint(model_of())
    for name, value in {"text": "noise", "sequences": "8", "tokens": "480", "top_k_at_calibration": "True"}.items():
        assert table.provenance[name] == value


def test_calibration_leaves_the_model_alone():
    model, ids = new_model(), tokens(1, 20)
    with torch.no_grad():
        expected = model(ids).logits
        calibrate(model, TEXTS, k=K, **DENSE)
        assert torch.equal(model(ids).logits, expected)
        with pytest.raises(ZeroDivisionError):
            calibrate(model, TEXTS, k=K, progress=lambda done: 1 // 0, **DENSE)
        assert torch.equal(model(ids).logits, expected)
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_model_without_a_head():
    base = LlamaModel(model_of().config).eval()
    base.load_state_dict(model_of().model.state_dict())
    expected = calibrate(model_of(), TEXTS, k=K, **DENSE)
    assert torch.equal(calibrate(base, TEXTS, k=K, **DENSE).theta, expected.theta)
    with torch.no_grad(), sparsify(base, expected, k=K):
        cache = DynamicCache()
        base(tokens(1, 20), **{CACHE_ARGUMENT: cache})
        base(tokens(1, 1), **{CACHE_ARGUMENT: cache})


@pytest.mark.parametrize(
    ("texts", "options", "error", "named"),
    [
        ([tokens(1, 60), tokens(1, 8)], {}, TopThetaValueError, r"sequences\[1\].*more than 8 tokens"),
        ([tokens(1, 60), [1, 2]], {}, TopThetaValueError, r"sequences\[1\].*more than 8 tokens"),
        ([tokens(1, 60), [1.5, 2]], {}, TopThetaTypeError, r"sequences\[1\].*int64"),
        ([tokens(1, 60).int()], {}, TopThetaTypeError, r"sequences\[0\].*int32.*\.long\(\)"),
        ("some text", {}, TopThetaTypeError, r"sequences: .*got text; tokenise it"),
        (["some text"], {}, TopThetaTypeError, r"sequences\[0\]: .*got text; tokenise it"),
        ([["some", "text"]], {}, TopThetaTypeError, r"sequences\[0\]: .*got text; tokenise it"),
        ({"ids": TEXTS}, {}, TopThetaValueError, r"sequences\[0\]: expected a mapping with input_ids, got \['ids'\]"),
        ({"input_ids": "text"}, {}, TopThetaTypeError, r"sequences\[0\]\['input_ids'\]: .*got text"),
        ({"input_ids": list(TEXTS.T)}, {}, TopThetaTypeError, r"a list of tensors, which may be rows or columns"),
        ([[TEXTS]], {}, TopThetaTypeError, r"sequences\[0\]: expected token ids"),
        ({"input_ids": TEXTS, "attention_mask": TEXTS[:2] > 0}, {}, TopThetaValueError, "the shape of input_ids"),
        ({"input_ids": TEXTS, "attention_mask": TEXTS * 0}, {}, TopThetaValueError, "got nothing but zeros"),
        ({"input_ids": TEXTS, "attention_mask": TEXTS}, {}, TopThetaValueError, "holes or other numbers"),
        ({"input_ids": TEXTS, "attention_mask": TEXTS != 5}, {}, TopThetaValueError, "holes or other numbers"),
        ([10**30] * 20, {}, TopThetaTypeError, r"sequences\[0\]: expected token ids"),
        (None, {}, TopThetaTypeError, r"sequences: expected a list or other iterable of token ids.*got NoneType"),
        (5, {}, TopThetaTypeError, r"sequences: expected .*got int"),
        ([tokens(1, 60)[None]], {}, TopThetaValueError, r"\[B, n\]"),
        ([tokens(1, 60) + 90], {}, TopThetaValueError, "tokens from 0 to 96"),
        ([], {}, TopThetaValueError, "sequences"),
        (TEXTS, {"k": 0}, TopThetaValueError, "k: expected an int from 1 to 16777216, got 0"),
        (TEXTS, {"k": []}, TopThetaValueError, "k: expected one or more ints"),
        (TEXTS, {"k": "64"}, TopThetaTypeError, "k: expected an int, or a list or tuple of them, got '64'"),
        (TEXTS, {"k": ["64"]}, TopThetaTypeError, "k: expected an int, got '64'"),
        (
            TEXTS,
            {"k": 10**5000},
            TopThetaValueError,
            "k: expected an int from 1 to 16777216, got a value of type int that cannot be shown",
        ),
        (TEXTS, {"alpha": "0.1"}, TopThetaTypeError, "alpha: expected a number, got '0.1'"),
        (TEXTS, {"alpha": 10**400}, TopThetaValueError, "alpha: expected a finite number"),
        (TEXTS, {"row_fraction": "1"}, TopThetaTypeError, "row_fraction: expected a number, got '1'"),
        (
            TEXTS,
            {"row_fraction": 1e-6},
            TopThetaValueError,
            "row_fraction: expected a share that picks some row of more than 8 keys, got 1e-06, with which there is "
            "none; raise it, or feed more sequences",
        ),
        (TEXTS, {"seed": "0"}, TopThetaTypeError, "seed: expected an int, got '0'"),
        (TEXTS, {"layer_k": True}, TopThetaTypeError, "layer_k: expected an int, got True"),
        (TEXTS, {"layer_k": ["0", "0"]}, TopThetaTypeError, "layer_k: expected an int, got '0'"),
        (TEXTS, {"layer_k": [10**30, 0]}, TopThetaValueError, "layer_k: expected an int from 0 to 16777216"),
        (TEXTS, {"vmc": "no"}, TopThetaTypeError, "vmc: expected True or False, got 'no'"),
        (TEXTS, {"top_k_at_calibration": "False"}, TopThetaTypeError, "top_k_at_calibration: expected True or False"),
        (TEXTS, {"progress": 1}, TopThetaTypeError, "progress: expected a function"),
        (TEXTS, {"provenance": "text"}, TopThetaTypeError, "provenance: expected a mapping"),
        (TEXTS, {"k": 8.0}, TopThetaTypeError, "k: expected an int"),
        (TEXTS, {"k": 60}, TopThetaValueError, "more than 60 tokens"),
        (TEXTS, {"sdc": "offline"}, TopThetaValueError, "sdc"),
        (TEXTS, {"sdc": "none", "placement": "pre_softmax"}, TopThetaValueError, "vmc"),
        (TEXTS, {"layer_k": None}, TopThetaValueError, "layer_k"),
        (TEXTS, {"estimator": "median"}, TopThetaValueError, "estimator"),
    ],
)
def test_unusable_arguments(texts, options, error, named, tmp_path):
    with pytest.raises(error, match=named) as caught:
        calibrate(model_of(), texts, checkpoint=tmp_path / "state", **{"k": K, **DENSE, **options})
    assert isinstance(caught.value, TopThetaError)
    assert not list(tmp_path.iterdir())


def test_a_second_pass_needs_rows_too():
    table = calibrate(model_of(), TEXTS, placement="pre_softmax", k=K, **DENSE)
    with pytest.raises(TopThetaValueError, match=r"^row_fraction: expected a share that picks some row of more than 8"):
        calibrate_discarded_mass(model_of(), table, TEXTS, row_fraction=1e-6)
