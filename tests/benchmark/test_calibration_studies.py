"""The goals of the studies of thresholds on the embedded model."""

from __future__ import annotations

import pytest

from benchmarks import drift_control
from benchmarks.selectors import as_table


def case(source: str, controlled: bool, ratio: float, p95: float, change: float) -> dict[str, object]:
    part = {"heads": [ratio, 1.02], "windows": [0.99, ratio], "reads": {"value_rows_p95": p95}}
    return {
        "text": "python", "calibrated_on": source, "placement": "pre_softmax", "k": 32, "drift_control": controlled,
        "after_256_steps": part, "all_steps": part, "change_percent": change,
    }  # fmt: skip


def test_goals_compare_control_out_of_domain_with_thresholds_in_domain() -> None:
    rows = [
        case("python", False, 1.0, 200, 0.3),
        case("english", False, 1.8, 300, 0.2),
        case("python", True, 1, 150, 0),
    ]
    found = drift_control.goals([*rows, case("english", True, 0.94, 190, 0.35)])
    assert [goal.value for goal in found] == pytest.approx([0.06, 0.06, 0.95, 0.95, 0.05])
    assert [goal.met for goal in found] == [True, False, True, True, True]


def test_a_row_of_the_table_of_selectors() -> None:
    reads = {"value_rows_mean": 90.4, "value_rows_p95": 190, "value_rows_max": 500, "empty_share": 0.037}
    row = {"method": "Top-θ", "placement": "pre_softmax", "k": 32, "change_percent": 0.331, "standard_error": 0.2,
           "kept_over_k": 0.97, "reads": reads}  # fmt: skip
    assert as_table([row]).rows == [["pre_softmax", "32", "Top-θ", "+0.33 ± 0.20 %", "0.97", "90 / 190 / 500", "3.7 %"]]
