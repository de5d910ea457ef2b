"""``toptheta convert`` as a user types it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.cli.command import toptheta
from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama_thresholds
from toptheta_npu.models import folder_fingerprint
from toptheta_npu.thresholds import ThresholdTable

MODEL = ("--fingerprint-of", str(TINY_LLAMA))
MODEL_FINGERPRINT = folder_fingerprint(TINY_LLAMA)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's thresholds in ``table.theta``, those of k = 64 in every form of the authors."""
    folder = tmp_path_factory.mktemp("files")
    table = load_tiny_llama_thresholds("pre_softmax")
    table.save(folder / "table.theta")
    table.export_text(folder / "th.txt", 64)
    lines = (folder / "th.txt").read_text().splitlines()
    for name, mass in (("sdc.txt", 0.5), ("other_sdc.txt", 0.25)):
        masses = (f"{line.split()[0]} {mass} {line.split()[2]}\n" for line in lines)
        (folder / name).write_text("".join(masses))
    (folder / "bad.txt").write_text(f"{lines[0]}\nL0_H0:600 1.0 3\n")
    return folder


@pytest.fixture(autouse=True)
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with these files."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def convert(*arguments: str) -> int | str | None:
    return toptheta("convert", *arguments)


def test_there_and_back_keeps_every_threshold() -> None:
    table = ThresholdTable.load("table.theta")
    assert list(table.layer_k) == [512, 512, 0, 0, 0, 0]
    assert convert("table.theta", "-o", "new.txt", "--k", "64") == 0
    assert convert("new.txt", "-o", "back.theta", *MODEL) == 0
    found = ThresholdTable.load("back.theta", fingerprint=MODEL_FINGERPRINT)
    assert found.provenance == {"converted from": "new.txt"}
    assert found.layer_k == table.layer_k
    for layer in range(table.num_layers):
        lengths = table.lengths[table.lengths > max(64, table.layer_k[layer])]
        assert torch.equal(found.at(64).theta[layer][lengths], table.at(64).theta[layer][lengths])


def test_an_sdc_file_is_added_and_written() -> None:
    assert convert("th.txt", "--sdc", "sdc.txt", "-o", "with.theta", *MODEL) == 0
    table = ThresholdTable.load("with.theta")
    assert table.discarded_mass is not None
    assert table.discarded_mass.unique().tolist() == [0.0, 0.5]
    assert table.discarded_statistic == "mean"
    assert convert("with.theta", "-o", "again_sdc.txt") == 0
    written = Path("again_sdc.txt").read_text()
    assert written.startswith("L0_H0:")
    assert written == Path("sdc.txt").read_text()
    # also added to a table that is there, and written by another name
    assert convert("with.theta", "--sdc", "other_sdc.txt", "-o", "other.theta") == 0
    assert convert("other.theta", "-o", "mass", "--to", "sdc") == 0
    assert Path("mass").read_text() == Path("other_sdc.txt").read_text()


def test_a_copy_of_a_text_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("th.txt", "-o", "again.txt") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == ("again.txt written: pre_softmax, algorithm1, k = 64, 6 layers x 8 heads, rows of 65 to 2560 keys.")
    assert second == (
        "Assumed, since th.txt does not say: --placement pre_softmax, --estimator algorithm1, --alpha 0.1."
    )
    assert Path("again.txt").read_text() == Path("th.txt").read_text()


def test_forms_may_be_named_and_origins_told() -> None:
    load_tiny_llama_thresholds("post_softmax").save("post")
    assert convert("post", "-o", "lines", "--from", "theta", "--to", "th", "--k", "100") == 0
    options = ("--placement", "post_softmax", "--estimator", "pooled", "--alpha", "0")
    assert convert("lines", "-o", "back", "--from", "th", "--to", "theta", *options, *MODEL) == 0
    table = ThresholdTable.load("back")
    assert (table.placement, table.estimator, table.alpha, table.k.tolist()) == ("post_softmax", "pooled", 0.0, [100])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table.theta", "-o", "x.txt"], "--k: expected one k from 32 to 512, got none; add --k: x.txt holds one"),
        (["table.theta", "-o", "x.theta", "--k", "64"], "--k needs a th.txt or sdc.txt to write, and x.theta"),
        (["table.theta", "-o", "x.pdf"], "--to: expected one of sdc, th, theta, got none, for x.pdf; or name"),
        (["table.pdf", "-o", "x.theta"], "--from: expected one of theta, th, got none, for table.pdf; or name"),
        (["none.theta", "-o", "x.txt"], "none.theta: expected a threshold table, got no such file"),
        (["table.theta", "-o", "table.theta"], "--output: expected a new file, got table.theta, which is there"),
        (["table.theta", "-o", "x_sdc.txt", "--k", "64"], "table.theta: expected a table with a discarded mass, got"),
        (["bad.txt", "-o", "x.theta", "--fingerprint-of", "none"], "bad.txt, line 2: expected L<layer>_H<head>"),
        (["table.theta", "-o", "x.theta", *MODEL], "--fingerprint-of needs a th.txt to read, and table"),
        (["table.theta", "-o", "x.theta", "--alpha", "0"], "--alpha needs a th.txt to read, and table"),
        (["th.txt", "-o", "x.theta"], "--fingerprint-of: expected the folder of a model, got none; a table belongs"),
        (["th.txt", "-o", "x.txt", "--sdc", "sdc.txt"], "--sdc needs a table or a sdc.txt to write, and x.txt has"),
        (
            ["table.theta", "--sdc", "sdc.txt", "-o", "x.theta"],
            "--sdc: expected a table of one k, as a sdc.txt is of "
            "one, got table.theta with k = 32, 64, 128, 256, 512; make one of one k first: toptheta convert",
        ),
    ],
)
def test_wrong_use_writes_nothing(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert convert(*arguments) == 2
    assert message in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_thresholds_are_not_given_the_fingerprint_of_a_model_of_another_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "other")
    assert convert("th.txt", "--fingerprint-of", "other", "-o", "new.theta") == 2
    said = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert "--fingerprint-of: expected a model of 6 layers x 8 heads, as th.txt has, got 2 x 4; name the model" in said
    assert not Path("new.theta").exists()
