"""Retrieval prompts as a task: one dense text for all methods, the right rows, and a score per prompt."""

from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tests.evaluation.test_retrieval import likelihoods, prompts
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation import corpus
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.tasks import retrieval_prompts
from toptheta_npu.evaluation.tasks.prefix import run_prefix, score
from toptheta_npu.evaluation.tasks.retrieval import RetrievalTask

LENGTHS, DEPTHS, SEEDS = (192, 256), (0.0, 1.0), (0,)


@pytest.fixture(scope="module")
def loaded() -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    return load_tiny_llama()


@pytest.fixture(scope="module")
def model(loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerBase]) -> LlamaForCausalLM:
    return loaded[0]


@pytest.fixture(scope="module")
def tokenizer(loaded: tuple[LlamaForCausalLM, PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    return loaded[1]


@pytest.fixture(scope="module")
def task(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> RetrievalTask:
    return RetrievalTask(model, tokenizer, "key_value", LENGTHS, DEPTHS, SEEDS)


@pytest.fixture(scope="module")
def sparse() -> Method:
    return make_method("top-theta", 32, load_tiny_llama_thresholds("post_softmax"))


def test_a_prompt_per_length_depth_and_seed(task: RetrievalTask, model: LlamaForCausalLM) -> None:
    seen: list[int] = []
    measurement = task.measure(make_method("dense"), model, seen.append)
    assert task.name == "key_value"
    assert task.samples == len(measurement.scores) == 4
    assert seen == [1, 2, 3, 4]
    assert measurement.details["length"] == [192, 192, 256, 256]
    assert measurement.details["depth"] == [0.0, 1.0] * 2


def test_dense_scores_are_those_of_the_whole_prompt(
    task: RetrievalTask, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    measurement = task.measure(make_method("dense"), model)
    for prompt, right, margin in zip(task.prompts, measurement.scores, measurement.details["margin"], strict=True):
        found = likelihoods(model, tokenizer, prompt)
        others = torch.cat([found[: prompt.answer], found[prompt.answer + 1 :]])
        assert margin == pytest.approx(float(found[prompt.answer] - others.max()), abs=1e-4)
        assert right == float(found.argmax() == prompt.answer)
    assert measurement.metric == "accuracy"
    assert measurement.higher_is_better
    assert sum(measurement.scores) >= 3  # guessing gives one in two


def test_the_text_is_dense_and_the_question_is_not(
    task: RetrievalTask, model: LlamaForCausalLM, sparse: Method
) -> None:
    """Against the same prompts run by hand: the text outside of the method, the rest within."""
    measurement = task.measure(sparse, model)
    for prompt, choices, margin in zip(task.prompts, task._choices, measurement.details["margin"], strict=True):
        with torch.inference_mode():
            text = run_prefix(model, prompt.tokens[: prompt.query_start])
            with sparse.enter(model):
                asked = run_prefix(model, prompt.tokens[prompt.query_start :], text)
                likelihoods = [score(model, asked, choice).log_likelihood for choice in choices]
        right = likelihoods.pop(prompt.answer)
        assert margin == pytest.approx(right - max(likelihoods), abs=1e-5)
    assert measurement.details["margin"] != task.measure(make_method("dense"), model).details["margin"]
    # question and answers: some 15 rows of more keys than the text has; a prefill would have 192 and more
    assert measurement.reads.keys_mean > 192
    assert measurement.reads.kept_mean < 0.4 * measurement.reads.keys_mean


def test_texts_run_once_and_again_where_memory_ends(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, sparse: Method
) -> None:
    def task_of(prefix_bytes: int) -> RetrievalTask:
        return RetrievalTask(model, tokenizer, "needle", (192,), (0.0, 0.5, 1.0), (0,), prefix_bytes=prefix_bytes)

    whole = task_of(2**30)
    first = whole._prefixes.kept[0].num_bytes
    token = 2 * model.config.num_hidden_layers * model.config.num_key_value_heads * model.config.head_dim * 4
    assert first == token * whole.prompts[0].query_start
    tasks = (whole, task_of(first), task_of(0))
    assert [len(task._prefixes.kept) for task in tasks] == [3, 1, 0]
    kept, some, none = (task.measure(sparse, model) for task in tasks)
    assert kept == some == none


def test_the_prefix_is_not_written_to(task: RetrievalTask, model: LlamaForCausalLM, sparse: Method) -> None:
    before = task.measure(sparse, model)
    task.measure(make_method("top-k", 32, targets=[32] * 6), model)
    assert task.measure(sparse, model) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "passkey"}, "kind: expected one of key_value, needle"),
        ({"lengths": ()}, "lengths: expected at least one, got none"),
        ({"depths": ()}, "depths: expected at least one, got none"),
        ({"seeds": ()}, "seeds: expected at least one, got none"),
        ({"lengths": (32,)}, "length: expected at least 64 tokens"),
    ],
)
def test_bad_arguments_are_named(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, change: dict[str, object], message: str
) -> None:
    with pytest.raises(TopThetaValueError, match=message):
        RetrievalTask(model, tokenizer, **{"kind": "needle", **change})  # type: ignore[arg-type]


def test_a_model_of_two_layers_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    with pytest.raises(TopThetaValueError, match="model: expected more than 2 layers, got 2"):
        RetrievalTask(LlamaForCausalLM(config).eval(), tokenizer, "needle", (64,), (0.5,), (0,))


def byte_level(*, words: bool = True, bos: bool = False) -> PreTrainedTokenizerFast:
    """A fresh BPE over bytes; without ``words`` its tokens may span several."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts(), trainer)
    if bos:
        bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>")


def texts() -> Iterator[str]:
    for _, text in corpus.read_split("evaluation")[:20]:
        yield text[:5000]
    yield "assert secret_lomeva == 48213\n" * 50
    yield '    "lomeva": 48213,\nassert table["lomeva"] == 48213\n' * 50


@pytest.mark.parametrize("kind", ["key_value", "needle"])
@pytest.mark.parametrize("bos", [False, True])
def test_other_tokenizers_work(kind: retrieval_prompts.Kind, bos: bool) -> None:
    tokenizer = byte_level(bos=bos)
    (prompt,) = prompts(tokenizer, kind, 512, 1)
    assert len(prompt.tokens) == 512
    assert tokenizer(prompt.text)["input_ids"] == list(prompt.tokens)
    assert (prompt.tokens[0] == tokenizer.bos_token_id) == bos
    assert tokenizer.decode(prompt.tokens[prompt.query_start :]).startswith("assert ")
    for choice, tokens in zip(prompt.choices, retrieval_prompts.choice_tokens(tokenizer, prompt), strict=True):
        assert tokenizer(prompt.text + choice)["input_ids"] == [*prompt.tokens, *tokens]
        assert tokenizer.decode(tokens) == choice


def test_a_tokenizer_without_answers_of_its_own_is_refused() -> None:
    """Its tokens reach over blanks, so that "== 4" may be one."""
    tokenizer = byte_level(words=False)
    (prompt,) = prompts(tokenizer, "needle", 256, 1)
    with pytest.raises(TopThetaValueError, match=r"tokenizer: expected one that encodes 'assert .*' in the same way"):
        retrieval_prompts.choice_tokens(tokenizer, prompt)


def test_the_question_starts_with_the_token_that_holds_its_first_letter() -> None:
    tokenizer = byte_level(words=False)
    for prompt in prompts(tokenizer, "needle", 256, 8):
        question = prompt.text.splitlines()[-1]
        assert question in tokenizer.decode(prompt.tokens[prompt.query_start :])
        assert question not in tokenizer.decode(prompt.tokens[prompt.query_start + 1 :])
