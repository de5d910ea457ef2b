"""A planted defect of the host model reaches the operator; tests/npu shows what each of them does."""

from __future__ import annotations

import torch

from toptheta_host_model import OperatorRun, run_operator


def one_row_each(defect: str = "") -> OperatorRun:
    """Four heads with 64 keys, of which head h keeps row 9 h; the V rows hold their numbers."""
    key = torch.zeros(1, 4, 64, 16).half()
    key[0, range(4), [9 * head for head in range(4)]] = 1
    value = torch.arange(64).half().view(1, 1, 64, 1).repeat(1, 4, 1, 16)
    tensors = {"query": torch.ones(1, 4, 1, 16).half(), "key": key, "value": value, "threshold": torch.full((4,), 0.5)}
    heads = {"num_heads": 4, "num_key_value_heads": 4, "scale_value": 1.0, "sdc": "none"}
    return run_operator(tensors, heads, defect=defect)


def rows_read(run: OperatorRun) -> list[float]:
    rows: list[float] = run.outputs["attention_out"][0, :, 0, 0].tolist()
    return rows


def test_a_defect_is_planted_in_one_launch() -> None:
    assert rows_read(one_row_each()) == [0, 9, 18, 27]
    spoilt = one_row_each("reversed-mask-bits")
    assert rows_read(spoilt) == [7, 14, 21, 28]
    assert spoilt.run.findings == []
    assert rows_read(one_row_each()) == [0, 9, 18, 27]
