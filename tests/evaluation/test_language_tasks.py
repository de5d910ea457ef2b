"""Tasks of lm-eval: its own scores for a plain model, the method's rows for a sparse one, errors of one sentence."""

import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from tests.tiers import full
from toptheta_npu import cli
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.tasks.harness import documents, lookup
from toptheta_npu.evaluation.tasks.harness.lookup import LOCAL_TASKS, find_task, load_task
from toptheta_npu.evaluation.tasks.harness.model import harness_model
from toptheta_npu.evaluation.tasks.harness.scores import scores_of
from toptheta_npu.evaluation.tasks.language import PAPER_GENERATION, PAPER_SHOTS, LmEvalTask
from toptheta_npu.models import sparsify

pytest.importorskip("lm_eval")

SMALL = {"lengths": [192], "depths": [0.0, 1.0], "seeds": 1}


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
def sparse() -> Method:
    return make_method("top-theta", 64, load_tiny_llama_thresholds("post_softmax"))


@pytest.fixture(scope="module")
def all_pass() -> Method:
    """Top-θ with thresholds that everything passes."""
    table = load_tiny_llama_thresholds("post_softmax")
    table = dataclasses.replace(table, theta=torch.full_like(table.theta, -torch.inf))
    return make_method("top-theta", 64, table)


def stock(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)


def evaluate(model: Any, name: str, tokenizer: PreTrainedTokenizerBase, metadata: dict[str, Any]) -> Any:
    """lm-eval by itself, with its own model class."""
    import lm_eval

    task = load_task(find_task(name), tokenizer, metadata)
    return lm_eval.evaluate(stock(model, tokenizer), {"tasks": {name: task}}, bootstrap_iters=0)


@pytest.mark.parametrize("name", ["toptheta_key_value", "toptheta_needle"])
def test_thresholds_that_all_pass_give_the_plain_models_scores(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, all_pass: Method, name: str
) -> None:
    expected = evaluate(model, name, tokenizer, SMALL)
    documents = expected["samples"][name]
    task = LmEvalTask(name, tokenizer, metadata=SMALL)
    measurement = task.measure(all_pass, model)
    assert measurement.metric == "acc"
    assert task.samples == len(measurement.scores) == 2
    assert list(measurement.scores) == [document["acc"] for document in documents]
    assert measurement.details["metrics"] == {"acc,none": expected["results"][name]["acc,none"]}
    for document, margin in zip(documents, measurement.details["margin"], strict=True):
        likelihoods = [likelihood for likelihood, _ in document["filtered_resps"]]
        right = likelihoods.pop(document["target"])
        assert margin == pytest.approx(right - max(likelihoods), abs=1e-4)
    assert measurement.reads.kept_mean == measurement.reads.keys_mean


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, 0, ("task", index, 1)) for index, each in enumerate(arguments)]  # type: ignore[arg-type]


def test_single_requests_are_answered_as_lm_eval_does(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, all_pass: Method
) -> None:
    """Also contexts that end in blanks, are empty or longer than the model's, and answers of one token or several."""
    long = "import os\n" * 100
    scored = requests(
        "loglikelihood", ("for i in range", "("), ("for i in range", "(len(self.items)):"), ("import ", "os"),
        ("", "import os"), ("class A:\n    def ", "__init__(self)"), (long, "import os"), ("for i in range", "(10):"),
    )  # fmt: skip
    rolled = requests("loglikelihood_rolling", ("import os\nimport sys\n",), (long,))
    answered: list[int] = []
    ours = harness_model(model, tokenizer, answered.append)
    theirs = stock(model, tokenizer)
    ours._max_length = theirs._max_length = 128
    with all_pass.enter(model):
        found = ours.loglikelihood(scored)
        found_rolling = ours.loglikelihood_rolling(rolled)
    expected = theirs.loglikelihood(scored, disable_tqdm=True)
    for (likelihood, greedy), (other, other_greedy) in zip(found, expected, strict=True):
        assert likelihood == pytest.approx(other, abs=1e-4)
        assert greedy == other_greedy
    assert found_rolling == pytest.approx(theirs.loglikelihood_rolling(rolled, disable_tqdm=True), rel=1e-5)
    assert ours.truncated == 1
    assert sum(answered) == len(scored) + len(rolled)


