"""The popularity map against the masks of an independent computation, and against the statistics."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import DynamicCache

from tests.models.tiny import K, model_of, new_model, table_of, tokens
from toptheta_npu.errors import TopThetaNotImplementedError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.evaluation.methods import kinds
from toptheta_npu.evaluation.methods.last_k import select_last_k
from toptheta_npu.evaluation.methods.method import Method
from toptheta_npu.evaluation.methods.random_k import select_random_k
from toptheta_npu.evaluation.tasks.popularity import PopularityMap, popularity
from toptheta_npu.models import apply_selection

TEXT, ROWS = tokens(1, 60)[0], 12


def every_method() -> list[Method]:
    return [
        kinds.dense(),
        kinds.top_k(K, [K, K]),
        kinds.top_theta(table_of(), K, compensated=True),
        kinds.top_theta(table_of(placement="post_softmax"), K, compensated=False),
        kinds.top_theta_capped(table_of(), K, "recent"),
        Method(
            "random", K, lambda model: apply_selection(model, lambda layer: select_random_k(K), statistics="summary")
        ),
    ]


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("method", every_method(), ids=lambda method: method.family)
def test_a_map_has_the_rows_that_the_statistics_count(method: Method, group: int) -> None:
    model = model_of()
    found = popularity(model, TEXT, method, layer=1, group=group, rows=ROWS)
    assert (found.layer, found.group, found.first_row, found.wanted.shape) == (1, group, 48, (ROWS, 60))
    assert found.wanted.dtype == torch.int8
    with torch.no_grad():
        cache = DynamicCache()
        model(TEXT[None, :-ROWS], past_key_values=cache)
        with method.enter(model) as recording:
            model(TEXT[None, -ROWS:], past_key_values=cache)
            summary = recording.summaries()[1]
    counted = [int((found.wanted == heads).sum()) for heads in (1, 2)]
    assert counted == summary.wanted_by[group].tolist()
    assert int(found.value_rows.sum()) == int(summary.value_rows[group])
    later = torch.arange(60) > torch.arange(48, 60)[:, None]
    assert not found.wanted[later].any()


def test_a_map_shows_which_rows() -> None:
    window = Method("window", 5, lambda model: apply_selection(model, lambda layer: select_last_k(5)))
    found = popularity(model_of(), TEXT, window, layer=0, rows=3).wanted
    expected = torch.zeros(3, 60, dtype=torch.int8)
    for row, at in enumerate((57, 58, 59)):
        expected[row, at - 4 : at + 1] = 2
    assert torch.equal(found, expected)


def test_a_row_in_which_nothing_passes_wants_its_largest_element() -> None:
    none = Method("none", 1, lambda model: apply_selection(model, lambda layer: lambda chunk: chunk.scores > torch.inf))
    found = popularity(model_of(), TEXT, none, layer=0, rows=5)
    assert found.wanted.sum(1).tolist() == [2] * 5


def test_the_model_is_as_before_and_gives_what_it_gave() -> None:
    model, method = model_of(), kinds.top_theta(table_of(), K, compensated=True)
    with torch.no_grad():
        before = model(TEXT[None]).logits
        first = popularity(model, TEXT, method, layer=1, rows=ROWS).wanted
        assert torch.equal(model(TEXT[None]).logits, before)
        assert torch.equal(popularity(model, TEXT, method, layer=1, rows=ROWS).wanted, first)


def test_a_map_survives_json() -> None:
    wanted = torch.randint(0, 12, (4, 9), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    found = PopularityMap(3, 1, 5, wanted)
    again = PopularityMap.from_json(json.loads(json.dumps(found.as_json())))
    assert (again.layer, again.group, again.first_row) == (3, 1, 5)
    assert torch.equal(again.wanted, wanted)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"layer": 2}, TopThetaValueError, "layer: expected 0 to 1, got 2"),
        ({"group": -1}, TopThetaValueError, "group: expected 0 to 1, got -1"),
        ({"rows": 60}, TopThetaValueError, "rows: expected 1 to 59, got 60"),
        ({"rows": 2.0}, TopThetaTypeError, "rows: expected an int, got 2.0"),
        ({"tokens": TEXT[None]}, TopThetaTypeError, r"tokens: expected a tensor \[T\] of one text, got \[1, 60\]"),
        ({"tokens": [1, 2]}, TopThetaTypeError, "got list"),
    ],
)
def test_unusable_arguments_are_refused(wrong, error, message) -> None:
    arguments = {"tokens": TEXT, "layer": 0, **wrong}
    with pytest.raises(error, match=message):
        popularity(model_of(), method=kinds.dense(), **arguments)


def test_a_method_that_selects_nothing_is_refused() -> None:
    model = new_model(layers=3)
    with pytest.raises(TopThetaNotImplementedError, match="selects elements in layer 2, got V mean only"):
        popularity(model, TEXT, kinds.value_mean_only([K] * 3), layer=2, rows=3)
