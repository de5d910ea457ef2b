"""``toptheta doctor MODEL`` as a user types it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.command import toptheta
from tests.cli.folders import save_model
from tests.models.tiny import new_model
from toptheta_npu.models.fingerprint.sizes import sizes_of_folder, sizes_of_model

pytestmark = pytest.mark.usefixtures("quiet_and_one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, four query heads on two KV heads of 16 numbers in float32."""
    return save_model(tmp_path_factory.mktemp("models") / "tiny-random")


def cut_to_headers(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    for file in to.glob("*.safetensors"):
        content = file.read_bytes()
        file.write_bytes(content[: 8 + int.from_bytes(content[:8], "little")])
    return to


def test_bytes_and_limits_without_the_weights(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cut_to_headers(model, tmp_path / "headers")
    assert toptheta("doctor", str(folder), "--length", "128", "--batch", "1", "--batch", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    network = new_model("llama", layers=3, vocab_size=2048)
    # a row of the input embeddings alone is read
    weights = sum(each.nbytes for each in network.parameters()) - network.get_input_embeddings().weight.nbytes
    assert found["size"]["weights"] == weights
    keys = 128 * 2 * 16 * 4 * 3
    for step, batch in zip(found["steps"], (1, 4), strict=True):
        assert (step["batch"], step["length"]) == (batch, 128)
        assert step["bytes"]["keys"] == step["bytes"]["values"] == batch * keys
        every = weights + 2 * batch * keys
        assert step["attention_at_most"] == 2.0
        assert step["model_at_most"] == pytest.approx(every / (every - batch * keys))


def test_what_it_says(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("doctor", str(model)) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "tiny-random: 3 layers, 4 query heads, 2 heads share a KV head, float32. A decode step reads " in said
    # the model has 256 positions, fewer than any of the usual lengths
    assert re.search(r" 1 256 197 kB \d+ % 2\.00x 1\.\d\dx ", said)
    assert f"Next: toptheta evaluate {model} --text FILE" in said


def test_int8_weights_count_as_they_are_stored_and_others_as_they_are_loaded(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    network = new_model("llama", layers=3).to(torch.bfloat16)
    network.save_pretrained(tmp_path)
    sizes, dtype = sizes_of_folder(tmp_path, network.config)
    assert dtype is torch.bfloat16
    assert sizes == sizes_of_model(network)
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.int8)}, tmp_path / "model.safetensors")
    assert sizes_of_folder(tmp_path, network.config)[0] == {"a": 30, "b": 7}
    network.config.dtype = None
    sizes, dtype = sizes_of_folder(tmp_path, network.config)
    assert (sizes["a"], dtype) == (60, torch.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["none"],
            "MODEL: expected the folder of a model, got none, which is not there; correct the path, or download",
        ),
        (["empty"], "MODEL: expected a folder with config.json, got empty without it"),
        (["tiny", "--length", "0"], "--length: expected an int of at least 1, got 0"),
        (["tiny", "--length", "257"], "--length: expected at most 256 tokens, for which the model has positions, got"),
        (["tiny", "--batch", "-1"], "--batch: expected an int of at least 1, got -1"),
        (["tiny", "--strict"], "--strict excludes MODEL"),
        (["--batch", "2"], "--batch needs MODEL; name the folder of a model"),
        (["weightless"], "weightless: expected weights in *.safetensors, got none"),
        (["half"], "half/model.safetensors: expected a safetensors file, got another file, or a part of one"),
        (["bert"], "model: expected one causal attention module for each of the 12 layers"),
        (["broken"], "MODEL: expected a configuration that transformers can load, got broken"),
    ],
)
def test_what_is_no_model_is_refused_with_a_sentence(
    arguments: list[str], message: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    for name in ("tiny", "weightless", "half", "bert", "broken"):
        shutil.copytree(model, name)
    Path("weightless/model.safetensors").unlink()
    Path("half/model.safetensors").write_bytes(Path("half/model.safetensors").read_bytes()[:100])
    Path("bert/config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    Path("broken/config.json").write_text("{")
    assert toptheta("doctor", *arguments) == 2
    said = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert message in said
    assert said.count("error:") == 1