@pytest.mark.parametrize(("context", "answer"), [("impor", "t"), ("import os", ""), (" ", "import os")])
def test_what_has_no_token_of_its_own_is_refused(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, context: str, answer: str
) -> None:
    """Of the first, the context's last token would take every letter."""
    with pytest.raises(TopThetaValueError, match="task: expected prompts and answers that have tokens of their own"):
        harness_model(model, tokenizer).loglikelihood(requests("loglikelihood", (context, answer)))


def test_every_call_has_a_batch_of_one_and_a_context_runs_once(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    calls: list[torch.Size] = []
    hook = model.model.embed_tokens.register_forward_pre_hook(lambda _, given: calls.append(given[0].shape))
    for name in ("toptheta_needle", "toptheta_key_value_generate"):
        LmEvalTask(name, tokenizer, metadata=SMALL).measure(make_method("dense"), model)
    hook.remove()
    assert {batch for batch, _ in calls} == {1}
    assert [length for _, length in calls if length > 20] == [192] * 4


def test_generation_has_dense_prompts_and_sparse_steps(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, sparse: Method
) -> None:
    task = LmEvalTask("toptheta_key_value_generate", tokenizer, metadata=SMALL)
    assert task.prefill == "dense"
    measurement = task.measure(sparse, model)
    assert measurement.metric == "exact_match"
    assert measurement.details["prefill"] == "dense"
    # sparsify by itself writes the same
    keys: list[int] = []
    right = []
    with sparsify(model, load_tiny_llama_thresholds("post_softmax"), k=64):
        for document in task._task.eval_docs:
            tokens = torch.tensor([tokenizer(document["text"])["input_ids"]])
            written = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False)
            new = written[0, 192:].tolist()
            ends = [end for end in range(1, 9) if "\n" in tokenizer.decode(new[:end])]
            keys += range(193, 192 + (ends[0] if ends else 8))  # the first token comes from the prompt
            right.append(float(tokenizer.decode(new).strip()[:5] == document["value"]))
    assert list(measurement.scores) == right
    assert measurement.reads.keys_mean == pytest.approx(sum(keys) / len(keys))
    assert measurement.reads.kept_mean < 0.7 * 192


@pytest.mark.parametrize("which", ["dense", "top_k", "last_k"])
def test_any_method_can_be_entered_for_its_decode_steps_alone(model: LlamaForCausalLM, which: str) -> None:
    method = {
        "dense": make_method("dense"),
        "top_k": make_method("top-k", 8, targets=[8] * 6),
        "last_k": make_method("last-k", 8, targets=[8] * 6),
    }[which]
    prompt = torch.arange(40)[None]
    with torch.no_grad():
        plain = model(prompt).logits
        with method.enter(model) as recording:
            inside = model(prompt).logits
        with method.enter_decoding(model) as recording:
            torch.testing.assert_close(model(prompt).logits, plain)
            recording.clear()
            model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=3, min_new_tokens=3)
            assert [summary.rows for summary in recording.summaries()] == [2] * 6
    assert torch.allclose(inside, plain, atol=1e-4) == (which == "dense")


