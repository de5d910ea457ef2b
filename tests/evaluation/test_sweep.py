"""Which points a plan has, and what is kept of them when one fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.models.tiny import model_of, table_of
from toptheta_npu import SdcWithoutVmcWarning
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.measurement import Measurement, Task
from toptheta_npu.evaluation.methods.kinds import parse_method
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.reads import Reads
from toptheta_npu.evaluation.results import Header, ResultsFile, read_results
from toptheta_npu.evaluation.sweep import MakeTask, Plan, sweep, table_digest

HEADER = Header("tiny", "fingerprint")


class Names:
    """A task that scores the length of a method's name, and fails for one of them."""

    name = "names"
    samples = 2

    def __init__(self, failing: str | None = None) -> None:
        self._failing = failing
        self.measured: list[str] = []

    def measure(
        self, method: Method, model: PreTrainedModel, progress: Callable[[int], None] = lambda done: None
    ) -> Measurement:
        if method.family == self._failing:
            raise TopThetaValueError("names", "another method", method.family)
        self.measured.append(method.family)
        progress(2)
        reads = Reads(4.0, 7.0, 9.0, 12.0, 40.0, key_rows_mean=40.0)
        return Measurement("accuracy", True, (float(len(method.family)), 0.0), reads, reads)


def plan_of(*methods: str, ks: tuple[int, ...] = (8,), tables: tuple[str, ...] = ("pre",)) -> Plan:
    return Plan(("names",), tuple(map(parse_method, methods)), ks, {name: table_of() for name in tables}, 2)


def run(plan: Plan, task: Names, path: Path) -> None:
    def make(model: PreTrainedModel) -> Task:
        return task

    makers: dict[str, MakeTask] = {"names": make}
    with ResultsFile(path, HEADER) as results:
        for _ in sweep(plan, makers, model_of(), results):
            pass


@pytest.mark.parametrize(
    ("methods", "ks", "tables", "message"),
    [
        (("top-theta",), (8,), (), "TABLE: expected thresholds for top-theta, got none; toptheta calibrate makes some"),
        (("top-k",), (), ("pre",), "--k: expected at least one number, for top-k, got none"),
        (("top-theta",), (9,), ("pre",), "k: expected 8, the calibrated k, got 9"),
    ],
)
def test_plans_that_cannot_be_run(
    methods: tuple[str, ...], ks: tuple[int, ...], tables: tuple[str, ...], message: str
) -> None:
    with pytest.raises(TopThetaValueError, match=message):
        plan_of(*methods, ks=ks, tables=tables)


@pytest.mark.parametrize("method", ["top-theta:vmc=false", "top-k:vmc=false"])
def test_exact_sdc_without_vmc_warns_where_it_is_chosen(method: str, tmp_path: Path) -> None:
    def sweep_of(*methods: str) -> None:
        with ResultsFile(tmp_path / "evaluation.jsonl", HEADER) as results:
            list(sweep(plan_of("dense", "top-theta", *methods), {"names": lambda _: Names()}, model_of(), results))

    with warnings.catch_warnings():
        warnings.simplefilter("error", SdcWithoutVmcWarning)
        sweep_of("top-theta:sdc=none", "last-k")
    with pytest.warns(SdcWithoutVmcWarning, match="12 to 34 % of perplexity") as found:
        sweep_of(method)
    assert [warning.filename for warning in found] == [__file__]


def test_a_point_that_fails_costs_no_other(tmp_path: Path) -> None:
    path, plan = tmp_path / "evaluation.jsonl", plan_of("dense", "top-theta", "top-k", "last-k")
    with pytest.raises(TopThetaValueError, match="names: expected another method, got Top-k"):
        run(plan, Names(failing="Top-k + SDC + VMC"), path)
    assert [point.method for point in read_results(path).measurements] == ["dense", "top-theta"]
    task = Names()
    run(plan, task, path)
    assert task.measured == ["Top-k + SDC + VMC", "last-k"]
    assert [point.method for point in read_results(path).measurements] == ["dense", "top-theta", "top-k", "last-k"]
    again = Names()
    run(plan, again, path)
    assert not again.measured


def test_the_digest_of_a_table_is_that_of_its_numbers() -> None:
    assert table_digest(table_of()) == table_digest(table_of())
    assert table_digest(table_of()) != table_digest(table_of(placement="post_softmax"))
