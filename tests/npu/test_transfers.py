"""What a calibration or an evaluation on a device copies to and from the host, and waits for, by torch's own hooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from tests.models.tiny import new_model, tokens
from toptheta_npu import incremental_attention
from toptheta_npu.context_parallel import context_parallel_attention
from toptheta_npu.models import calibrate, calibrate_discarded_mass, sparsify
from toptheta_npu.models.caches.naming import CACHE_ARGUMENT
from toptheta_npu.models.calibration import sequence_rows
from toptheta_npu.models.calibration.kept_rows import count_kept
from toptheta_npu.thresholds import ThresholdTable

LAYERS, WINDOWS = 2, 2
TEXTS = tokens(WINDOWS, 160, seed=1)
#: Operators whose result the host has to wait for.
WAITING = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique", "bincount", "is_nonzero")
WAYS: dict[str, dict[str, Any]] = {
    "pooled": {"k": [8, 16], "estimator": "pooled", "top_k_at_calibration": False},
    "pooled, scores": {
        "k": [8, 16], "estimator": "pooled", "top_k_at_calibration": False, "placement": "pre_softmax",
    },
    "algorithm1": {"k": 8},
}  # fmt: skip


class Transfers(TorchDispatchMode):
    """Counts copies between the device and the host, and what the host waits for besides."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").partition(".")[0]
        where = {leaf.device.type for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)}
        self.copies += name in ("_to_copy", "copy_") and where == {"cpu", "npu"}
        self.waits += name in WAITING and "npu" in where
        return out


@pytest.fixture(params=["one block", "many blocks"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    """A model whose chosen rows are looked at in one block a layer, or in some dozens."""
    if request.param == "many blocks":
        monkeypatch.setattr(sequence_rows, "_SCORES_ON_DEVICE", 2**11)
    return new_model("llama").float().eval()


def on_npu(model: PreTrainedModel) -> tuple[PreTrainedModel, Transfers]:
    """The model on the device, and what its plain runs over the texts transfer."""
    moved = model.to("npu")
    with Transfers() as plain, torch.no_grad():
        for text in TEXTS:
            moved.base_model(input_ids=text[None].to("npu"), use_cache=False)
    return moved, plain


def calibrated(model: PreTrainedModel, way: str) -> ThresholdTable:
    return calibrate(model, TEXTS, layer_k=[0] * LAYERS, row_fraction=0.5, **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_calibration_copies_four_times_a_layer_at_most_and_gives_the_table_of_a_cpu(
    model: PreTrainedModel, way: str
) -> None:
    expected = calibrated(model, way)
    moved, plain = on_npu(model)
    with Transfers() as found:
        table = calibrated(moved, way)
    # the fingerprint looks at two weights of every layer, once
    assert found.copies - plain.copies - 2 * LAYERS <= 4 * LAYERS * WINDOWS
    assert found.waits == plain.waits
    assert torch.equal(table.counts, expected.counts)
    assert torch.equal(table.lengths, expected.lengths)
    torch.testing.assert_close(table.theta, expected.theta, rtol=1e-4, atol=1e-6)


def test_what_is_kept_and_discarded_is_counted_on_the_device(model: PreTrainedModel) -> None:
    table = calibrated(model, "pooled, scores")
    kept, full = count_kept(model, table, TEXTS), calibrate_discarded_mass(model, table, TEXTS)
    moved, plain = on_npu(model)
    with Transfers() as found:
        counted = count_kept(moved, table, TEXTS)
    assert found.copies - plain.copies - 2 * LAYERS <= 4 * LAYERS * WINDOWS
    assert found.waits == plain.waits
    for layer, expected in kept.items():
        assert torch.equal(counted[layer].lengths, expected.lengths)
        for name in ("kept", "value_rows"):
            torch.testing.assert_close(getattr(counted[layer], name), getattr(expected, name), rtol=0, atol=1)
    with Transfers() as found:
        again = calibrate_discarded_mass(moved, table, TEXTS)
    assert found.copies - plain.copies - 2 * LAYERS <= 3 * LAYERS * WINDOWS
    assert found.waits == plain.waits
    assert again.discarded_mass is not None
    torch.testing.assert_close(again.discarded_mass, full.discarded_mass, rtol=1e-4, atol=1e-6)


def test_scores_that_are_no_numbers_are_refused_by_their_layer(model: PreTrainedModel) -> None:
    moved = model.to("npu")
    moved.model.layers[1].self_attn.k_proj.weight.data[0, 0] = torch.nan
    for way in WAYS:
        with pytest.raises(ValueError, match="scores of layer 1: expected finite elements or -inf, got NaN"):
            calibrated(moved, way)


@pytest.mark.parametrize("thresholds", [{"tau": 0.01}, {"tau": 0.01, "lse": "sampled"}])
def test_statistics_of_a_prompt_and_of_steps_stay_on_the_device(
    model: PreTrainedModel, thresholds: dict[str, Any]
) -> None:
    ids = TEXTS[:1].to("npu")
    moved = model.to("npu", torch.bfloat16)
    with torch.no_grad(), sparsify(moved, **thresholds, prefill="thresholded", statistics="summary") as run:
        with Transfers() as prompt:
            cache = moved(ids, logits_to_keep=1)[CACHE_ARGUMENT]
        moved(ids[:, :1], **{CACHE_ARGUMENT: cache})
        with Transfers() as steps:
            for _ in range(3):
                moved(ids[:, :1], **{CACHE_ARGUMENT: cache})
    # of a prompt one look at the V rows of each layer, and one at the mask by the model itself
    assert prompt.copies == 0
    assert prompt.waits <= LAYERS + 1
    assert (steps.copies, steps.waits) == (0, 0)
    with Transfers() as asked:
        assert run.summaries()[0].rows == 160 + 4
    assert asked.copies > 0


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A process group of two ranks, the second of which answers as the first does: torch's own group for dry runs."""
    if "repeating" not in dist.Backend.backend_list:
        dist.Backend.register_backend("repeating", _create_fake_pg, extended_api=True, devices=["cpu", "npu"])
    dist.init_process_group("repeating", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax", "sampled_softmax"])
def test_ranks_of_a_context_meet_on_the_device(placement: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, heads, rows, 32, generator=generator).half().npu() for heads, rows in ((4, 1), (2, 50), (2, 50))
    )
    given: dict[str, Any] = {
        "actual_seq_lengths": torch.tensor([50, 30], dtype=torch.int32).npu(), "placement": placement,
    }  # fmt: skip
    threshold = torch.full((4,), 0.01).npu()
    context_parallel_attention(query, key, value, threshold, **given)  # the first call compares the arguments of all
    with Transfers() as found:
        out = context_parallel_attention(query, key, value, threshold, **given)
    assert (found.copies, found.waits) == (0, 0)
    # each key twice has half the probability
    alone = incremental_attention(query, key, value, threshold * (1 if placement == "pre_softmax" else 2), **given)
    torch.testing.assert_close(out.cpu(), alone.cpu(), rtol=1e-3, atol=1e-3)
