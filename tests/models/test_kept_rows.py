"""What thresholds keep of held-out rows, at all k at once, against what `sparsify` keeps at each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.tiny import model_of, new_model, tokens
from toptheta_npu.models import calibrate, sparsify
from toptheta_npu.models.calibration.kept_rows import count_kept

KS = [3, 6, 12]
HELD_OUT = tokens(2, 40, seed=9)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
def test_every_k_counts_as_in_a_run_of_its_own(placement: Any) -> None:
    """In the first layer, which sees the same in both; the last k is above the least k of the layer."""
    model = model_of()
    table = calibrate(
        model, tokens(4, 40, seed=1), k=KS, layer_k=[6, 0], top_k_at_calibration=False,
        estimator="pooled", placement=placement,
    )  # fmt: skip
    done: list[int] = []
    rows = count_kept(model, table, HELD_OUT, progress=done.append)[0]
    assert done == [1, 2]
    for place, k in enumerate(KS):
        with torch.no_grad(), sparsify(model, table, k=k, prefill="thresholded", statistics=True) as recording:
            for text in HELD_OUT:
                model(text[None])
        expected = recording.statistics()[0]
        assert rows.lengths.tolist() == expected.keys.tolist()
        assert torch.equal(rows.kept[place], expected.kept)
        assert torch.equal(rows.value_rows[place], expected.value_rows)


def test_rows_in_which_nothing_passes_keep_their_largest() -> None:
    model = model_of()
    table = calibrate(
        model, tokens(4, 40, seed=1), k=[3], layer_k=[0, 0], top_k_at_calibration=False, placement="pre_softmax"
    )
    nothing = type(table)(**{**vars(table), "theta": torch.full_like(table.theta, 1e6)})
    rows = count_kept(model, nothing, HELD_OUT)[1]
    sparse = rows.lengths > 3
    assert rows.kept[0, sparse].unique().tolist() == [1]
    assert 1 <= int(rows.value_rows[0, sparse].min()) <= int(rows.value_rows[0, sparse].max()) <= 2


def test_layers_with_a_sliding_window_are_left_out() -> None:
    kinds = ["full_attention", "sliding_attention"]
    model = new_model("qwen2", use_sliding_window=True, sliding_window=8, layer_types=kinds, max_window_layers=1)
    table = calibrate(model, tokens(4, 40, seed=1), k=[3], layer_k=[0, 0], top_k_at_calibration=False)
    assert list(count_kept(model, table, HELD_OUT)) == [0]


def test_a_share_of_the_rows_is_looked_at() -> None:
    model = model_of()
    table = calibrate(model, tokens(4, 40, seed=1), k=[3], layer_k=[0, 0], top_k_at_calibration=False)
    some, all_rows = (count_kept(model, table, HELD_OUT, row_fraction=share)[1] for share in (0.5, 1.0))
    assert len(some.lengths) == 40
    assert len(all_rows.lengths) == 80
