"""Warnings that several parts of the package give in the same words."""

from __future__ import annotations

import warnings

import pytest

from toptheta_npu import SdcWithoutVmcWarning
from toptheta_npu._warnings import warn_of_sdc_without_vmc


def choose(sdc: str, vmc: bool) -> None:
    warn_of_sdc_without_vmc(sdc, vmc)


@pytest.mark.parametrize(
    ("sdc", "vmc"), [("none", False), ("exact", True), ("exp_threshold", False), ("offline", False)]
)
def test_other_choices_do_not_warn(sdc: str, vmc: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose(sdc, vmc)


def test_exact_sdc_without_vmc_warns_with_the_figure_and_a_remedy_where_it_is_chosen() -> None:
    with pytest.warns(SdcWithoutVmcWarning, match=r"12 to 34 % of perplexity.*Switch vmc on, or.*sdc='none'") as found:
        choose("exact", vmc=False)
    assert [warning.filename for warning in found] == [__file__]


def test_it_warns_once_per_place() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            choose("exact", vmc=False)
    assert len(found) == 1
