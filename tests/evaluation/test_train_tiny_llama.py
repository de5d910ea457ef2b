"""The training script of the embedded model: its windows, its schedule, and a run that is interrupted."""

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.tiers import full
from toptheta_npu.assets import TINY_LLAMA
from toptheta_npu.evaluation import corpus

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from tiny_llama import mixture, trainer  # noqa: E402

MIX = mixture.Mix(key_value=0.4, needle=0.4, answer_weight=3.0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(TINY_LLAMA)


@pytest.fixture(scope="module")
def library(tokenizer: PreTrainedTokenizerFast) -> Iterator[torch.Tensor]:
    """The tokens of a few modules: all of them take long to encode."""
    read = corpus.read_split
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "read_split", lambda split: read(split)[:4] if split == "train" else read(split))
        yield mixture.encode_library(tokenizer)


def windows(tokenizer: PreTrainedTokenizerFast, library: torch.Tensor, mix: mixture.Mix) -> list[tuple[str, str, str]]:
    """Text of each of 20 windows, and of its answers and of what counts nothing."""
    found = []
    for seed in range(20):
        tokens, weights = mixture.draw_window(tokenizer, library, random.Random(seed), mix, 400)
        assert tokens.shape == weights.shape == (400,)
        parts = (tokens, tokens[weights == mix.answer_weight], tokens[weights == 0])
        found.append(tuple(tokenizer.decode(part) for part in parts))
    return found


def test_answers_follow_from_the_text_before(tokenizer: PreTrainedTokenizerFast, library: torch.Tensor) -> None:
    asked = 0
    for text, answers, _ in windows(tokenizer, library, mixture.Mix(0.5, 0.5)):
        true = re.findall(r'assert (?:table\["|secret_)([a-z]{6})"?\]? == (\d+)\n', text)
        for name, value in true:
            stated = re.findall(rf'(?:"{name}":|secret_{name} =) (\d+)', text)
            assert set(stated) == {value}
            assert corpus.split_of_name(name) == corpus.split_of_name(value) == "train"
        assert answers.split()[: len(true)] == [value for _, value in true]
        asked += len(true)
    assert asked > 100


def test_library_text_counts_and_names_and_values_do_not(
    tokenizer: PreTrainedTokenizerFast, library: torch.Tensor
) -> None:
    for text, answers, ignored in windows(tokenizer, library, mixture.Mix()):
        assert text
        assert not answers + ignored
    for text, _, ignored in windows(tokenizer, library, mixture.Mix(needle=1.0)):
        assert re.findall(r"secret_\w+ = \d+\n", text) == re.findall(r"secret_\w+ = \d+\n", ignored)


def test_the_schedule_warms_up_and_decays() -> None:
    stage = trainer.Stage.of("100x512x8:0.5:0.1 100x2560x2", rate=0.5, decay=0.4, seed=0)
    assert stage.phase_at(99).mix == mixture.Mix(0.5, 0.1)
    assert stage.phase_at(100) == trainer.Phase(100, 2560, 2)
    factors = [stage.learning_rate_factor(step) for step in range(200)]
    assert factors[:49] == sorted(factors[:49])
    assert factors[49:120] == [0.5] * 71
    assert factors[-1] == pytest.approx(0.5 / 80)


def test_weights_select_what_the_loss_counts() -> None:
    logits, tokens = torch.randn(1, 5, 7), torch.tensor([[1, 2, 3, 4, 5]])
    likelihoods = logits[0].log_softmax(-1)
    weights = torch.tensor([[9.0, 0.0, 1.0, 3.0, 0.0]])
    expected = -(likelihoods[1, 3] + 3 * likelihoods[2, 4]) / 4
    torch.testing.assert_close(trainer.weighted_loss(logits, tokens, weights), expected)


def make_trainer(tokenizer: PreTrainedTokenizerFast, output: Path, phases: str = "6x64x2:0.4:0.4") -> trainer.Trainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    stage = trainer.Stage.of(phases, rate=0.5, decay=0.5, seed=1)
    return trainer.Trainer(LlamaForCausalLM(config), tokenizer, stage, output, "cpu")


@full
def test_an_interrupted_run_ends_like_a_whole_one(
    tokenizer: PreTrainedTokenizerFast, library: torch.Tensor, tmp_path: Path
) -> None:
    whole = make_trainer(tokenizer, tmp_path)
    losses = [loss for loss, _ in whole.train(evaluate_every=100)]
    assert len(losses) == 6
    first = make_trainer(tokenizer, tmp_path)
    for _ in range(3):
        first.train_step()
    first.save()
    second = make_trainer(tokenizer, tmp_path)
    second.restore()
    assert second.step == 3
    assert [loss for loss, _ in second.train(evaluate_every=100)] == losses[3:]
    for left, right in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(left, right)
