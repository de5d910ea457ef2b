"""The modelled times by the constants of others: slower memory costs time, and the table has every call."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.modelled import public_tables
from benchmarks.modelled.calls import Call
from toptheta_npu.timing.shapes import PAPER


def test_lower_rates_and_longer_starts_take_longer() -> None:
    found = public_tables.gains(Call(replace(PAPER, num_heads=4, num_key_value_heads=4, n=512, k=32)))
    documents, ge, pto = (found[name][0] for name in public_tables.TABLES)
    assert documents < ge < pto
    assert all(gain > 1 for _, gain in found.values())


def test_constants_are_those_of_the_model_of_time() -> None:
    from emulator.ascendc.library import cost_constants

    assert {*public_tables.GE, *public_tables.PTO} <= set(cost_constants())
