"""``toptheta evaluate`` by tau, over int8 caches, and what it says of gain and duration beforehand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.cli.command import toptheta
from tests.cli.folders import save_model
from tests.evaluation.small_model import random_windows, small_model
from toptheta_npu.cli.evaluate import estimate
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.results import Point, Results, read_results
from toptheta_npu.evaluation.tasks import perplexity as perplexity_task
from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask
from toptheta_npu.models.caches.int8 import Int8Layer

QUICK = ("--text", "book.txt", "--length", "128", "--windows", "2", "--positions", "24")

pytestmark = pytest.mark.usefixtures("quiet_and_one_thread")


def results() -> Results:
    return read_results("evaluation.jsonl")


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    ("arguments", "methods"),
    [
        (("--tau", "0.01", "--tau", "0.002"), ["dense", "tau:tau=0.01", "tau:tau=0.002"]),
        (("--tau", "0.01", "--method", "last-k", "--k", "8"), ["dense", "last-k", "tau:tau=0.01"]),
        (("--tau", "0.01", "--method", "tau:tau=0.01"), ["dense", "tau:tau=0.01"]),
        (("--tau", "0"), ["dense", "tau:tau=0.0"]),
    ],
)
def test_taus_are_methods(arguments: tuple[str, ...], methods: list[str], model: Path, folder: Path) -> None:
    assert toptheta("evaluate", str(model), *QUICK, *arguments) == 0
    canonical = ["tau" if method == "tau:tau=0.001" else method for method in methods]
    assert [point.method for point in results().measurements] == canonical


def test_it_says_what_a_threshold_can_gain_at_most(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toptheta("evaluate", str(model), *QUICK, "--tau", "0.01") == 0
    said = words(capsys.readouterr().out)
    found = re.search(r"At 128 tokens and batch 1, a threshold makes attention at most 2\.00x and the whole model at "
                      r"most (1\.\d\d)x faster\.", said)  # fmt: skip
    assert found
    assert toptheta("doctor", str(model), "--length", "128", "--batch", "1") == 0
    assert f"2.00x {found[1]}x" in words(capsys.readouterr().out)


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens were packed in int8, call by call."""
    seen: list[int] = []
    update = Int8Layer.update

    def watched(self: Int8Layer, key_states: torch.Tensor, *arguments: object, **options: object) -> object:
        seen.append(key_states.shape[2])
        return update(self, key_states, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Int8Layer, "update", watched)
    return seen


@pytest.mark.parametrize("positions", [24, 12])
def test_all_methods_but_dense_read_an_int8_cache(
    positions: int, model: Path, folder: Path, rounded: list[int]
) -> None:
    arguments = (*QUICK[:-1], str(positions), "--tau", "0.01")
    assert toptheta("evaluate", str(model), *arguments) == 0
    plain = results()
    assert not rounded
    assert toptheta("evaluate", str(model), *arguments, "--kv-cache", "int8", "-o", "int8.jsonl") == 0
    # two methods x two windows x three layers, of the prefix and of the positions after it
    assert rounded == [128 - positions - 1] * 3 + [positions] * 3 + (rounded[:6] * 3)
    found = read_results("int8.jsonl")
    assert [point.method for point in found.measurements] == ["dense", "tau:tau=0.0", "tau:tau=0.01"]
    assert found.header.settings["perplexity"]["kv_cache"] == "int8"
    dense, whole, by_tau = found.measurements.values()
    plain_dense, plain_tau = plain.measurements.values()
    assert dense.scores == plain_dense.scores
    for int8, full in ((whole, plain_dense), (by_tau, plain_tau)):
        differences = [abs(ours - theirs) for ours, theirs in zip(int8.scores, full.scores, strict=True)]
        assert 0 < max(differences) < 0.01


