"""``toptheta find-tau`` as a user types it, and the search behind it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.command import toptheta
from tests.evaluation.test_summary import losses
from toptheta_npu.cli.find_tau import conclusion
from toptheta_npu.evaluation.loss_target import LEAST, MOST, search_tau
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.methods.method import Method

QUICK = ("--text", "book.txt", "--length", "128", "--windows", "4", "--positions", "24")

pytestmark = pytest.mark.usefixtures("quiet_and_one_thread", "folder")


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def task(nats: Callable[[float], float], noise: float = 0.0) -> Any:
    """Four windows that lose ``nats(tau)``, give or take ``noise``; dense attention loses none."""

    def measure(method: Method, model: object) -> Measurement:
        tau = float(method.family.split(",")[1]) if "τ" in method.family else 0.0
        lost = nats(tau) if tau else 0.0
        signs = (1, -1, 1, -1) if tau else (0, 0, 0, 0)
        return losses(*(2.0 + lost + sign * noise for sign in signs))

    return SimpleNamespace(measure=measure)


def test_the_largest_tau_within_the_loss_is_found() -> None:
    """A loss of 100 tau nats: 0.5 % of perplexity are log(1.005) nats."""
    tried: list[float] = []
    found = search_tau(task(lambda tau: 100 * tau), object(), 0.5, progress=lambda each: tried.append(each.tau))  # type: ignore[arg-type]
    right = math.log(1.005) / 100
    assert found.below is not None
    assert found.above is not None
    assert found.below.tau < right < found.above.tau < 1.06 * found.below.tau
    assert len(tried) == 8
    assert found.below.change.high < 0.5 <= found.above.change.high


def test_what_counts_is_the_whole_interval() -> None:
    exact = search_tau(task(lambda tau: 100 * tau), object(), 0.5).below  # type: ignore[arg-type]
    noisy = search_tau(task(lambda tau: 100 * tau, noise=1e-3), object(), 0.5).below  # type: ignore[arg-type]
    assert exact is not None
    assert noisy is not None
    assert noisy.tau < 0.9 * exact.tau
    assert noisy.change.high < 0.5


@pytest.mark.parametrize("lost", [1.0, math.nan])
def test_without_any_such_tau_none_is_named(lost: float) -> None:
    found = search_tau(task(lambda tau: lost), object(), 0.5)  # type: ignore[arg-type]
    assert found.below is None
    assert found.above is not None
    assert found.above.tau < 1.1 * LEAST


def test_where_all_are_within_the_loss_the_largest_tried_is_named() -> None:
    found = search_tau(task(lambda tau: 0.0), object(), 0.5)  # type: ignore[arg-type]
    assert found.above is None
    assert found.below is not None
    assert found.below.tau > 0.9 * MOST
    assert "no larger tau was tried. Other text may lose more." in conclusion(found, 0.5, "4 windows")[1]


def test_the_conclusion_says_how_sure_it_is() -> None:
    found = search_tau(task(lambda tau: 100 * tau, noise=1e-4), object(), 0.5)  # type: ignore[arg-type]
    assert found.below is not None
    reads = replace(found.below.measurement.reads, value_rows_mean=12, keys_mean=100)
    below = replace(found.below, measurement=replace(found.below.measurement, reads=reads))
    first, second = conclusion(replace(found, below=below), 0.5, "4 windows")
    assert re.fullmatch(
        r"tau = 4\.\d+e-05: perplexity \+0\.4\d % \(95 % interval \+0\.4\d to \+0\.\d+ %\) on 4 windows; "
        r"12 of 100 V rows read\.", first,
    )  # fmt: skip
    assert second.startswith("The whole interval lies below 0.5 %; that of tau = ")


def test_a_target_of_loss(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("find-tau", str(model), *QUICK, "--loss", "1%") == 0
    said = words(capsys.readouterr().out)
    assert "This will take less than a minute: 8 values of tau and dense, on 4 windows each." in said
    assert len(re.findall(r"tau = \S+: perplexity [+-]\d+\.\d\d ±", said)) == 8
    (tau,) = re.findall(r"tau = (\S+): perplexity \S+ % \(95 % interval \S+ to (?:\S+) %\) on 4 windows; ", said)
    assert f"Next: toptheta evaluate {model} --text OTHER_TEXT --tau {tau}" in said
    # evaluate measures the same on the same windows
    assert toptheta("evaluate", str(model), *QUICK, "--tau", tau) == 0
    found = re.search(r"tau:tau=\S+: perplexity (\S+), (\d+) of", words(capsys.readouterr().out))
    assert found
    assert f"; {found[2]} of" in said


def test_a_target_of_rows(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert toptheta("find-tau", str(model), *QUICK, "--value-rows", "20") == 0
    said = words(capsys.readouterr().out)
    found = re.search(r"tau = (\S+) reads 20 V rows on average, after 4 windows of 128 tokens\.", said)
    assert found
    assert 0 < float(found[1]) < 0.1
    assert f"--tau {found[1]}" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--loss: expected a target, or --value-rows in its place, got neither; such as: --loss 0.5%"),
        (("--loss", "1%", "--value-rows", "20"), "--loss excludes --value-rows; leave one of them out"),
        (("--loss", "none"), "--loss: expected percent of perplexity, above 0 and up to 100, got 'none'; such as 0.5%"),
        (("--loss", "0"), "--loss: expected percent of perplexity, above 0 and up to 100, got '0'"),
        (("--loss", "nan%"), "--loss: expected percent of perplexity"),
        (("--value-rows", "0.5"), "--value-rows: expected a finite number >= 1, got 0.5"),
        (("--value-rows", "9999"), "--value-rows: expected fewer than the "),
        (("--loss", "1%", "--windows", "2"), "--windows: expected at least 3, whose spread says how sure the loss is"),
        (("--loss", "1%", "--text", "none.txt"), "none.txt"),
        (("--loss", "1%", "--length", "999"), "--length: expected at most 256 tokens"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(
    arguments: tuple[str, ...], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toptheta("find-tau", str(model), *QUICK, *arguments) == 2
    said = words(capsys.readouterr().err)
    assert message in said
    assert said.count("error:") == 1


def test_a_loss_that_windows_cannot_exclude_names_what_would(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from toptheta_npu.evaluation.tasks.perplexity import PerplexityTask

    def noise(_: object, method: Method, *__: object) -> Measurement:
        return losses(*(2.0, 2.0, 2.0, 2.0) if method.family == "dense" else (2.5, 1.5, 2.5, 1.5))

    monkeypatch.setattr(PerplexityTask, "measure", noise)
    assert toptheta("find-tau", str(model), *QUICK, "--loss", "0.5%") == 2
    said = words(capsys.readouterr().err)
    assert (
        "--loss: expected a loss that 4 windows can exclude at some tau from 1e-06 on, got 0.5 %, where tau = " in said
    )
    assert said.strip().endswith("allow more, or add --windows")
