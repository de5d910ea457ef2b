"""The fingerprint tells models apart, forgives what does not matter, and is the same for a model and its folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    Phi3Config,
    PreTrainedModel,
    Qwen3Config,
)

from tests.models.tiny import K, model_of, new_model, table_of, tokens
from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import calibrate, folder_fingerprint, model_fingerprint, sparsify
from toptheta_npu.models.fingerprint.weights import Weight, Weights, weight_digests
from toptheta_npu.thresholds.fingerprint import Fingerprint, differences

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LLAMA = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": None,
}  # fmt: skip
_GPT = {name: _LLAMA[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
_ROTARY = {
    "rope_type": "llama3", "rope_theta": 500000, "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
#: An architecture, and a query or key weight that counts.
ARCHITECTURES = {
    "llama": (LlamaConfig(**_LLAMA), "q_proj.weight"),
    "llama3": (LlamaConfig(**_LLAMA, rope_parameters=_ROTARY), "k_proj.weight"),
    "qwen3": (Qwen3Config(**_LLAMA, head_dim=16), "k_norm.weight"),
    "mixtral": (MixtralConfig(**_LLAMA, num_local_experts=4), "k_proj.weight"),
    "phi3": (Phi3Config(**_LLAMA), "qkv_proj.weight"),
    "gpt2": (GPT2Config(**_GPT), "c_attn.weight"),
    "gpt_neox": (GPTNeoXConfig(**_GPT, intermediate_size=96), "query_key_value.weight"),
    "falcon": (FalconConfig(**_GPT, new_decoder_architecture=True, num_kv_heads=2), "query_key_value.weight"),
}


def built(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(ARCHITECTURES[name][0], dtype=torch.float32).eval()


@pytest.mark.parametrize("checkpoint", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_checkpoint_has_one_fingerprint_in_memory_and_in_its_folder(name, checkpoint, tmp_path):
    model = built(name).to(checkpoint)
    expected = model_fingerprint(model)
    for shards in ("1GB", "20KB"):
        folder = tmp_path / shards
        model.save_pretrained(folder, max_shard_size=shards)
        assert len(list(folder.glob("*.safetensors"))) > 1 or shards == "1GB"
        assert folder_fingerprint(folder) == expected
    for dtype in DTYPES:
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "1GB", dtype=dtype)
        assert model_fingerprint(loaded) == expected
        assert model_fingerprint(loaded.base_model) == expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_changed_layer_is_seen_wherever_it_is(name, tmp_path):
    model, weight = built(name), ARCHITECTURES[name][1]
    before = model_fingerprint(model)
    (changed,) = (tensor for key, tensor in model.named_parameters() if ".2." in key and key.endswith(f".{weight}"))
    changed.data[-1] += 1
    model.save_pretrained(tmp_path)
    assert differences(before, model_fingerprint(model)) == ["weights"]
    assert differences(before, folder_fingerprint(tmp_path)) == ["weights"]


def one_weight(values: Tensor) -> Weights:
    """All numbers of a dtype as a query weight."""
    weight = Weight(tuple(values.shape), lambda indices: values)
    return {f"layers.0.self_attn.{name}.weight": weight for name in ("q_proj", "k_proj")}


@pytest.mark.parametrize("checkpoint", [torch.bfloat16, torch.float16])
def test_every_number_of_a_checkpoint_counts_the_same_in_every_dtype(checkpoint):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(checkpoint)[:, None]
    digests = weight_digests(one_weight(every), 1)
    assert len(digests) == 1
    for first in DTYPES:
        for second in DTYPES:
            assert weight_digests(one_weight(every.to(first).to(second)), 1) == digests


def test_a_float32_checkpoint_has_both_roundings():
    model = new_model()
    in_float32 = model_fingerprint(model)
    in_bfloat16 = model_fingerprint(new_model().bfloat16())
    in_float16 = model_fingerprint(new_model().half())
    assert len(Fingerprint.parse(in_float32).weights) == 2
    assert not differences(in_float32, in_bfloat16)
    assert not differences(in_float32, in_float16)
    # the one case that cannot work: what bfloat16 dropped is not in the file
    assert differences(in_bfloat16, in_float16) == ["weights"]


def test_thresholds_fit_every_load_of_a_float32_checkpoint_they_were_calibrated_in():
    table = calibrate(new_model().bfloat16(), tokens(2, 30, seed=1), k=K, layer_k=[0, 0])
    with (
        pytest.raises(TopThetaValueError, match=r"differs in weights; .*calibrate it in float32"),
        sparsify(new_model().half(), table, k=K),
    ):
        pass


@pytest.mark.filterwarnings("ignore::toptheta_npu.models.NothingSparsifiedWarning")
@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_the_embedded_thresholds_fit_the_embedded_model_in_every_dtype(placement):
    table = load_tiny_llama_thresholds(placement)
    assert table.fingerprint == folder_fingerprint(TINY_LLAMA)
    for dtype in DTYPES:
        converted = load_tiny_llama()[0].to(dtype)
        with torch.no_grad(), sparsify(converted, table, k=32, prefill="thresholded"):
            logits = converted(torch.arange(40)[None]).logits
        assert logits.isfinite().all()


@pytest.mark.parametrize("part", ["self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj"])
def test_a_lora_counts_where_it_changes_query_or_key_projections(part):
    for tuned, expected in ((part, []), ("self_attn.q_proj", ["weights"]), ("self_attn.k_proj", ["weights"])):
        model = new_model()
        weight = model.get_submodule(f"model.layers.1.{tuned}").weight.data
        weight += torch.outer(torch.linspace(-1, 1, len(weight)), torch.linspace(1, 2, weight.shape[1]))
        assert differences(model_fingerprint(model_of()), model_fingerprint(model)) == expected


# --- folders and the meta device ----------------------------------------------------------------------


def test_weights_have_to_be_there():
    with torch.device("meta"):
        model = LlamaForCausalLM(model_of().config)
    with pytest.raises(TopThetaValueError, match="meta device"):
        model_fingerprint(model)


def test_another_tower_of_the_model_does_not_count(tmp_path):
    model_of().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    expected = folder_fingerprint(tmp_path)
    nested = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    tower = {f"vision_tower.{name}": tensor + 1 for name, tensor in tensors.items()}
    extra = {"model.layers.2.self_attn.q_proj.weight": torch.ones(3, 3), "model.layers.0.self_attn.inv": torch.ones(3)}
    for more in (tower, extra):
        save_file({**(nested if more is tower else tensors), **more}, tmp_path / "model.safetensors")
        assert folder_fingerprint(tmp_path) == expected


def as_shards(folder: Path) -> dict[str, Tensor]:
    """Replace the weights in a folder by two shards of names of their own and an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {name: f"part{'b' if '.1.' in name else 'a'}.safetensors" for name in tensors}
    for shard in set(names.values()):
        save_file(
            {name: each for name, each in tensors.items() if names[name] == shard}, folder / shard, {"format": "pt"}
        )
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return tensors


