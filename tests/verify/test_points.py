"""The table of points, beside the page that it turns into a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.markdown import ROOT
from toptheta_npu import TopThetaValueError
from toptheta_npu.verify.points import POINTS, choose

_PAGE = ROOT / "docs" / "ascend.md"
_NAMES = [point.name for point in POINTS]


def _section() -> str:
    return _PAGE.read_text().split("## Confirm first on hardware\n")[1].split("\n## ")[0]


def test_the_page_leads_with_the_command() -> None:
    assert "toptheta verify" in _section().split("\n1. ")[0]


def test_the_page_names_every_check_once_and_in_order() -> None:
    items = re.split(r"\n\d+\. ", _section())[1:]
    named = [name for item in items for name in re.findall(r"`([a-z]+(?:-[a-z]+)*)`", item) if name in _NAMES]
    assert named == _NAMES


def test_every_item_of_the_page_has_a_check_or_says_where_it_is_measured() -> None:
    for item in re.split(r"\n\d+\. ", _section())[1:]:
        spans = re.findall(r"`([^`]+)`", item)
        assert set(spans) & {*_NAMES, "times"}, item


def test_names_are_unique() -> None:
    assert len(set(_NAMES)) == len(_NAMES)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_point_says_what_to_change_in_files_that_exist(point: object) -> None:
    change = getattr(point, "change")  # noqa: B009
    files = re.findall(r"\b(?:op_kernel|op_host|toptheta_npu|tests|docs)/[\w./]*\w", change)
    assert files
    assert not [file for file in files if not (ROOT / file).exists()]
    # further names in the same sentence are files of the same folder
    folder = Path(files[0]).parent
    others = re.findall(r"(?<![\w/])\w+\.(?:h|cpp|py)\b", change)
    assert not [name for name in others if not (ROOT / folder / name).exists()]


def test_choose_keeps_the_order_of_the_page() -> None:
    assert [point.name for point in choose([_NAMES[3], _NAMES[0]])] == [_NAMES[0], _NAMES[3]]
    assert choose([]) == POINTS


def test_a_wrong_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(TopThetaValueError) as caught:
        choose(["mask-bit"])
    assert str(caught.value) == (
        "--only: expected the name of a check, got 'mask-bit'; did you mean mask-bits? (list: toptheta verify --list)"
    )
