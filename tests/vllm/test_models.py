"""Models with sliding windows, of which vLLM gets a small one with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.serving.engines import (
    Answer,
    answer_of,
    best_of,
    greedy,
    layers_of,
    make_engine,
    totals,
    wrong_tokens,
)
from toptheta_npu.errors import TopThetaNotImplementedError
from toptheta_npu.models import calibrate, sparsify
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.vllm.engine import DENSE

K = 16
SIZES = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "initializer_range": 0.2,
    "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
SMALL = {"max_model_len": 256, "skip_tokenizer_init": True, "kv_cache_memory_bytes": 1 << 24}


@dataclass(frozen=True)
class Saved:
    """A model of transformers, its folder, and a table for it with its file."""

    model: Any
    folder: Path
    table: ThresholdTable
    path: Path


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Gemma 3 with a window of 24 tokens in every other layer."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    layers = ["sliding_attention", "full_attention"] * 2
    model = Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=24, layer_types=layers)).eval()
    folder = tmp_path_factory.mktemp("hybrid")
    model.save_pretrained(folder)
    texts = torch.randint(1, 300, (8, 200), generator=torch.Generator().manual_seed(1))
    table = calibrate(model, texts, k=K, layer_k=[0] * 4)
    table.save(folder / "model.theta")
    return Saved(model, folder, table, folder / "model.theta")


def test_layers_with_a_window_stay_dense_and_the_others_equal_sparsify(hybrid: Saved) -> None:
    draw = torch.Generator().manual_seed(2)
    asked = [torch.randint(1, 300, (length,), generator=draw).tolist() for length in (130, 60)]
    engine = make_engine({"table": str(hybrid.path), "k": K}, model=str(hybrid.folder), **SMALL)
    prompts = [{"prompt_token_ids": ids} for ids in asked]
    ours = [answer_of(output) for output in engine.generate(prompts, greedy(24), use_tqdm=False)]
    for answer, ids in zip(ours, asked, strict=True):
        assert not wrong_tokens(answer, generated(hybrid, ids, 24))
        assert wrong_tokens(answer, generated(hybrid, ids, 24, dense_below=200))  # else this would prove nothing
    counted = totals(engine)
    assert counted.rows == 2 * 2 * 23  # two layers by thresholds, two sequences
    assert 0 < counted.kept < 0.5 * counted.elements
    assert [layer.impl.rule is DENSE for layer in layers_of(engine)] == [True, False, True, False]


def generated(saved: Saved, ids: list[int], new_tokens: int, **settings: Any) -> Answer:
    """What `sparsify` and transformers' generate() answer."""
    with sparsify(saved.model, saved.table, k=K, **settings):
        out = saved.model.generate(
            torch.tensor([ids]), max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    return Answer(out.sequences[0, len(ids) :].tolist(), [best_of(logits[0]) for logits in out.logits])


def test_a_model_whose_layers_all_have_windows_stops_the_start(hybrid: Saved, tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    MistralForCausalLM(MistralConfig(**SIZES, sliding_window=24)).save_pretrained(tmp_path)
    settings = {"table": str(hybrid.path), "k": K, "check_weights": False}
    with pytest.raises(TopThetaNotImplementedError, match=r"^layers: expected one that sees all tokens, got a sliding"):
        make_engine(settings, model=str(tmp_path), **SMALL)