def test_a_generation_without_a_decode_step_is_refused(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    (tmp_path / "short.yaml").write_text(
        f"include: {LOCAL_TASKS / 'toptheta_key_value_generate.yaml'}\n"
        "task: short\ngeneration_kwargs: {do_sample: false, max_gen_toks: 1, until: []}\n"
    )
    task = LmEvalTask("short", tokenizer, include_path=[tmp_path], metadata=SMALL)
    with pytest.raises(TopThetaValueError, match="task: expected decode steps, which attend by the method, got none"):
        task.measure(make_method("dense"), model)


MULTIPLE_CHOICE = (
    "output_type: multiple_choice\ntarget_delimiter: ''\ndoc_to_text: text\ndoc_to_choice: choices\n"
    "doc_to_target: answer\n"
)
GENERATE = "output_type: generate_until\ndoc_to_text: text\ndoc_to_target: '{{answer}}'\n"


def task_of(folder: Path, tokenizer: PreTrainedTokenizerBase, body: str, *rows: dict[str, Any]) -> LmEvalTask:
    """A task of these documents, which have 0 for an answer unless they say otherwise."""
    documents = [{"answer": 0, **row} for row in rows]
    code = f"import datasets\ndef data(**_):\n    return {{'test': datasets.Dataset.from_list({documents!r})}}\n"
    (folder / "made.py").write_text(code)
    (folder / "made.yaml").write_text(f"task: made\ncustom_dataset: !function made.data\ntest_split: test\n{body}")
    return LmEvalTask("made", tokenizer, include_path=[folder])


@pytest.mark.parametrize(
    ("body", "documents", "message"),
    [
        (
            MULTIPLE_CHOICE, [{"text": "import", "choices": []}],
            r"task: expected a task made that can be loaded, got \w+: .*; install what it needs, see .*made.yaml",
        ),
        (
            GENERATE, [{"text": "import"}, {"text": None}],
            r"task: expected a prompt and answers in every document of made, got \w+: .*; mend such",
        ),
    ],
)  # fmt: skip
def test_what_lm_eval_makes_nothing_of_is_one_sentence(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, body: str, documents: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(TopThetaValueError, match=message):
        task_of(tmp_path, tokenizer, body, *documents)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "max_gen_toks: 32768",
            "expected answers of 1 to 4095 tokens, .* got max_gen_toks of 32768; include the task in a",
        ),
        ("max_gen_toks: 0", "got max_gen_toks of 0"),
        (
            "max_length: 5000",
            "expected more than 1 tokens, those of the prompt, and at most 4096, .* max_length of 5000",
        ),
    ],
)
def test_a_generation_that_the_context_has_no_room_for_is_refused(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, setting: str, message: str
) -> None:
    body = GENERATE + f"generation_kwargs: {{do_sample: false, until: [], {setting}}}\n"
    task = task_of(tmp_path, tokenizer, body, {"text": "import"})
    with pytest.raises(TopThetaValueError, match=message):
        task.check_room(4096)
    with pytest.raises(TopThetaValueError, match=message):
        task.measure(make_method("dense"), model)


@pytest.mark.parametrize(
    ("setting", "most"), [("max_gen_toks: 8", 9), ("max_new_tokens: 8", 9), ("max_length: 8", 8), ("until: []", 257)]
)
def test_the_longest_request_has_the_answer_that_the_settings_allow(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, setting: str, most: int
) -> None:
    body = GENERATE + f"generation_kwargs: {{do_sample: false, {setting}}}\n"
    assert task_of(tmp_path, tokenizer, body, {"text": "import"}).longest == most


def test_limit_progress_and_the_callers_random_state(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    import numpy as np

    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]
    task = LmEvalTask("toptheta_needle", tokenizer, limit=3, metadata={**SMALL, "seeds": 5})
    seen: list[int] = []
    measurement = task.measure(make_method("dense"), model, seen.append)
    assert task.name == "toptheta_needle"
    assert task.samples == len(measurement.scores) == 3
    assert seen == [1, 2, 3]
    assert states == [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]
    assert task.measure(make_method("dense"), model) == measurement


