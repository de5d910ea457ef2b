"""The tau of a wanted number of V rows: that many are read with it."""

from __future__ import annotations

import pytest
import torch

from tests.models.tiny import model_of, new_model, tokens
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.models import find_tau, sparsify

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.mark.parametrize("wanted", [6.0, 20.0])
def test_sparsify_reads_the_wanted_number_of_rows(wanted: float) -> None:
    ids = tokens(4, 60)
    tau = find_tau(model_of(), ids, value_rows=wanted, last_rows=10)
    with sparsify(model_of(), tau=tau, prefill="thresholded", statistics=True) as run:
        model_of()(ids)
    rows = torch.cat([layer.value_rows[layer.keys > 50].float().flatten() for layer in run.statistics()])
    assert abs(float(rows.mean()) - wanted) < 0.05 * wanted


def test_a_larger_number_takes_a_smaller_tau_and_no_order_of_the_texts_matters() -> None:
    ids = tokens(3, 40)
    found = [find_tau(model_of(), ids, value_rows=rows) for rows in (3, 9, 15)]
    assert found == sorted(found, reverse=True)
    assert find_tau(model_of(), list(ids.flip(0)), value_rows=9) == found[1]


def test_what_cannot_be_is_refused() -> None:
    ids = tokens(2, 30)
    with pytest.raises(
        TopThetaValueError, match="value_rows: expected fewer than the 30 keys that a row has on average, got 30"
    ):
        find_tau(model_of(), ids, value_rows=30, last_rows=1)
    with pytest.raises(TopThetaValueError, match=r"value_rows: expected a finite number >= 1, got 0\.5"):
        find_tau(model_of(), ids, value_rows=0.5)
    with pytest.raises(TopThetaTypeError, match="value_rows: expected a number, got str"):
        find_tau(model_of(), ids, value_rows="many")  # type: ignore[arg-type]
    with pytest.raises(TopThetaTypeError, match="sequences: expected token ids"):
        find_tau(model_of(), "text", value_rows=5)


def test_scores_that_are_no_numbers_are_refused_by_their_layer() -> None:
    model = new_model("llama")
    model.model.layers[1].self_attn.k_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(TopThetaValueError, match="scores of layer 1: expected finite elements or -inf, got NaN"):
        find_tau(model, tokens(2, 30), value_rows=5)
