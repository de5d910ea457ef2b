"""GGUF files become folders of the same model with the right tokenizer, or an error that says why not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaValueError

gguf = pytest.importorskip("gguf")

from tests.models.tiny_gguf import (  # noqa: E402
    CHAT_TEMPLATE,
    CONTEXT,
    Q8_0,
    SPECIAL,
    Vocabulary,
    byte_level,
    make_model,
    new_gguf,
    sentencepiece,
    write_gguf,
)
from toptheta_npu.models import convert_gguf, folder_fingerprint, model_fingerprint  # noqa: E402

VOCABULARY = byte_level()
FILES = {
    "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
    "tokenizer_config.json",
}  # fmt: skip


def converted_tokenizer(folder: Path, vocabulary: Vocabulary, **options: Any) -> Any:
    convert_gguf(new_gguf(folder, vocabulary, **options), folder / "out")
    return AutoTokenizer.from_pretrained(folder / "out")


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_holds_the_same_model(tmp_path: Path, tied: bool) -> None:
    model = make_model(len(VOCABULARY.tokens), tied=tied)
    file = write_gguf(tmp_path / "model.gguf", model, VOCABULARY)
    convert_gguf(file, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf", "out"}
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(found) is type(model)
    assert found.dtype == torch.float32
    expected = model.state_dict()
    assert expected.keys() == found.state_dict().keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in found.state_dict().items())
    ids = torch.randint(0, len(VOCABULARY.tokens), (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(found(ids).logits, model(ids).logits)
    assert folder_fingerprint(tmp_path / "out") == model_fingerprint(model)
    for name, value in found.config.to_dict().items():
        if name not in ("architectures", "dtype", "head_dim", "_name_or_path", "initializer_range", "unk_token_id"):
            assert value == pytest.approx(model.config.to_dict()[name]), name


GEMMA = {"gemma3.attention.sliding_window": 16, "gemma3.attention.key_length": 16}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
LINEAR = {**GEMMA_ROPE, "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}}
SWA = {**GEMMA_ROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}
_GEMMA_OPTIONS = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 16, "query_pre_attn_scalar": 16}
SCALING = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}


@pytest.mark.parametrize(
    ("architecture", "name", "options", "settings"),
    [
        ("qwen2", "Qwen2ForCausalLM", {}, {}),
        ("qwen3", "Qwen3ForCausalLM", {}, {"qwen3.attention.key_length": 16, "qwen3.attention.value_length": 16}),
        ("gemma3", "Gemma3ForCausalLM", {"rope_parameters": GEMMA_ROPE, **_GEMMA_OPTIONS}, GEMMA),
        ("gemma3", "Gemma3ForCausalLM", {"rope_parameters": LINEAR, **_GEMMA_OPTIONS}, {**GEMMA, **SCALING}),
        ("gemma3", "Gemma3ForCausalLM", {"rope_parameters": SWA, **_GEMMA_OPTIONS},
         {**GEMMA, "gemma3.rope.freq_base_swa": 300.0, "gemma3.attention.sliding_window_pattern": 6}),
    ],
)  # fmt: skip
def test_other_architectures_have_the_same_weights_and_answers(
    tmp_path: Path, architecture: str, name: str, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    model = make_model(len(VOCABULARY.tokens), name=name, **options)
    file = write_gguf(tmp_path / "model.gguf", model, VOCABULARY, architecture=architecture, settings=settings)
    convert_gguf(file, tmp_path / "out")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(found) is type(model)
    assert found.config.rope_parameters == model.config.rope_parameters
    for part, weight in model.named_parameters():
        torch.testing.assert_close(found.get_parameter(part), weight, rtol=0, atol=2e-7, msg=part)
    ids = torch.randint(0, len(VOCABULARY.tokens), (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_quantised_weights_are_multiplied_out_and_rounded_to_the_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    model = make_model(len(VOCABULARY.tokens))
    convert_gguf(write_gguf(tmp_path / "q.gguf", model, VOCABULARY, stored=Q8_0), tmp_path / "out", dtype=dtype)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert found.dtype == dtype
    for name, weight in model.named_parameters():
        stored = weight.detach()
        if stored.ndim == 2:
            stored = torch.from_numpy(gguf.dequantize(gguf.quantize(stored.numpy(), Q8_0), Q8_0))
            assert not torch.equal(stored, weight)
        assert torch.equal(found.get_parameter(name), stored.to(dtype)), name


def test_weights_that_a_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = make_model(len(VOCABULARY.tokens))
    with torch.no_grad():
        model.model.norm.weight[3] = 1e5
    file = write_gguf(tmp_path / "model.gguf", model, VOCABULARY)
    with pytest.raises(TopThetaValueError, match=r"dtype: .* got model.norm.weight with .* torch.float16 may be too"):
        convert_gguf(file, tmp_path / "out", dtype=torch.float16)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_digits_stand_alone_in_smollm(tmp_path: Path) -> None:
    tokenizer = converted_tokenizer(tmp_path, VOCABULARY)
    blank, one, two, blanks, the = (VOCABULARY.id(token) for token in ("Ġ", "1", "2", "ĠĠ", "Ġthe"))
    assert tokenizer.encode(" 12") == [blank, one, two]
    assert tokenizer.encode("  1 the") == [blanks, one, the]
    assert tokenizer.encode("12") == [one, two]
    assert tokenizer.decode(tokenizer.encode("  12 the Ω\n")) == "  12 the Ω\n"
    assert tokenizer.encode("<|im_start|>the<|im_end|>")[::3] == [1, 2]
    assert tokenizer.model_max_length == CONTEXT


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", " 12", ["Ġ1", "2"]),
        ("starcoder", " 12", ["Ġ", "1", "2"]),
        ("refact", " 12", ["Ġ", "1", "2"]),
        ("command-r", " 12", ["Ġ", "1", "2"]),
        # digits one by one, without what goes before them
        ("qwen2", " 12", ["Ġ", "1", "2"]),
        # three digits together, after its first token
        ("llama-bpe", " 1212", [SPECIAL[1], "Ġ", "12", "1", "2"]),
        ("llama3", "1212", [SPECIAL[1], "12", "1", "2"]),
        ("llama-v3", "1212", [SPECIAL[1], "12", "1", "2"]),
        # no merges lead to "Ġxyz", which LLaMA 3 takes from its vocabulary all the same, and others do not
        ("llama-bpe", "a xyz", [SPECIAL[1], "a", "Ġxyz"]),
        ("qwen2", "a xyz", ["a", "Ġ", "x", "y", "z"]),
        ("smollm", "a xyz", ["a", "Ġ", "x", "y", "z"]),
    ],
)
def test_byte_level_vocabularies_split_as_they_should(tmp_path: Path, pre: str, text: str, expected: list[str]) -> None:
    vocabulary = byte_level(pre, more=["Ġxyz"])
    assert converted_tokenizer(tmp_path, vocabulary).encode(text) == [vocabulary.id(token) for token in expected]


def test_sentencepiece_vocabularies_put_a_blank_before_every_text(tmp_path: Path) -> None:
    vocabulary = sentencepiece()
    tokenizer = converted_tokenizer(tmp_path, vocabulary)
    bos, blanks, a = 1, vocabulary.id("▁▁"), vocabulary.id("a")
    assert tokenizer.encode("a") == [bos, vocabulary.id("▁a")]
    assert tokenizer.encode(" a") == [bos, blanks, a]
    assert tokenizer.encode(" ") == [bos, blanks]
    assert tokenizer.encode("é", add_special_tokens=False) == [
        vocabulary.id("▁"),
        *map(vocabulary.id, ("<0xC3>", "<0xA9>")),
    ]
    assert tokenizer.decode(tokenizer.encode("a b", add_special_tokens=False)) == "a b"


@pytest.mark.parametrize("vocabulary", [byte_level(), sentencepiece()])
def test_first_and_last_tokens_are_those_that_the_file_asks_for(tmp_path: Path, vocabulary: Vocabulary) -> None:
    settings = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    tokenizer = converted_tokenizer(tmp_path, vocabulary, settings=settings)
    first, *_, last = tokenizer.encode("ab")
    assert first != 1
    assert last == 2


def test_chats_have_their_template_and_answers_end_where_turns_end(tmp_path: Path) -> None:
    tokenizer = converted_tokenizer(tmp_path, VOCABULARY, settings={"tokenizer.ggml.eot_token_id": 0})
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False) == "<|im_start|>a<|im_end|>"
    )
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == [2, 0]


UNFIT = TopThetaNotImplementedError
BROKEN = TopThetaValueError


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"architecture": "phi3"}, UNFIT, "architecture llama, gemma3, qwen2, qwen3, got 'phi3'"),
        ({"architecture": "qwen2"}, BROKEN, "got 6 of 26 missing, such as blk.0.attn_q.bias; use the"),
        ({"extra": {"blk.0.attn_q.bias": np.ones(64)}}, UNFIT, "got blk.0.attn_q.bias"),
        ({"vocabulary": byte_level(more=["!"])}, UNFIT, "a tokenizer of 266 tokens, got one of 265"),
        ({"vocabulary": byte_level("tekken")}, UNFIT, "a pre-tokenizer of gpt-2, smollm, .* got 'tekken'"),
        ({"vocabulary": Vocabulary("t5", None, VOCABULARY.tokens)}, UNFIT, "a tokenizer 'gpt2' or 'llama', got 't5'"),
        ({"without": ["llama.attention.head_count_kv"]}, BROKEN, "got one without llama.attention.head_count_kv"),
        ({"settings": {"llama.rope.scaling.type": "yarn"}}, UNFIT, "got llama.rope.scaling.type = yarn"),
        ({"settings": {"llama.expert_count": 8}}, UNFIT, "got llama.expert_count = 8"),
        ({"settings": {"llama.attention.head_count_kv": [2, 1]}}, UNFIT, r"llama.attention.head_count_kv = \[2, 1\]"),
        ({"settings": {"llama.rope.dimension_count": 8}}, UNFIT, "got heads of 16 with 8, 16 rotary or value elements"),
        ({"extra": {"rope_freqs.weight": np.ones(8)}}, UNFIT, "got scaled rotary frequencies"),
        ({"settings": {"split.count": 2, "split.no": 1}}, BROKEN, "a whole model, got part 2 of 2; join its parts: ll"),
        ({"settings": {"llama.feed_forward_length": 32}}, BROKEN, "ffn_gate.weight of 32 x 64, .* got 96 x 64; use"),
        ({"settings": {"llama.rope.scaling.factor": 2.0}}, UNFIT, "got llama.rope.scaling.factor = 2.0"),
    ],
)  # fmt: skip
def test_what_would_be_lost_or_taken_wrongly_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    file = new_gguf(tmp_path, **options)
    with pytest.raises(error, match=f"^{re.escape(str(file))}: expected .*{message}"):
        convert_gguf(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "model.gguf", make_model(len(VOCABULARY.tokens)), None)
    with pytest.raises(BROKEN, match=r"with a tokenizer, got one without tokenizer.ggml.model, tokenizer.ggml.tokens"):
        convert_gguf(file, tmp_path / "out")


@pytest.mark.parametrize(
    "settings",
    [
        {"llama.expert_count": 0, "llama.rope.scaling.type": "none", "llama.attention.key_length": 16},
        {"llama.tensor_data_layout": "Meta AI original pth", "llama.attention.causal": True},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0, "llama.rope.scaling.attn_factor": 1.0},
        {"llama.rope.scaling.factor": 1.0, "llama.rope.scaling.original_context_length": 64},
    ],
)
def test_settings_that_change_nothing_do_no_harm(tmp_path: Path, settings: dict[str, Any]) -> None:
    convert_gguf(new_gguf(tmp_path, settings=settings), tmp_path / "out")


def test_progress_is_told_of_every_tensor(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    convert_gguf(new_gguf(tmp_path), tmp_path / "out", progress=lambda *done: told.append(done))
    assert told == [(done, 20) for done in range(1, 21)]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_truncated_files_are_refused(tmp_path: Path, share: float) -> None:
    file = new_gguf(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(TopThetaValueError, match=r"a whole GGUF file, got .* ends early .*download it again"):
        convert_gguf(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_pretrained(self: Any, folder: Path, **_: object) -> None:
        assert (Path(folder) / "model.safetensors").stat().st_size > 0
        raise KeyboardInterrupt

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "save_pretrained", save_pretrained)
    file = new_gguf(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        convert_gguf(file, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf", "out"}
    assert not list((tmp_path / "out").iterdir())