def test_the_documents_need_a_tokenizer() -> None:
    with pytest.raises(TopThetaValueError, match="metadata: expected the tokenizer's name or path, got none"):
        documents.needle(lengths=[192], depths=[0.5], seeds=1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("toptheta_needle", {"limit": 0}, "limit: expected at least 1, or None for all documents, got 0"),
        ("toptheta_needle", {"num_fewshot": 2}, "num_fewshot: expected 0, as toptheta_needle has it, got 2"),
        (
            "toptheta_neddle",
            {},
            "task: expected a task of lm-eval, got 'toptheta_neddle'; did you mean toptheta_needle",
        ),
        ("mine", {}, r"task: expected one task, got 'mine', which stands for several; name one of them, such as a, b"),
        ("code", {}, r"confirm_run_unsafe_code: expected True for code, which runs the code .* got False"),
        ("no_data", {}, r"expected a task no_data that can be loaded \(nothing/here\), got \w+: .*; install what it"),
        ("no_module", {}, r"expected a task no_module that can be loaded, got ModuleNotFoundError: No module named"),
    ],
)
def test_errors_are_one_sentence(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str,
    options: dict[str, Any], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(lookup, "_tasks_of_lm_eval", dict)
    common = "output_type: generate_until\ntest_split: test\ndoc_to_text: text\ndoc_to_target: text\n"
    files = {
        "a": f"task: a\ntag: tagged\n{common}",
        "mine": "group: mine\ntask: [a, b]\n",
        "code": f"task: code\nunsafe_code: true\n{common}",
        "no_data": f"task: no_data\ndataset_path: nothing/here\ncustom_dataset: !function gone.data\n{common}",
        "no_module": f"task: no_module\ncustom_dataset: !function needs.data\n{common}",
    }
    for file, text in files.items():
        (tmp_path / f"{file}.yaml").write_text(text)
    (tmp_path / "gone.py").write_text("def data(**_):\n    raise ConnectionError('no way there\\nand more')\n")
    (tmp_path / "needs.py").write_text("import gone\n")
    with pytest.raises(TopThetaValueError, match=message) as caught:
        LmEvalTask(name, tokenizer, include_path=[tmp_path], **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"acc": 1.0, "acc_norm": 0.0, "f1": (0, 1)}, ("acc_norm", True, 0.0)),
        ({"exact_match": 1.0}, ("exact_match", True, 1.0)),
        ({"rouge_score": 0.25, "score": 0.5}, ("rouge_score", True, 0.25)),
        ({"loss": 0.5}, ("loss", False, 0.5)),
        ({"4096": -1.0, "512": 0.75}, ("string match", True, 0.75)),
        ({"word_perplexity": (-6.0, 3), "bits_per_byte": (-6.0, 12)}, ("nats per word", False, 2.0)),
        ({"bits_per_byte": (-6.0, 12)}, ("nats per byte", False, 0.5)),
        ({"perplexity": -6.0}, ("nats per answer", False, 6.0)),
    ],
)
def test_the_metric_that_tells_most(metrics: dict[str, Any], expected: tuple[str, bool, float]) -> None:
    better = dict.fromkeys(metrics, True) | {"loss": False}
    documents = [
        {"doc_id": 1, "filter": "strict", "metrics": list(metrics), **dict.fromkeys(metrics, 0.0)},
        {"doc_id": 0, "filter": "strict", "metrics": list(metrics), **metrics},
        {"doc_id": 0, "filter": "flexible", "metrics": list(metrics), **dict.fromkeys(metrics, 7.0)},
    ]
    if "bits_per_byte" in metrics:
        documents[0] |= dict.fromkeys(metrics, (0.0, 1))
    name, higher_is_better, scores = scores_of(documents, better)
    assert (name, higher_is_better) == expected[:2]
    assert scores == [expected[2], 0.0]


def test_a_metric_without_a_number_for_each_document_is_refused() -> None:
    with pytest.raises(
        TopThetaValueError, match="task: expected a metric that is a number for each document, got f1, b"
    ):
        scores_of([{"doc_id": 0, "filter": "none", "metrics": ["f1", "bleu"], "f1": (0, 1), "bleu": ("a", "b")}], {})


def test_lm_eval_has_the_tasks_that_are_named() -> None:
    import lm_eval.tasks

    folder = Path(lm_eval.tasks.__file__).parent
    folders = [folder / name for name in ("arc", "hellaswag", "medmcqa", "humaneval", "longbench")]
    known = lm_eval.tasks.TaskManager(include_path=folders, include_defaults=False).task_index
    assert {*PAPER_SHOTS, *PAPER_GENERATION} <= set(known)
    assert known["humaneval"].cfg["unsafe_code"]


class WithoutLmEval:
    """An import system that does not find lm-eval."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "lm_eval":
            raise ModuleNotFoundError("No module named 'lm_eval'", name=name)


def test_without_lm_eval_a_command_says_what_to_install(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutLmEval(), *sys.meta_path])
    app = typer.Typer()
    app.command()(lambda: LmEvalTask("toptheta_needle", tokenizer))
    monkeypatch.setattr(sys, "argv", ["toptheta"])
    with pytest.raises(SystemExit) as exited:
        cli.main(app)
    assert exited.value.code == 2
    assert "error: lm_eval is missing; in a clone: pip install '.[eval]'" in capsys.readouterr().err


ALONE = """
import sys
from toptheta_npu.evaluation.tasks.language import LmEvalTask
assert "lm_eval" not in sys.modules
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.evaluation.methods.kinds import make_method
import transformers
transformers.utils.logging.disable_progress_bar()
model, tokenizer = load_tiny_llama()
LmEvalTask("toptheta_needle", tokenizer, limit=1, metadata={"lengths": [128]}).measure(make_method("dense"), model)
"""


@full
def test_a_run_is_quiet_and_leaves_no_files(tmp_path: Path) -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment = {
        **os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache), "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    command = [sys.executable, "-c", ALONE]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not list(tmp_path.rglob("*"))
