"""The heads that want each V row, against the statistics of the same run and against masks by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from benchmarks.evaluation_study.popularity import Place, RuleOf, packed, unpacked, wanted_rows
from tests.models.tiny import K, model_of, table_of, tokens
from toptheta_npu.evaluation.methods.last_k import select_last_k
from toptheta_npu.evaluation.methods.random_k import select_random_k
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.evaluation.methods.top_theta import select_above
from toptheta_npu.models import apply_selection

TEXT, ROWS = tokens(1, 60)[0], 12


def above(layer: int) -> object:
    at_k = table_of().at(K)
    return select_above(lambda lengths: at_k.rows(layer, lengths), "pre_softmax")


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize(
    "rule_of", [lambda _: select_top_k(K), lambda _: select_random_k(K), above], ids=["top-k", "random-k", "top-theta"]
)
def test_a_map_has_the_rows_that_the_statistics_count(rule_of: RuleOf, group: int) -> None:
    model = model_of()
    wanted = wanted_rows(model, TEXT, rule_of, Place(1, group), ROWS)
    assert (wanted.shape, wanted.dtype) == ((ROWS, 60), torch.int8)
    with torch.no_grad():
        cache = DynamicCache()
        model(TEXT[None, :-ROWS], past_key_values=cache)
        with apply_selection(model, rule_of, statistics="summary") as recording:
            model(TEXT[None, -ROWS:], past_key_values=cache)
            summary = recording.summaries()[1]
    assert [int((wanted == heads).sum()) for heads in (1, 2)] == summary.wanted_by[group].tolist()
    assert int((wanted > 0).sum()) == int(summary.value_rows[group])
    later = torch.arange(60) > torch.arange(48, 60)[:, None]
    assert not wanted[later].any()


def test_a_map_shows_which_rows() -> None:
    found = wanted_rows(model_of(), TEXT, lambda _: select_last_k(5), Place(0, 0), 3)
    expected = torch.zeros(3, 60, dtype=torch.int8)
    for row, at in enumerate((57, 58, 59)):
        expected[row, at - 4 : at + 1] = 2
    assert torch.equal(found, expected)


def test_a_row_in_which_nothing_passes_wants_its_largest_element() -> None:
    found = wanted_rows(model_of(), TEXT, lambda _: lambda chunk: chunk.scores > torch.inf, Place(0, 0), 5)
    assert found.sum(1).tolist() == [2] * 5


def test_a_map_survives_json() -> None:
    wanted: Tensor = torch.randint(0, 12, (4, 9), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    assert np.array_equal(unpacked(json.loads(json.dumps(packed(wanted)))), wanted.numpy())
