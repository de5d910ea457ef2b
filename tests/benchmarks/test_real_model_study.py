"""The study on a real model: its figures on data whose answers are known, and that a killed run goes on."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.real_model_study import (
    analysis,
    answers,
    comparisons,
    cost,
    criteria,
    figure,
    gemma,
    goals,
    page,
    perplexity,
    prediction,
    questions,
    retrieval,
    task_tables,
    texts,
    thresholds,
)
from benchmarks.real_model_study.__main__ import GEMMA_PAGE, OF_GEMMA, PAGE, RESULTS, load, main, measure
from benchmarks.real_model_study.analysis import Bounded, Curve, Runs, bootstrap, mean_of, percent, rows_ratio
from benchmarks.real_model_study.results import Lines, read
from benchmarks.real_model_study.settings import (
    BUDGETS,
    COMPARED_ROWS,
    CUT,
    DENSE,
    FOREIGN_SPLITS,
    HEADLINE,
    QUESTIONS,
    SPLITS,
    Answered,
    Arm,
    Asked,
    Costs,
    Scale,
    budget,
)
from benchmarks.tables import goal_table, renew
from tests.tiers import full
from toptheta_npu.assets import load_tiny_llama, load_tiny_llama_thresholds
from toptheta_npu.errors import TopThetaValueError

WINDOWS, KEYS = 24, 3840.0
#: How many times fewer V rows the made-up budgets need.
FEWER = 1.9
#: Nats that the made-up Top-θ with one k loses, times its V rows.
STRENGTH = 4.0


def made_up_lines(noise: float = 1e-4, strength: float = STRENGTH) -> list[dict[str, Any]]:
    """Losses that fall as 1 / V rows: Top-k needs 1.5 times fewer than Top-θ with one k, budgets `FEWER`."""
    rng = np.random.default_rng(3)
    common = 1 + 0.2 * rng.normal(size=WINDOWS)  # windows differ more from each other than methods do
    lines = []
    for arm in HEADLINE.arms:
        name = arm.method.partition(":")[0]
        rows = 2.0 * arm.k + 30 if arm.k else float(arm.method.rpartition("=")[2]) if "=" in arm.method else 350.0
        better = {"top-theta": FEWER if "target" in arm.method else 1.0, "top-k": 1.5}.get(name, 0.1)
        for window in range(WINDOWS):
            loss = strength * common[window] / (better * rows) + noise * rng.normal()
            dense = arm.method == "dense"
            lines.append({
                "window": window, "arm": arm.name, "nats": 2.5 + (0.0 if dense else loss), "kept": rows,
                "value_rows": KEYS if dense else rows, "keys": KEYS, "key_rows": KEYS, "kept_over_target": 1.0,
            })  # fmt: skip
    return lines


def runs_of(lines: list[dict[str, Any]]) -> Runs:
    return Runs.of(lines, [arm.name for arm in HEADLINE.arms])


def write(folder: Path, lines: list[dict[str, Any]]) -> None:
    content = [{"length": HEADLINE.length}, *lines]
    (folder / f"{HEADLINE.name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))


def write_predictions(folder: Path, measured: float) -> None:
    """A file in which a table predicts an error of 0.02, and windows show ``measured`` times that."""
    square, rows = 0.02**2, [[each / 2, float(each)] for each in BUDGETS]
    predicted = {"error": [[square, square]] * len(BUDGETS), "value_rows": rows}
    header = {"targets": list(BUDGETS), "lengths": [2048, 4096], "predicted": predicted}
    lines = [
        {"text": text, "document": str(number), "value_rows": rows,
         "error": [[square * (measured * each) ** 2 for each in (4.0, factor)]] * len(BUDGETS)}
        for text, factor in (("prose", 1.0), ("python", 2.0)) for number in range(3)
    ]  # fmt: skip
    content = "".join(json.dumps(line) + "\n" for line in [header, *lines])
    (folder / comparisons.prediction_file(HEADLINE)).write_text(content)


def test_the_ratio_of_value_rows_is_found() -> None:
    runs = runs_of(made_up_lines())
    ours = runs.curve(comparisons.COMPARED_ARMS)
    ratio = rows_ratio(runs.curve(comparisons.EQUAL_THETA), ours)
    # straight lines between the points lie above 1 / V rows: at most 2 %
    assert FEWER <= ratio.value < 1.02 * FEWER
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.high - ratio.low < 0.1
    against_ranks = rows_ratio(runs.curve(comparisons.EQUAL_TOP_K), ours)
    assert against_ranks.value == pytest.approx(FEWER / 1.5, rel=0.02)


def test_noise_widens_the_bounds_of_the_ratio() -> None:
    quiet, loud = (
        rows_ratio(runs.curve(comparisons.EQUAL_THETA), runs.curve(comparisons.COMPARED_ARMS))
        for runs in (runs_of(made_up_lines(1e-4)), runs_of(made_up_lines(2e-3)))
    )
    assert loud.high - loud.low > 3 * (quiet.high - quiet.low)


def test_bounds_of_a_mean_are_those_of_student() -> None:
    # 1, 2, 3, 4: mean 2.5, deviation 1.29, t(3) = 3.182
    found = mean_of(np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == pytest.approx((2.5, 0.4457, 4.5543), abs=1e-3)
    assert mean_of(np.array([1.0])) == (1.0, -math.inf, math.inf)
    assert percent(Bounded(0.0, -0.01, math.log(1.02))) == pytest.approx((0.0, -0.995, 2.0), abs=1e-3)


def test_bounds_of_a_bootstrap_come_near_those_of_student() -> None:
    values = np.random.default_rng(0).normal(3.0, 1.0, size=60)
    found = bootstrap(lambda windows: float(values[windows].mean()), len(values))
    assert found == pytest.approx(mean_of(values), abs=0.05)


def test_windows_are_compared_with_themselves() -> None:
    runs = runs_of(made_up_lines(noise=0.0))
    ours, theirs = runs.losses[budget(350).name], runs.losses["top-theta, k=128"]
    # windows differ by 20 %, so that two samples of unpaired windows would have wide bounds
    difference = mean_of(ours - theirs)
    assert difference.high < 0
    assert difference.high - difference.low < mean_of(ours).high - mean_of(ours).low + 1e-2


def test_a_loss_between_two_points_is_straight_in_the_logarithm() -> None:
    curve = Curve(np.array([[90.0, 110.0], [380.0, 420.0]]), np.array([[0.4, 0.2], [0.2, 0.0]]))
    assert curve.at(200) == pytest.approx([0.3, 0.1])
    assert curve.at(100) == pytest.approx([0.4, 0.2])
    assert curve.rows_for(0.2) == pytest.approx(200)
    assert curve.rows_for(0.9) == pytest.approx(100)  # beyond the points: their end
    with pytest.raises(TopThetaValueError, match="rows: expected 100 to 400, which were measured, got 500"):
        curve.at(500)


def test_a_loss_that_rises_with_the_value_rows_is_evened_out() -> None:
    curve = Curve(np.array([[100.0], [200.0], [400.0]]), np.array([[0.3], [0.1], [0.2]]))
    assert curve.rows_for(0.15001) == pytest.approx(200, rel=1e-3)
    assert 100 < curve.rows_for(0.2) < 200


def test_only_windows_that_every_arm_has_count() -> None:
    lines = [line for line in made_up_lines() if line["window"] < 3 or line["arm"] != "top-k, k=64"]
    assert len(runs_of(lines).dense) == 3


@pytest.mark.parametrize(("strength", "measured", "missed"), [(STRENGTH / 4, 1.0, 0), (STRENGTH, 1.5, 3)])
def test_goals_are_met_or_missed(tmp_path: Path, strength: float, measured: float, missed: int) -> None:
    write(tmp_path, made_up_lines(strength=strength))
    write_predictions(tmp_path, measured)
    found = {goal.name: goal for goal in goals.goals(tmp_path)}
    assert sum(goal.met is False for goal in found.values()) == missed
    first = next(iter(found.values()))
    assert first.met
    assert first.figure.startswith("1.9")
    python = found["predicted over measured joint error, python"]
    assert (python.met, python.figure) == (None, f"{1 / 2 / measured:.2f} to {1 / 2 / measured:.2f}")
    assert found["perplexity, budget of 7.5 % of the V rows, 8192 keys"].figure == comparisons.MISSING


def test_the_page_says_what_came_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "RESAMPLES", 500)
    write(tmp_path, made_up_lines())
    write_predictions(tmp_path, 1.0)
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    renew(copy, page.all_tables(tmp_path))
    said = copy.read_text()
    assert [row[3] for row in goal_table(page.all_goals(tmp_path)).rows].count("**missed**") == 2
    assert "| perplexity, budget of 7.5 % of the V rows, 8192 keys | not measured yet |\n" in said
    assert "* A budget needs 1.9" in said
    assert "* At 350 V rows a budget is better than exact Top-k with one k: -" in said
    assert "| Top-θ, budget of 350 V rows | 350 | 9.1 % | 55 % | +0.6" in said
    assert "| prose | 350 | 350 / 350 | 0.0200 / 0.0200 | 1.00 (1.00 to 1.00) |" in said
    assert "| python | 0.25 to 0.25 | 0.50 to 0.50 |" in said
    figure.draw(HEADLINE, runs_of(made_up_lines()), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@full
def test_the_page_shows_what_is_kept() -> None:
    shown = {PAGE: page.all_tables(RESULTS), GEMMA_PAGE: gemma.all_tables(OF_GEMMA)}
    for path, tables in shown.items():
        said = path.read_text()
        for name, table in tables.items():
            assert f"<!-- table {name} -->\n{table.as_markdown()}<!-- end -->" in said


@full
def test_no_document_is_in_two_splits() -> None:
    _, tokenizer = load_tiny_llama()
    windows = texts.Windows(tokenizer, None, CUT)
    names = [windows.of("python", split, 64, count)[0] for split, count in CUT.splits.items()]
    flat = [name for each in names for name in each]
    assert len(set(flat)) == len(flat) == sum(CUT.splits.values())
    assert (
        windows.of("python", "check", 64, 2)[0] == texts.Windows(tokenizer, None, CUT).of("python", "check", 64, 2)[0]
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
    with pytest.raises(TopThetaValueError, match=r"options: expected --headline, .* --gemma, .* got none"):
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


SMALL = Scale(
    (replace(CUT.parts[0], length=256, positions=32, arms=(
        Arm("dense"), Arm("top-theta", 32), budget(60),
        *(Arm(name, like=budget(60).name) for name in ("last-k", "pages", "blasst")))),),
    splits={"thresholds": 1, "curves": 1, "check": 2, "evaluation": 2}, checked={"python": 1}, ks=(8, 32, 64),
    first_layers_k=64, least_characters=20_000,
)  # fmt: skip


@full
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_tiny_llama()
    windows, console = texts.Windows(tokenizer, None, SMALL), Console(quiet=True)
    [part] = SMALL.parts
    file = tmp_path / f"{part.name}.jsonl"

    def run() -> None:
        measure(SMALL, model, windows, tmp_path, tmp_path, (60,), console)

    run()
    whole = file.read_text()
    names = sorted(arm.name for arm in part.arms)
    assert [(line["window"], line["arm"]) for line in read(file)[1]] == [(w, name) for w in range(2) for name in names]
    rows = {arm.name: [line["key_rows"] + line["value_rows"] for line in read(file)[1] if line["arm"] == arm.name]
            for arm in part.arms}  # fmt: skip
    for name in ("last-k", "pages"):
        assert np.mean(rows[f"{name}, bytes of {budget(60).name}"]) == pytest.approx(
            np.mean(rows[budget(60).name]), rel=0.1
        )
    done: list[str] = []
    measured = perplexity.PerplexityTask.measure

    def counted(self: Any, method: Any, *rest: Any) -> Any:
        done.append(method.family)
        return measured(self, method, *rest)

    monkeypatch.setattr(perplexity.PerplexityTask, "measure", counted)
    for name in ("calibrate", "calibrate_error_curves"):
        monkeypatch.setattr(thresholds, name, None)
    monkeypatch.setattr(prediction, "measure_budgets", None)
    monkeypatch.setattr(criteria, "run_texts", None)
    criteria_lines = read(tmp_path / criteria.REAL)[1]
    assert len(criteria_lines) == 4 * criteria.BUDGETS
    assert all(line["value"] > 0 for line in criteria_lines)
    file.write_text(whole[: whole.rfind('{"window": 1, "arm": "last-k') + 20])
    run()
    assert file.read_text() == whole
    assert len(done) == len(part.arms) - names.index(f"last-k, bytes of {budget(60).name}")


CHAT = "{% for m in messages %}# {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}# answer:\n{% endif %}"


@full
def test_questions_and_answers_through_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_tiny_llama()
    tokenizer.chat_template = CHAT
    windows, console = texts.Windows(tokenizer, None, SMALL), Console(quiet=True)
    documents = windows.documents("python", "evaluation")
    arms = (Arm("tau:tau=0.01"), Arm("tau:tau=0.002"))
    asked = Asked((220, 240), (0.0, 1.0), 1, (DENSE, *arms))
    answered = Answered(2, 120, 200, 12, arms)
    for module, name, value in ((task_tables, "QUESTIONS", asked), (task_tables, "ANSWERS", answered)):
        monkeypatch.setattr(module, name, value)
    for _ in range(2):  # the second time there is nothing left to do
        retrieval.measure(asked, model, tokenizer, documents, tmp_path / task_tables.RETRIEVAL, console)
        answers.measure(answered, model, tokenizer, documents, tmp_path / task_tables.ANSWERED, console)
        monkeypatch.setattr(retrieval, "run_prefix", None)
        monkeypatch.setattr(answers, "run_prefix", None)
    asked_lines, answer_lines = (read(tmp_path / name)[1] for name in (task_tables.RETRIEVAL, task_tables.ANSWERED))
    assert len(asked_lines) == 2 * 2 * 2 * 3
    assert all(line["tokens"] <= line["length"] for line in asked_lines)
    dense, *others = (line for line in answer_lines if line["prompt"] == 0)
    assert (dense["identical"], dense["first"], dense["agreed"], len(dense["answer"])) == (1.0, 12, 1.0, 12)
    assert all(len(line["kept"]) == answers.PARTS for line in others)
    found = [task_tables.retrieval(tmp_path), task_tables.answers(tmp_path)]
    assert [len(each.rows) for each in found if each is not None] == [3, 3]


@full
def test_what_calibration_costs(tmp_path: Path) -> None:
    model, tokenizer = load_tiny_llama()
    windows, console = texts.Windows(tokenizer, None, SMALL), Console(quiet=True)
    costs = Costs(256, 1, 1, (1.0, 1 / 4), (1,), 2)
    cost.measure(costs, SMALL, model, windows, tmp_path / cost.FILE, console)
    table, needed = cost.passes_table(tmp_path), cost.windows_table(tmp_path)
    assert table is not None
    assert [row[:2] for row in table.rows] == [
        ["thresholds", "all"], ["thresholds", "1/4"], ["held-out check", "all"], ["error curves", "1/32"]]  # fmt: skip
    assert needed is not None
    assert 0.7 < float(needed.rows[0][2]) < 1.4


def test_costs_are_those_of_the_defaults(tmp_path: Path) -> None:
    lines = [
        {"what": what, "value": value, "passes": passes}
        for what, value, passes in (
            ("thresholds", 0.25, 1.5),
            ("thresholds", 1.0, 9.0),
            ("held-out check", 1.0, 3.2),
            ("error curves", 1 / 32, 4.4),
        )
    ]
    (tmp_path / cost.FILE).write_text("".join(json.dumps(line) + "\n" for line in ({}, *lines)))
    first, second = cost.goals(tmp_path, "missing")
    # 6 windows of 64 are held out, and one in four makes error curves
    assert (first.figure, first.met) == ("1.80 forward passes", True)
    assert (second.figure, second.met) == ("1.10 forward passes", False)


def test_a_criterion_that_orders_budgets_as_their_losses_are_correlates_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "RESAMPLES", 100)
    factors = dict(zip((*criteria.CRITERIA, "loss"), (2.0, -1.0, 0.0, 1.0), strict=True))
    lines = [
        {"what": what, "budget": number, "value": 30 + factor * number if factor else (7 * number) % 20}
        for what, factor in factors.items() for number in range(criteria.BUDGETS)
    ]  # fmt: skip
    content = [{}, *lines]
    (tmp_path / criteria.REAL).write_text("".join(json.dumps(line) + "\n" for line in content[:-1]))
    assert criteria.table(tmp_path) is None
    (tmp_path / criteria.REAL).write_text("".join(json.dumps(line) + "\n" for line in content))
    table = criteria.table(tmp_path)
    assert table is not None
    assert table.columns == ("error relative to", "rank correlation, SmolLM2-135M")
    first, second, third = (row[1] for row in table.rows)
    assert first == "1.00 (1.00 to 1.00)"
    assert second == "-1.00 (-1.00 to -1.00)"
    assert abs(float(third.split()[0])) < 0.5


def test_drawn_budgets_have_many_shapes_and_are_neither_the_least_nor_the_most() -> None:
    table = load_tiny_llama_thresholds("pre_softmax")
    errors = torch.linspace(1.0, 0.0, 1 + len(table.k), dtype=torch.float64)[:, None, None].expand(-1, 6, 8)
    drawn = criteria.draw(errors, table)
    sizes = [float(torch.tensor([1, *table.k.tolist()])[levels].double().mean()) for levels in drawn]
    assert 8 < min(sizes) < max(sizes) < 0.9 * int(table.k[-1])
    assert len({tuple(levels.flatten().tolist()) for levels in drawn}) == criteria.BUDGETS


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


def test_budgets_are_compared_at_value_rows_that_they_aim_at() -> None:
    assert set(COMPARED_ROWS) <= set(BUDGETS)
