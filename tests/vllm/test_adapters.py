"""Adapters (LoRA): refused where weights are checked, and otherwise run as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.serving.engines import answer_of, answers, dense_table, greedy, make_engine, prompts
from tests.vllm.test_answers import check
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.errors import TopThetaNotImplementedError

RANK = 8
LORA = {"enable_lora": True, "max_lora_rank": RANK, "max_loras": 1}


def test_adapters_stop_the_start_where_weights_are_checked() -> None:
    with pytest.raises(TopThetaNotImplementedError, match=r"^lora_config: expected none of it with Top-Theta"):
        make_engine({"k": 64}, **LORA)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes the queries, keys and values of all layers."""
    model, _ = load_tiny_llama()
    draw, weights = torch.Generator().manual_seed(0), {}
    for name, part in model.named_modules():
        if name.endswith(("q_proj", "k_proj", "v_proj")):
            outputs, inputs = part.weight.shape
            weights[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, inputs, generator=draw) / inputs**0.5
            weights[f"base_model.model.{name}.lora_B.weight"] = torch.randn(outputs, RANK, generator=draw) * 0.1
    folder = tmp_path_factory.mktemp("adapter")
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "k_proj", "v_proj"],
        "bias": "none", "base_model_name_or_path": "tiny",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def adapted(engine: Any, asked: list[list[int]], adapter: Path) -> list[Any]:
    from vllm.lora.request import LoRARequest

    outputs = engine.generate(
        [{"prompt_token_ids": ids} for ids in asked], greedy(16), use_tqdm=False,
        lora_request=LoRARequest("tiny", 1, str(adapter)),
    )  # fmt: skip
    return [answer_of(output) for output in outputs]


def test_an_adapter_that_the_user_allows_changes_answers_as_in_vllm(adapter: Path, tmp_path: Path) -> None:
    asked = prompts(300, 90, seed=14)
    stock = make_engine(**LORA)
    expected = adapted(stock, asked, adapter)
    assert [each.tokens for each in expected] != [each.tokens for each in answers(stock, asked, 16)]
    settings = {"table": str(dense_table(tmp_path)), "k": 64, "check_weights": False}
    check(adapted(make_engine(settings, **LORA), asked, adapter), expected)
