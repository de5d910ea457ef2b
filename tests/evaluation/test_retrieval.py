"""Retrieval prompts keep what they promise, and the score is the likelihood of each choice."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from tests.tiers import full
from toptheta_npu.assets import TINY_LLAMA, load_tiny_llama
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.tasks import retrieval_prompts
from toptheta_npu.evaluation.tasks.prefix import run_prefix, score_all
from toptheta_npu.evaluation.tasks.retrieval import RetrievalTask
from toptheta_npu.evaluation.tasks.retrieval_prompts import (
    RetrievalPrompt,
    choice_tokens,
    make_prompt,
    prompts_of,
)

KINDS = ["key_value", "needle"]
LENGTHS = [192, 513, 1024]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TINY_LLAMA)


def prompts(tokenizer: PreTrainedTokenizerBase, kind: Any, length: int, count: int) -> list[RetrievalPrompt]:
    """Prompts of one length, their depths spread from 0 to 1."""
    return list(prompts_of(tokenizer, kind, (length,), torch.linspace(0, 1, count).tolist(), (0,)))


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, verbose=False)["input_ids"]


@pytest.mark.parametrize("draw", [retrieval_prompts.draw_name, retrieval_prompts.draw_value])
@given(seed=st.integers(0, 2**32), split=st.sampled_from(["train", "calibration", "evaluation"]))
def test_names_and_values_belong_to_one_split(
    draw: Callable[[random.Random, corpus.Split], str], seed: int, split: corpus.Split
) -> None:
    assert corpus.split_of_name(draw(random.Random(seed), split)) == split


def test_facts_are_the_same_on_every_machine() -> None:
    facts = retrieval_prompts.draw_facts(random.Random(0), "evaluation", 3)
    assert facts == {"kuveze": "87306", "sidira": "45525", "baseru": "21997"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_have_the_length_asked_for(tokenizer: PreTrainedTokenizerBase, kind: str, length: int) -> None:
    for prompt in prompts(tokenizer, kind, length, 9):
        assert len(prompt.tokens) == length
        assert encode(tokenizer, prompt.text) == list(prompt.tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_arguments_give_the_same_prompt(tokenizer: PreTrainedTokenizerBase, kind: Any) -> None:
    assert make_prompt(tokenizer, kind, 256, 0.3, 5) == make_prompt(tokenizer, kind, 256, 0.3, 5)
    splits: tuple[corpus.Split, ...] = ("train", "evaluation")
    texts = {make_prompt(tokenizer, kind, 256, 0.3, *each).text for each in itertools.product((5, 6), splits)}
    assert len(texts) == 4


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_needle_lies_at_its_depth(tokenizer: PreTrainedTokenizerBase, depth: float) -> None:
    prompt = make_prompt(tokenizer, "needle", 1024, depth, seed=7)
    question = prompt.text.splitlines()[-1].removeprefix("assert ").removesuffix(" ==")
    needle = f"{question} ={prompt.choices[prompt.answer]}\n"
    assert prompt.text.count(needle) == 1
    before = len(encode(tokenizer, prompt.text[: prompt.text.index(needle)]))
    assert before / 1024 == pytest.approx(depth, abs=0.06)
    for i, choice in enumerate(prompt.choices):
        assert (choice in prompt.text) == (i == prompt.answer)


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_table_answers_at_its_depth(tokenizer: PreTrainedTokenizerBase, depth: float) -> None:
    prompt = make_prompt(tokenizer, "key_value", 512, depth, seed=3)
    table = eval(prompt.text[prompt.text.index("table = {") + 8 : prompt.text.rindex("assert")])
    name = prompt.text.splitlines()[-1].split('"')[1]
    assert list(table).index(name) == round(depth * (len(table) - 1))
    assert prompt.choices[prompt.answer] == f" {table[name]}"
    assert {int(choice) for choice in prompt.choices} <= set(table.values())
    assert len(set(prompt.choices)) == retrieval_prompts.CHOICES
    assert {corpus.split_of_name(name) for name in table} == {"evaluation"}
    assert {corpus.split_of_name(str(value)) for value in table.values()} == {"evaluation"}


def test_a_table_fills_the_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = make_prompt(tokenizer, "key_value", 512)
    line = len(encode(tokenizer, retrieval_prompts.pair_line("lomeva", "48213")))
    lead = prompt.text[: prompt.text.index("table = {")]
    assert len(encode(tokenizer, lead)) < line + 16


def test_answers_stand_at_every_place(tokenizer: PreTrainedTokenizerBase) -> None:
    places = [prompt.answer for prompt in prompts(tokenizer, "needle", 64, 64)]
    assert set(places) == set(range(retrieval_prompts.CHOICES))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: make_prompt(t, "needle", 63), "length: expected at least 64 tokens"),
        (lambda t: make_prompt(t, "needle", 256, depth=1.5), "depth: expected 0 .* to 1"),
        (
            lambda t: make_prompt(t, "needle", 256, split="test"),
            "split: expected one of train, calibration, evaluation",
        ),
        (lambda t: make_prompt(t, "key_value", 64), "length: expected room for a table of 8 pairs"),
    ],
)
def test_bad_arguments_are_named(
    tokenizer: PreTrainedTokenizerBase, call: Callable[[PreTrainedTokenizerBase], object], message: str
) -> None:
    with pytest.raises(TopThetaValueError, match=message):
        call(tokenizer)


@pytest.fixture(scope="module")
def random_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, initializer_range=0.4,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def likelihoods(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompt: RetrievalPrompt) -> torch.Tensor:
    """Nats of each choice, each in a call of its own with the whole prompt."""
    found = []
    for choice in prompt.choices:
        tokens = torch.tensor(encode(tokenizer, prompt.text + choice))
        with torch.no_grad():
            each = model(tokens[None, :-1]).logits[0].log_softmax(-1).gather(1, tokens[1:, None])
        found.append(each[len(prompt.tokens) - 1 :].sum())
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_share_one_prefill_and_score_as_the_whole_text(
    tokenizer: PreTrainedTokenizerBase, random_model: LlamaForCausalLM, kind: str
) -> None:
    (prompt,) = prompts(tokenizer, kind, 192, 1)
    rows: list[torch.Size] = []
    hook = random_model.model.embed_tokens.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape))
    with torch.inference_mode():
        scores = score_all(random_model, run_prefix(random_model, prompt.tokens), choice_tokens(tokenizer, prompt))
    hook.remove()
    expected = likelihoods(random_model, tokenizer, prompt)
    torch.testing.assert_close(torch.tensor([each.log_likelihood for each in scores]), expected)
    assert rows[0] == (1, 192)
    lengths = [length for _, length in rows[1:]]
    assert max(lengths) < 8
    assert len(set(lengths)) == len(lengths), "choices of one length run as one batch"


@full
@pytest.mark.parametrize("kind", KINDS)
def test_the_embedded_model_retrieves(kind: retrieval_prompts.Kind) -> None:
    model, tokenizer = load_tiny_llama()
    task = RetrievalTask(model, tokenizer, kind, (512,), (0.0, 0.3, 0.7, 1.0), range(4))
    assert sum(task.measure(make_method("dense"), model).scores) >= 15  # guessing gives 2
