"""Steps of generate() with a model: what is read, what is timed, and what the table makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks import generation_of_a_model as benchmark
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.timing import end_to_end


def test_each_text_gives_one_prompt(tmp_path: Path) -> None:
    _, tokenizer = load_tiny_llama()
    texts = [tmp_path / name for name in ("a.txt", "b.txt")]
    for text in texts:
        text.write_text(f"This is the text of {text.stem}. " * 30)
    ids = benchmark.prompts_of(tokenizer, texts, 50)
    assert ids.shape == (2, 50)
    assert not torch.equal(ids[0], ids[1])
    with pytest.raises(TopThetaValueError, match=r"^--text: expected at least 5000 tokens in .*a\.txt"):
        benchmark.prompts_of(tokenizer, texts, 5000)


def test_bytes_and_v_rows_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "K", 32)
    model, _ = load_tiny_llama()
    longer = torch.randint(256, (2, 220), generator=torch.Generator().manual_seed(0))
    table, prompt = load_tiny_llama_thresholds("pre_softmax"), end_to_end.prompt_cache(model, longer)
    found = benchmark.measure(model, table, longer[:, :200], prompt, rounds=1, new_tokens=2)
    config = model.config
    rows = config.num_hidden_layers * config.num_key_value_heads * 2 * 200
    assert found["key_bytes"] == rows * config.head_dim * 4
    assert found["weight_bytes"] == sum(weight.numel() for weight in model.parameters()) * 4
    assert 32 / 200 < found["value_row_share"] < 1
    assert [rate["name"] for rate in found["rates"]] == ["dense", "dense, GrowingCache", "θ=-inf", "k=32"]


def test_the_bound_is_the_ratio_of_the_bytes_that_a_step_reads() -> None:
    seconds = {"dense": 0.4, "dense, GrowingCache": 0.3, "θ=-inf": 0.2, "k=128": 0.16}
    result = {
        "dtype": "float32", "batch": 1, "keys": 6000, "value_row_share": 0.2, "weight_bytes": 400, "key_bytes": 100,
        "rates": [{"name": name, "seconds_per_token": {"median": value}} for name, value in seconds.items()],
    }  # fmt: skip
    table = benchmark.as_table([result])
    # 400 + 100 + 100 bytes against 400 + 100 + 20
    assert table.rows[0][3:] == ["2.50", "1.33", "2.00", "1.25", "1.15", "108%", "0.200"]