@pytest.mark.parametrize("beside", ["consolidated.safetensors", "model-00001-of-00001.safetensors"])
def test_an_index_says_which_files_hold_the_weights(tmp_path, beside):
    model_of().save_pretrained(tmp_path)
    expected = folder_fingerprint(tmp_path)
    tensors = as_shards(tmp_path)
    save_file({name: each + 1 for name, each in tensors.items()}, tmp_path / beside)
    assert folder_fingerprint(tmp_path) == expected
    assert model_fingerprint(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)) == expected


def test_a_single_file_goes_before_an_index(tmp_path):
    model_of().save_pretrained(tmp_path)
    expected = folder_fingerprint(tmp_path)
    tensors = as_shards(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    save_file({name: each + 1 for name, each in tensors.items() if ".1." in name}, tmp_path / "partb.safetensors")
    assert folder_fingerprint(tmp_path) == expected
    assert model_fingerprint(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)) == expected


def test_the_configuration_may_name_the_file(tmp_path):
    model_of().save_pretrained(tmp_path)
    expected = folder_fingerprint(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors, tmp_path / "mine.safetensors", {"format": "pt"})
    save_file({name: each + 1 for name, each in tensors.items()}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_weights": "mine.safetensors"}))
    assert folder_fingerprint(tmp_path) == expected


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "expected an index of safetensors files, got something else; get a complete copy"),
        ("[]", "expected an index of safetensors files"),
        ('{"weight_map": {"a": 3}}', "expected an index of safetensors files"),
        ('{"weight_map": {"a": "gone.safetensors"}}', r"gone\.safetensors: expected a safetensors file"),
    ],
)
def test_a_damaged_index_is_named(tmp_path, index, message):
    model_of().save_pretrained(tmp_path)
    as_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(TopThetaValueError, match=message):
        folder_fingerprint(tmp_path)


def test_numbers_beside_a_weight_count(tmp_path):
    """As those of bitsandbytes and of compressed-tensors, which have no rows."""
    model_of().save_pretrained(tmp_path)
    plain = folder_fingerprint(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    found = []
    for number in (1, 2):
        name = "model.layers.1.self_attn.q_proj.weight_format"
        save_file({**tensors, name: torch.tensor(number)}, tmp_path / "model.safetensors")
        found.append(folder_fingerprint(tmp_path))
    assert len({plain, *found}) == 3


FOLDERS = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "the folder of a model, got no config.json"),
    "no folder": (shutil.rmtree, "expected the folder of a model, got no such folder"),
    "config": (lambda folder: (folder / "config.json").write_text("{"), "expected a transformers configuration"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "expected weights in .*, got none; save"),
    "weights": (lambda folder: (folder / "model.safetensors").write_bytes(b"{"), "expected a safetensors file"),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_folders_that_are_not_a_model(tmp_path, what):
    spoil, message = FOLDERS[what]
    model_of().save_pretrained(tmp_path / "model")
    spoil(tmp_path / "model")
    with pytest.raises(TopThetaValueError, match=message):
        folder_fingerprint(tmp_path / "model")


def test_models_differ():
    other = new_model(rope_parameters={"rope_type": "default", "rope_theta": 5.0})
    assert differences(model_fingerprint(model_of()), model_fingerprint(other)) == ["rotary parameters"]
    assert "geometry" in differences(model_fingerprint(model_of()), model_fingerprint(new_model(layers=3)))
    with (
        pytest.raises(TopThetaValueError, match="which differs in rotary parameters; calibrate this model"),
        sparsify(other, table_of(), k=K),
    ):
        pass


def test_weights_without_attention_in_every_layer_are_named(tmp_path):
    model_of().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: each for name, each in tensors.items() if "layers.1.self" not in name}, tmp_path / "model.safetensors"
    )
    with pytest.raises(TopThetaNotImplementedError, match="attention weights in each of the 2 layers of one decoder"):
        folder_fingerprint(tmp_path)
    with pytest.raises(TopThetaTypeError, match="path: expected a str"):
        folder_fingerprint(None)


def test_only_the_sampled_rows_are_read():
    asked = []

    def rows(indices):
        asked.append(len(indices))
        return torch.zeros(len(indices), 8)

    weight = Weight((4096, 4096), rows)
    weight_digests({f"layers.{layer}.self_attn.{name}_proj.weight": weight for layer in range(2) for name in "qk"}, 2)
    assert asked == [64] * 4
