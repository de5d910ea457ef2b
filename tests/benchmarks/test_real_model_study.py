"""The study on a real model: its figures on data whose answers are known, and that a killed run goes on."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.real_model_study import (
    figure,
    perplexity,
    questions,
    retrieval,
    tables,
    task_tables,
    texts,
    thresholds,
)
from benchmarks.real_model_study.__main__ import OF_GEMMA, RESULTS, main, measure
from benchmarks.real_model_study.analysis import Bounded, Curve, Runs, mean_of, percent
from benchmarks.real_model_study.models import load
from benchmarks.real_model_study.results import Lines, read
from benchmarks.real_model_study.settings import (
    DENSE,
    FOREIGN_SPLITS,
    HEADLINE,
    QUESTIONS,
    SPLITS,
    TAU,
    Arm,
    Asked,
    Part,
    Scale,
)
from tests.tiers import full
from toptheta_npu.assets import load_tiny_llama
from toptheta_npu.errors import TopThetaValueError

WINDOWS, KEYS = 24, 3840.0
#: How many times fewer V rows the made-up probabilities need.
FEWER = 1.9
#: Nats that the made-up Top-θ with one k loses, times its V rows.
STRENGTH = 4.0
#: A little of everything, on the embedded model, whose text is Python's library.
SMALL = Scale(
    (Part("python", 256, 2, positions=32, arms=(
        Arm("dense"), Arm("top-theta", 32), Arm("tau:tau=0.005"), Arm("last-k", 32), Arm("pages", 32))),),
    splits={"thresholds": 1, "check": 2, "evaluation": 2}, ks=(8, 32, 64),
    first_layers_k=64, least_characters=20_000,
)  # fmt: skip


def made_up_lines(part: Part, noise: float = 1e-4, strength: float = STRENGTH) -> list[dict[str, Any]]:
    """Losses that fall as 1 / V rows: Top-k needs 1.5 times fewer than Top-θ with one k, probabilities `FEWER`."""
    rng = np.random.default_rng(3)
    common = 1 + 0.2 * rng.normal(size=WINDOWS)  # windows differ more from each other than methods do
    lines = []
    for arm in part.arms:
        name, _, options = arm.method.partition(":tau=")
        rows = 2.0 * arm.k + 30 if arm.k else 0.12 / float(options.split(",")[0]) if options else 350.0
        better = {"tau": FEWER, "top-theta": 1.0, "top-k": 1.5}.get(name, 0.1)
        for window in range(WINDOWS):
            loss = strength * common[window] / (better * rows) + noise * rng.normal()
            dense = arm.method == "dense"
            lines.append({
                "window": window, "arm": arm.name, "nats": 2.5 + (0.0 if dense else loss), "kept": rows,
                "value_rows": KEYS if dense else rows, "keys": KEYS, "key_rows": KEYS, "kept_over_target": 1.0,
            })  # fmt: skip
    return lines


def runs_of(lines: list[dict[str, Any]], part: Part = HEADLINE) -> Runs:
    return Runs.of(lines, [arm.name for arm in part.arms])


def write(folder: Path, part: Part, lines: list[dict[str, Any]]) -> None:
    content = [{"length": part.length}, *lines]
    (folder / f"{part.name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))


def test_bounds_of_a_mean_are_those_of_student() -> None:
    # 1, 2, 3, 4: mean 2.5, deviation 1.29, t(3) = 3.182
    found = mean_of(np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == pytest.approx((2.5, 0.4457, 4.5543), abs=1e-3)
    assert mean_of(np.array([1.0])) == (1.0, -math.inf, math.inf)
    assert percent(Bounded(0.0, -0.01, math.log(1.02))) == pytest.approx((0.0, -0.995, 2.0), abs=1e-3)


def test_windows_are_compared_with_themselves() -> None:
    runs = runs_of(made_up_lines(HEADLINE, noise=0.0))
    ours, theirs = runs.losses["top-k, k=128"], runs.losses["top-theta, k=128"]
    # windows differ by 20 %, so that two samples of unpaired windows would have wide bounds
    difference = mean_of(ours - theirs)
    assert difference.high < 0
    assert difference.high - difference.low < mean_of(ours).high - mean_of(ours).low + 1e-2


def test_a_loss_between_two_points_is_straight_in_the_logarithm() -> None:
    curve = Curve(np.array([[90.0, 110.0], [380.0, 420.0]]), np.array([[0.4, 0.2], [0.2, 0.0]]))
    assert curve.at(200) == pytest.approx([0.3, 0.1])
    assert curve.at(100) == pytest.approx([0.4, 0.2])
    with pytest.raises(TopThetaValueError, match="rows: expected 100 to 400, which were measured, got 500"):
        curve.at(500)


def test_only_windows_that_every_arm_has_count() -> None:
    lines = [line for line in made_up_lines(HEADLINE) if line["window"] < 3 or line["arm"] != "top-k, k=64"]
    assert len(runs_of(lines).dense) == 3


def test_tables_and_figure_show_what_came_out(tmp_path: Path) -> None:
    assert not list(tables.of_smollm2(tmp_path))
    for part in (HEADLINE, TAU):
        write(tmp_path, part, made_up_lines(part))
    shares, ks, _ = tables.of_smollm2(tmp_path)  # the last one is of compensations, which share a file
    assert shares.title == "One probability for all heads, 24 windows"
    [row] = [row for row in shares.rows if row[0] == "tau=0.0005"]
    assert row[1:3] == ["240", "6.2 %"]
    loss = 100 * math.expm1(STRENGTH / (FEWER * 240))
    assert float(row[3].split()[0]) == pytest.approx(loss, rel=0.1)
    assert row[4].startswith("-")  # better than Top-k at as many V rows
    [row] = [row for row in ks.rows if row[0] == "Top-θ, k = 64"]
    assert row[1:4] == ["158", "4.1 %", "52 %"]
    figure.draw(HEADLINE, *(runs_of(made_up_lines(part), part) for part in (HEADLINE, TAU)), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_what_is_kept_makes_all_tables() -> None:
    found = [*tables.of_smollm2(RESULTS), *tables.of_gemma(OF_GEMMA)]
    assert [len(table.rows) for table in found] == [7, 12, 3, 19, 4, 6, 7, 4, 7, 4]


@full
def test_no_document_is_in_two_splits() -> None:
    _, tokenizer = load_tiny_llama()
    windows = texts.Windows(tokenizer, None, SMALL)
    names = [windows.of("python", split, 64, count)[0] for split, count in SMALL.splits.items()]
    flat = [name for each in names for name in each]
    assert len(set(flat)) == len(flat) == sum(SMALL.splits.values())
    assert (
        windows.of("python", "check", 64, 2)[0] == texts.Windows(tokenizer, None, SMALL).of("python", "check", 64, 2)[0]
    )
    with pytest.raises(TopThetaValueError, match="python: expected 9 documents of the split check, got 2"):
        windows.of("python", "check", 64, 9)


def test_the_splits_fit_into_the_texts() -> None:
    assert sum(SPLITS.values()) <= 74
    assert len(texts.documents("python", None, 45_000)) >= sum(FOREIGN_SPLITS.values())
    assert HEADLINE.windows >= 32


def test_pages_become_text() -> None:
    page_of = "<html><style>x</style><h1>A</h1><p>b\n c<br>d <i>e</i></p><script>f</script>\n\n\n<p>g</html>"
    assert texts.plain_text(page_of) == "A\n\nb c\nd e\n\ng"


def test_without_packages_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TopThetaValueError, match="--texts: expected the files of Debian's packages anarchism and jarg"):
        texts.fetch(tmp_path / "packages")
    with pytest.raises(TopThetaValueError, match=r"--texts: .* apt-get download anarchism jargon-text, and dpkg-deb"):
        texts.documents("prose", tmp_path, 100)

    def fails(*_: Any, **__: Any) -> Any:
        raise subprocess.CalledProcessError(100, "apt-get", stderr="E: Unable to locate package anarchism\n")

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(TopThetaValueError, match=r"could be fetched here \(E: Unable to locate package anarchism\)"):
        texts.fetch(tmp_path / "packages")


def test_without_a_model_the_error_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(TopThetaValueError, match=r"--model: .* run: make real-model"):
        load(tmp_path)
    with pytest.raises(TopThetaValueError, match="options: expected --headline, --full, --gemma or --stored, got"):
        main()


def test_results_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    with Lines(file, {"seed": 0}, ("window",)) as lines:
        lines.add({"window": 0})
        with pytest.raises(TopThetaValueError, match="another works on"), Lines(file, {"seed": 0}, ("window",)):
            pass
    with pytest.raises(TopThetaValueError, match="expected results with seed = 1, got 0; move it away"):
        Lines(file, {"seed": 1}, ("window",)).__enter__()
    file.write_text(file.read_text() + '{"window": 1, "na')
    with Lines(file, {"seed": 0}, ("window",)) as lines:
        assert (lines.has(window=0), lines.has(window=1)) == (True, False)
    assert read(file) == ({"seed": 0}, [{"window": 0}])


@full
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_tiny_llama()
    windows, console = texts.Windows(tokenizer, None, SMALL), Console(quiet=True)
    [part] = SMALL.parts
    file = tmp_path / f"{part.name}.jsonl"

    def run() -> None:
        measure(SMALL, model, windows, tmp_path, tmp_path, console)

    run()
    whole = file.read_text()
    names = sorted(arm.name for arm in part.arms)
    assert [(line["window"], line["arm"]) for line in read(file)[1]] == [(w, name) for w in range(2) for name in names]
    # two of six layers keep 64, the others 32
    assert {line["kept"] for line in read(file)[1] if line["arm"] == "last-k, k=32"} == {42.667}
    done: list[str] = []
    measured = perplexity.PerplexityTask.measure

    def counted(self: Any, method: Any, *rest: Any) -> Any:
        done.append(method.family)
        return measured(self, method, *rest)

    monkeypatch.setattr(perplexity.PerplexityTask, "measure", counted)
    monkeypatch.setattr(thresholds, "calibrate", None)
    file.write_text(whole[: whole.rfind('{"window": 1, "arm": "last-k') + 20])
    run()
    assert file.read_text() == whole
    assert len(done) == len(part.arms) - names.index("last-k, k=32")


CHAT = "{% for m in messages %}# {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}# answer:\n{% endif %}"


@full
def test_questions_through_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_tiny_llama()
    tokenizer.chat_template = CHAT
    windows, console = texts.Windows(tokenizer, None, SMALL), Console(quiet=True)
    documents = windows.documents("python", "evaluation")
    arms = (Arm("tau:tau=0.01"), Arm("tau:tau=0.002"))
    asked = Asked((220, 240), (0.0, 1.0), 1, (DENSE, *arms))
    monkeypatch.setattr(task_tables, "QUESTIONS", asked)
    for _ in range(2):  # the second time there is nothing left to do
        retrieval.measure(asked, model, tokenizer, documents, tmp_path / task_tables.RETRIEVAL, console)
        monkeypatch.setattr(retrieval, "run_prefix", None)
    _, asked_lines = read(tmp_path / task_tables.RETRIEVAL)
    assert len(asked_lines) == 2 * 2 * 2 * 3
    assert all(line["tokens"] <= line["length"] for line in asked_lines)
    found = task_tables.retrieval(tmp_path)
    assert found is not None
    assert len(found.rows) == 3


def test_a_question_is_what_follows_the_text() -> None:
    _, tokenizer = load_tiny_llama()
    tokenizer.chat_template = CHAT
    documents = texts.documents("python", None, 20_000)[:2]
    for kind, listed in (("needle", 1), ("key_value", 12)):
        place = questions.Place(kind, 300, 0.5, 0)  # type: ignore[arg-type]
        prompt = questions.question_of(tokenizer, place, documents)
        asked = tokenizer.decode(prompt.tokens[prompt.query_start :])
        assert asked.lstrip().startswith("What is the")
        assert asked.endswith(" is")
        right = prompt.choices[prompt.answer]
        before = tokenizer.decode(prompt.tokens[: prompt.query_start])
        assert before.count(right) == 1
        assert sum(choice in before for choice in prompt.choices) == min(listed, 8)
        assert 280 < len(prompt.tokens) <= 300
    with pytest.raises(TopThetaValueError, match="length: expected room for a text and a question, got 20 tokens"):
        questions.question_of(tokenizer, questions.Place("needle", 20, 0.5, 0), documents)


def test_changes_count_where_dense_attention_answers(tmp_path: Path) -> None:
    lines = [
        {"kind": kind, "length": length, "depth": 0.5, "seed": seed, "arm": arm.name, "value_rows": 100.0,
         "right": kind == "needle" and (arm == DENSE or seed > 1)}
        for kind in ("needle", "key_value") for length in (1024, 2048) for seed in range(8) for arm in QUESTIONS.arms
    ]  # fmt: skip
    content = [{}, *lines]
    (tmp_path / task_tables.RETRIEVAL).write_text("".join(json.dumps(line) + "\n" for line in content))
    table = task_tables.retrieval(tmp_path)
    assert table is not None
    assert "32 questions, 16 of them" in table.title
    assert table.rows[0][:5] == ["dense", "100 %", "100 %", "0 %", "0 %"]
    assert table.rows[1][1:6] == ["75 %", "75 %", "0 %", "0 %", "-25.00 ± 11.26 points"]