def test_answers_to_prompts_are_scored_over_an_int8_cache(model: Path, folder: Path, rounded: list[int]) -> None:
    prompts = ("--task", "needle", "--prompts", "1", "--prompt-length", "96", "--tau", "0.01")
    assert toptheta("evaluate", str(model), *prompts) == 0
    assert not rounded
    assert toptheta("evaluate", str(model), *prompts, "--kv-cache", "int8", "-o", "int8.jsonl") == 0
    assert rounded
    plain, int8 = (read_results(file).measurements.values() for file in ("evaluation.jsonl", "int8.jsonl"))
    (dense, by_tau), (int8_dense, _, int8_tau) = plain, int8
    assert int8_dense.details["margin"] == dense.details["margin"]
    pairs = list(zip(int8_tau.details["margin"], by_tau.details["margin"], strict=True))
    assert 0 < max(abs(ours - theirs) for ours, theirs in pairs) < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tau", "1.5"), "--tau: expected a probability"),
        (("--tau", "-0.1"), "--tau: expected a probability"),
        (("--tau", "nan"), "--tau: expected a number"),
        (("--kv-cache", "int4"), "--kv-cache: expected one of auto, int8, got 'int4'"),
        (("--kv-cache", "int8", "--task", "arc_easy"),
         "--kv-cache int8 needs tasks among perplexity, key-value, needle; leave out arc_easy"),
    ],
)  # fmt: skip
def test_wrong_options(
    arguments: tuple[str, ...], message: str, model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toptheta("evaluate", str(model), *QUICK, *arguments) == 2
    assert message in words(capsys.readouterr().err)


def test_a_model_that_int8_does_not_take_is_refused_before_its_weights_are_loaded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    window = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    model = save_model(folder / "window", "qwen3", use_sliding_window=True, **window)
    (model / "model.safetensors").write_bytes(b"")
    assert toptheta("evaluate", str(model), *QUICK, "--kv-cache", "int8") == 2
    said = words(capsys.readouterr().err)
    assert "--kv-cache: expected a model whose layers all attend to every token, got a" in said
    assert said.strip().endswith("leave it out")


def test_the_duration_is_told_at_the_start(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = (*QUICK[:4], "--windows", "6", "--positions", "24", "--tau", "0.01")
    assert toptheta("evaluate", str(model), *many) == 0
    said = capsys.readouterr().out.splitlines()
    told = "perplexity will take less than a minute: 2 points x 6 windows, judged by one window."
    assert said.index(told) < next(place for place, line in enumerate(said) if line.startswith("perplexity: dense: "))
    assert toptheta("evaluate", str(model), *many) == 0
    assert "will take" not in capsys.readouterr().out


def timed(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock on which the dense text of a window takes 3 seconds, and its last positions 2."""
    for target, name, seconds in (
        (PerplexityTask, "__init__", 3.0),
        (perplexity_task, "_negative_log_likelihood", 2.0),
    ):
        original = getattr(target, name)

        def slow(*arguments: object, original: Callable[..., object] = original, seconds: float = seconds) -> object:
            clock.now += seconds
            return original(*arguments)

        monkeypatch.setattr(target, name, slow)
    return lambda: clock.now


@pytest.mark.parametrize(("methods", "seconds"), [(1, 5 * 3 + 5 * 2), (3, 5 * 3 + 3 * 5 * 2)])
def test_an_estimate_is_of_all_windows_and_methods(
    methods: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = timed(SimpleNamespace(now=0.0), monkeypatch)
    named = [make_method("dense")] * methods
    assert estimate.estimated_seconds(small_model(), random_windows(5, 0), 8, named, clock) == seconds


def test_windows_that_are_not_kept_run_again_for_every_method() -> None:
    model, windows = small_model(), random_windows(1, 0)
    whole = PerplexityTask(model, windows, 8)
    (kept,) = whole._prefixes.kept
    assert whole.windows_run_again(100) == 0
    assert PerplexityTask(model, windows, 8, 3 * kept.num_bytes).windows_run_again(100) == 97
    assert PerplexityTask(model, windows, 8, kept.num_bytes - 1).windows_run_again(100) == 100


def test_other_tasks_are_judged_by_their_first_point() -> None:
    clock = SimpleNamespace(now=0.0)
    points = [Point(task, method, method) for task in ("perplexity", "needle", "key-value") for method in "abc"]
    told = estimate.FirstPoints(points, lambda: clock.now)
    said = []
    for point, seconds in zip(points, (7, 7, 7, 600, 1, 1, 60, 60, 60), strict=True):
        clock.now += seconds
        said.append(told.finished(point))
    assert said == [
        None, None, None, "needle will take about 20 minutes more, judged by its first point.", None, None,
        "key-value will take about 2 minutes more, judged by its first point.", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (44, "less than a minute"), (46, "about 1 minute"), (100, "about 2 minutes"), (400, "about 5 minutes"),
        (500, "about 10 minutes"), (3500, "about 60 minutes"), (7300, "about 120 minutes"), (36000, "about 10 hours"),
    ],
)  # fmt: skip
def test_durations_are_rough(seconds: float, said: str) -> None:
    assert estimate.in_words(seconds) == said
