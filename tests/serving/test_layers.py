"""Names of layers, heads of ranks, and tables of other models."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
import torch

from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama_thresholds
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaValueError
from toptheta_npu.vllm.layers import Geometry, LayerGroup, layer_index, load_thresholds, model_folder
from toptheta_npu.vllm.metrics import Aims
from toptheta_npu.vllm.settings import Settings

TABLE = TINY_LLAMA / "thresholds_pre_softmax.theta"


def geometry(rank: int = 0, ranks: int = 1, folder: Path | None = TINY_LLAMA) -> Geometry:
    table = load_tiny_llama_thresholds("pre_softmax")
    return Geometry(table.num_layers, table.num_heads, table.num_heads // ranks, rank, folder)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("model.layers.0.self_attn.attn", 0),
        ("model.decoder.layers.11.self_attn.attn", 11),
        ("transformer.h.3.attn.attn", 3),
        ("language_model.model.layers.47.self_attn.attn", 47),
    ],
)
def test_a_name_tells_the_layer_of_the_whole_model(name: str, index: int) -> None:
    assert layer_index(name) == index


@pytest.mark.parametrize("name", ["model.attn", "vision.blocks.3.layers.4.attn"])
def test_names_with_no_index_or_two_are_refused(name: str) -> None:
    with pytest.raises(TopThetaNotImplementedError, match=f"one index in their names, got {re.escape(repr(name))}"):
        layer_index(name)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_ranks_have_all_heads_together(ranks: int) -> None:
    settings = Settings(TABLE, k=64, check_weights=False, dense_below=100)
    whole = load_tiny_llama_thresholds("pre_softmax").at(64, dense_below=100)
    parts = [load_thresholds(settings, geometry(rank, ranks)) for rank in range(ranks)]
    for layer, theta in enumerate(whole.theta):
        assert torch.cat([part.theta[layer] for part in parts], 1).equal(theta)
        assert all(part.theta[layer].is_contiguous() for part in parts)
    assert parts[0].dense_up_to == whole.dense_up_to


def test_tau_is_the_threshold_of_every_row_of_any_model() -> None:
    at = load_thresholds(Settings(tau=0.003, dense_below=100), dataclasses.replace(geometry(1, 2), folder=None))
    assert at.placement == "post_softmax"
    assert [rows.shape[1] for rows in at.theta] == [4] * 6
    assert at.rows(5, torch.tensor([99, 100, 10**6]))[:, 0].tolist() == pytest.approx([float("-inf"), 0.003, 0.003])
    assert not Aims(at, [5])(torch.tensor([10, 500])).any()
    with pytest.raises(TopThetaValueError, match=r"^dense_layers: expected 0 to 5, got 6$"):
        load_thresholds(Settings(tau=0.003, dense_layers=(6,)), geometry())


def test_ranks_that_do_not_share_evenly_are_refused() -> None:
    uneven = dataclasses.replace(geometry(), rank_heads=3)
    with pytest.raises(TopThetaValueError, match=r"heads in equal shares, got 3 on rank 0; choose a number of ranks"):
        load_thresholds(Settings(TABLE, k=64), uneven)


def test_the_models_own_table_is_taken() -> None:
    assert load_thresholds(Settings(TABLE, k=64), geometry()).k == 64


def test_a_table_of_other_weights_is_refused(tmp_path: Path) -> None:
    table = load_tiny_llama_thresholds("pre_softmax")
    digits = table.fingerprint.rpartition("=")[2]
    other = dataclasses.replace(table, fingerprint=table.fingerprint.replace(digits, "0" * 32))
    other.save(tmp_path / "other.theta")
    with pytest.raises(
        TopThetaValueError, match="which differs in weights; calibrate this model, or name its own table"
    ):
        load_thresholds(Settings(tmp_path / "other.theta", k=64), geometry())
    assert load_thresholds(Settings(tmp_path / "other.theta", k=64, check_weights=False), geometry()).k == 64


@pytest.mark.parametrize("files", [[], ["config.json"]])
def test_weights_that_cannot_be_compared_are_an_error(tmp_path: Path, files: list[str]) -> None:
    for file in files:
        shutil.copy(TINY_LLAMA / file, tmp_path)
    with pytest.raises(
        TopThetaNotImplementedError, match=r"a model from a folder with \*\.safetensors, got .*check_wei"
    ):
        load_thresholds(Settings(TABLE, k=64), geometry(folder=tmp_path if files else None))


def test_a_table_of_another_shape_is_refused() -> None:
    larger = dataclasses.replace(geometry(), num_layers=99)
    with pytest.raises(TopThetaValueError, match=r"thresholds of 99 layers x \d+ heads, as the model has, got"):
        load_thresholds(Settings(TABLE, k=64), larger)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dense_layers": (99,)}, "dense_layers: expected 0 to "),
        ({"dense_layers": tuple(range(6))}, "dense_layers: expected some layer left out, got all"),
        ({"k": 5000}, "k: expected "),
        ({"sdc": "offline", "vmc": True}, "sdc: expected 'none', 'exact' or 'exp_threshold' with a table without"),
        ({"dense_below": 10**8}, "dense_below: expected 0 to"),
    ],
)
def test_what_the_table_cannot_give_is_said(changes: dict[str, object], message: str) -> None:
    settings = Settings(**{"table": TABLE, "k": 64} | changes)  # type: ignore[arg-type]
    with pytest.raises(TopThetaValueError, match=f"^{re.escape(message)}"):
        load_thresholds(settings, geometry())


def test_dense_rows_aim_at_nothing() -> None:
    at_k = load_thresholds(Settings(TABLE, k=64, dense_below=0), geometry())
    aims = Aims(at_k, [5])(torch.tensor([10, 64, 65, 500]))
    assert aims.tolist() == [[0, 0, 64, 64]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_looks_up_all_layers_without_a_copy_of_the_table(ranks: int) -> None:
    at_k = load_thresholds(Settings(TABLE, k=64), geometry(ranks - 1, ranks))
    group, lengths = LayerGroup(at_k, [2, 3]), torch.tensor([0, 65, 500, 10**6])
    assert group.theta.data_ptr() == at_k.theta[0].data_ptr()
    for layer, theta in enumerate(group.look_up(lengths).theta):
        assert torch.equal(theta, at_k.rows(layer, lengths))


def test_a_folder_is_its_own_place_and_an_unknown_name_has_none() -> None:
    assert model_folder(str(TINY_LLAMA)) == TINY_LLAMA
    assert model_folder("nobody/has-this-model") is None
