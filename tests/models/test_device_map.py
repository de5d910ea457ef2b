"""Models that accelerate dispatches: in part on the disk, they calibrate and run as if they were in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from transformers import LlamaForCausalLM, PreTrainedModel

from tests.models.tiny import K, new_model, tokens
from toptheta_npu.models import calibrate, calibrate_discarded_mass, model_fingerprint, sparsify
from toptheta_npu.thresholds import ThresholdTable

LAYERS = 4
TEXTS = tokens(4, 40, seed=1)
OPTIONS: dict[str, Any] = {"k": K, "layer_k": [0] * LAYERS, "row_fraction": 0.5, "placement": "pre_softmax"}
REST = ("lm_head", "model.embed_tokens", "model.norm", "model.rotary_emb")
MAPS = {
    "some layers on the disk": {f"model.layers.{layer}": "disk" if layer % 2 else "cpu" for layer in range(LAYERS)},
    "the first layer on the disk": {f"model.layers.{layer}": "cpu" if layer else "disk" for layer in range(LAYERS)},
    "all on the disk": {"model.layers": "disk", "model.embed_tokens": "disk", "lm_head": "disk"},
}


@pytest.fixture(scope="module")
def whole() -> PreTrainedModel:
    return new_model(layers=LAYERS)


@pytest.fixture(scope="module")
def folder(whole: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    whole.save_pretrained(path)
    return path


@pytest.fixture(params=MAPS)
def dispatched(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> PreTrainedModel:
    device_map = {**dict.fromkeys(REST, "cpu"), **MAPS[request.param]}
    model = LlamaForCausalLM.from_pretrained(folder, device_map=device_map, offload_folder=tmp_path / "offload").eval()
    offloaded = {name for name, weight in model.named_parameters() if weight.is_meta}
    assert offloaded
    return model


def content_of(table: ThresholdTable, path: Path) -> bytes:
    table.save(path)
    return path.read_bytes()


def test_a_dispatched_model_calibrates_to_the_same_table(whole, dispatched, tmp_path):
    for name, options in (("algorithm1", {}), ("pooled", {"estimator": "pooled"})):
        expected = calibrate(whole, TEXTS, **OPTIONS, **options)
        table = calibrate(dispatched, TEXTS, **OPTIONS, **options, checkpoint=tmp_path / f"state of {name}")
        assert content_of(table, tmp_path / "dispatched") == content_of(expected, tmp_path / "whole")
    assert model_fingerprint(dispatched) == model_fingerprint(whole)
    table = calibrate(whole, TEXTS, **OPTIONS)
    expected, got = (calibrate_discarded_mass(model, table, TEXTS) for model in (whole, dispatched))
    assert content_of(got, tmp_path / "dispatched") == content_of(expected, tmp_path / "whole")


def test_a_dispatched_model_runs_by_thresholds(whole, dispatched):
    table = calibrate(whole, TEXTS, **OPTIONS)
    for options in ({}, {"prefill": "thresholded", "statistics": True}):
        out = []
        for model in (whole, dispatched):
            with torch.no_grad(), sparsify(model, table, k=K, **options) as recording:
                out.append(model.generate(TEXTS[:2, :30], max_new_tokens=4, min_new_tokens=4, do_sample=False))
            if options:
                out[-1] = torch.cat([out[-1].flatten(), *(layer.kept.flatten() for layer in recording.statistics())])
        assert torch.equal(*out)
    with torch.no_grad():
        assert torch.equal(dispatched(TEXTS).logits, whole(TEXTS).logits)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_fingerprint_is_that_of_the_weights_and_not_of_a_folder(where, tmp_path, folder, whole):
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    model.model.layers[3].self_attn.k_proj.weight.data *= 2
    expected = model_fingerprint(model)
    assert expected != model_fingerprint(whole)
    if where == "memory":
        cpu_offload(model)
    else:
        disk_offload(model, tmp_path / "offload")
    assert model.model.layers[3].self_attn.k_proj.weight.is_meta
    assert model_fingerprint(model) == expected
    assert model.model.layers[3].self_attn.k_proj.weight.is_meta
