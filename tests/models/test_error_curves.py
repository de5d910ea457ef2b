"""Error curves of tiny models against the oracle, row by row, and the rules of their sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tests.models.tiny import model_of, new_model, tokens
from tests.tiers import full
from toptheta_npu.errors import TopThetaTypeError, TopThetaValueError
from toptheta_npu.fallback import reference
from toptheta_npu.models import calibrate, calibrate_error_curves, measure_budgets
from toptheta_npu.models.hook.attach import attached
from toptheta_npu.thresholds import ThresholdTable
from toptheta_npu.thresholds.budget import aims_of, levels_at
from toptheta_npu.thresholds.curves import ErrorCurves

KS = [4, 8, 16]
TEXTS = tokens(3, 48, seed=5)
LENGTHS = [12, 24, 48]


def table_for(model: PreTrainedModel, **options: Any) -> ThresholdTable:
    layers = model.config.num_hidden_layers
    return calibrate(
        model, tokens(6, 48, seed=1), k=KS, layer_k=[0] * layers, top_k_at_calibration=False, **options
    )  # fmt: skip


def measured(*arguments: Any, **options: Any) -> ErrorCurves:
    curves = calibrate_error_curves(*arguments, **options).curves
    assert curves is not None
    return curves


class _Seen:
    """Query, key, value of every layer and the stream before it, in one forward pass of a LLaMA."""

    def __init__(self, model: PreTrainedModel, text: Tensor) -> None:
        self.calls: dict[int, Any] = {}
        self.stream: dict[int, Tensor] = {}
        hooks = [
            layer.register_forward_pre_hook(lambda _, args, index=index: self.stream.update({index: args[0][0]}))
            for index, layer in enumerate(model.model.layers)
        ]

        class Rule:
            def __init__(self, layer: int) -> None:
                self.layer = layer

            def attend(rule, call: Any) -> Tensor:
                self.calls[rule.layer] = call
                return call.dense()

        with attached(model, Rule), torch.no_grad():
            model(text)
        for hook in hooks:
            hook.remove()


def _outputs(call: Any, row: int, threshold: Tensor, placement: str, sdc: str, vmc: bool) -> tuple[Tensor, Tensor]:
    """Output [Hq, D] of one row by the oracle in float64, and what it keeps [Hq, S]."""
    key, value = call.key[:, :, : row + 1].double(), call.value[:, :, : row + 1].double()
    result = reference.incremental_attention(
        call.query[:, :, row].double(), key, value, threshold[None].double(), placement=placement, sdc=sdc,
        scale_value=call.scaling, value_mean=value.mean(2) if vmc else None,
    )  # fmt: skip
    return result.out[0], result.keep[0]


def _brute_force(
    model: PreTrainedModel, table: ThresholdTable, levels: Tensor, sdc: str, vmc: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean squared errors of heads [1 + K, L, Hq] and of layers under ``levels`` [P, L, Hq], V rows, at length 48."""
    by_k = [table.at(k) for k in KS]
    heads, path, rows, count = 0.0, 0.0, 0.0, 0
    for text in TEXTS:
        seen = _Seen(model, text[None])
        for row in range(48):
            if (row + 1) ** 2 <= 24 * 48:  # nearer to 24 in the logarithm
                continue
            count += 1
            found = [_row(model, seen, layer, row, by_k, levels[:, layer], table.placement, sdc, vmc)
                     for layer in range(len(model.model.layers))]  # fmt: skip
            heads, path, rows = (total + torch.stack(part, 1) for total, part in
                                 zip((heads, path, rows), zip(*found, strict=True), strict=True))  # fmt: skip
    return heads / count, path / count, rows / count, torch.tensor(count)


def _row(
    model: PreTrainedModel, seen: _Seen, layer: int, row: int, by_k: list[Any], levels: Tensor, placement: str,
    sdc: str, vmc: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    call, length = seen.calls[layer], torch.tensor(row + 1)
    thetas = [torch.full((4,), torch.inf), *(at.rows(layer, length) for at in by_k)]
    weight = model.model.layers[layer].self_attn.o_proj.weight.double()
    dense = _outputs(call, row, torch.full((4,), -torch.inf), placement, sdc, vmc)[0]
    norm = (seen.stream[layer][row].double() + weight @ dense.flatten()).square().sum()
    heads = []
    for theta in thetas:
        off = _outputs(call, row, theta, placement, sdc, vmc)[0] - dense
        each = [(weight[:, 16 * head : 16 * (head + 1)] @ off[head]).square().sum() / norm for head in range(4)]
        heads.append(torch.stack(each))
    path, rows = [], []
    for chosen in levels:
        theta = torch.stack([thetas[int(level)][head] for head, level in enumerate(chosen)])
        out, keep = _outputs(call, row, theta, placement, sdc, vmc)
        path.append((weight @ (out - dense).flatten()).square().sum() / norm)
        rows.append(keep.view(2, 2, -1).any(1).sum(-1).double())
    return torch.stack(heads), torch.stack(path), torch.stack(rows)


@full
@pytest.mark.parametrize(
    ("placement", "sdc", "vmc"),
    [("pre_softmax", "exact", True), ("post_softmax", "exact", True), ("pre_softmax", "none", False)],
)
def test_errors_and_value_rows_are_those_of_the_oracle(placement: str, sdc: Any, vmc: bool) -> None:
    model = model_of()
    table = table_for(model, placement=placement)
    curves = measured(model, table, TEXTS, lengths=LENGTHS, sdc=sdc, vmc=vmc, row_fraction=1.0)
    levels = torch.stack(
        [levels_at(curves.error[..., -1], aims_of(table), float(price), vmc) for price in curves.price]
    )
    heads, path, rows, count = _brute_force(model, table, levels, sdc, vmc)
    assert curves.counts[-1] == count
    torch.testing.assert_close(curves.error[..., -1].double(), heads, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(curves.path_error[..., -1].double(), path, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(curves.path_value_rows[..., -1].double(), rows, rtol=1e-6, atol=0)
    assert (curves.sdc, curves.vmc) == (sdc, vmc)
    assert bool((curves.path_value_rows[0] < curves.path_value_rows[-1]).all())


def _same(one: ErrorCurves, other: ErrorCurves) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("error", "path_error", "price"))


def test_neither_the_order_of_the_texts_nor_the_number_of_threads_matters() -> None:
    model = model_of()
    table = table_for(model)
    first = measured(model, table, TEXTS, row_fraction=1.0)
    assert _same(first, measured(model, table, TEXTS.flip(0), row_fraction=1.0))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert _same(first, measured(model, table, TEXTS, row_fraction=1.0))
    finally:
        torch.set_num_threads(before)


def test_budgets_of_a_table_are_measured_on_other_texts() -> None:
    model = model_of()
    table = calibrate_error_curves(model, table_for(model), TEXTS, row_fraction=1.0)
    assert table.curves is not None
    again = measure_budgets(model, table, TEXTS, row_fraction=1.0)
    assert _same(again, table.curves)
    assert torch.equal(again.path_value_rows, table.curves.path_value_rows)
    others = tokens(3, 48, seed=6)
    own = measured(model, table, others, row_fraction=1.0)
    found = measure_budgets(model, table, others, row_fraction=1.0)
    assert torch.equal(found.price, table.curves.price)
    assert torch.equal(found.counts, own.counts)
    assert not torch.equal(found.path_error, table.curves.path_error)
    # where both choose the same they measure the same
    aims, alike = aims_of(table), 0
    for price, errors in zip(found.price.tolist(), found.path_error, strict=True):
        levels = levels_at(table.curves.error[..., -1], aims, price)
        for budget, own_price in enumerate(own.price.tolist()):
            if torch.equal(levels, levels_at(own.error[..., -1], aims, own_price)):
                assert torch.equal(errors, own.path_error[budget])
                alike += 1
    assert alike


def test_layers_with_a_sliding_window_are_left_out() -> None:
    kinds = ["full_attention", "sliding_attention"]
    model = new_model("qwen2", use_sliding_window=True, sliding_window=8, layer_types=kinds, max_window_layers=1)
    curves = measured(model, table_for(model), TEXTS)
    assert curves.measured.tolist() == [True, False]
    assert not curves.error[:, 1].any()
    assert not curves.path_value_rows[:, 1].any()


def test_a_convolution_as_output_projection_is_read_the_right_way_round() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=97, n_positions=64, bos_token_id=1, eos_token_id=1,
        initializer_range=0.2)).eval()  # fmt: skip
    curves = measured(model, table_for(model), TEXTS, row_fraction=1.0)
    weight = model.transformer.h[0].attn.c_proj.weight
    with torch.no_grad():
        model.transformer.h[0].attn.c_proj.weight.copy_(weight * torch.cat([torch.zeros(16), torch.ones(48)])[:, None])
    without = measured(model, table_for(model), TEXTS, row_fraction=1.0)
    assert curves.error[0, 0].min() > 0
    assert without.error[0, 0, 0].max() == 0
    assert without.error[0, 0, 1:].min() > 0


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    model = model_of()
    table = table_for(model)
    with pytest.raises(TopThetaValueError, match="lengths: expected one or more ascending row lengths"):
        measured(model, table, TEXTS, lengths=[20, 10])
    with pytest.raises(TopThetaValueError, match="lengths: expected an int from 1 to 48, got 49"):
        measured(model, table, TEXTS, lengths=[49])
    with pytest.raises(TopThetaValueError, match="row_fraction"):
        measured(model, table, TEXTS, row_fraction=0.0)
    nowhere = (
        "^row_fraction: expected a share that picks rows near every length, got 1e-06, with none near 12, 24, 48; "
    )
    with pytest.raises(TopThetaValueError, match=nowhere):
        measured(model, table, TEXTS, row_fraction=1e-6, checkpoint=tmp_path / "state")
    assert not list(tmp_path.iterdir())
    with pytest.raises(TopThetaValueError, match=nowhere):
        measure_budgets(model, calibrate_error_curves(model, table, TEXTS, row_fraction=1.0), TEXTS, row_fraction=1e-6)
    with pytest.raises(TopThetaTypeError, match="vmc: expected True or False"):
        measured(model, table, TEXTS, vmc=1)  # type: ignore[arg-type]
    with pytest.raises(TopThetaValueError, match="table: expected a table with error curves, got one without; measure"):
        measure_budgets(model, table, TEXTS)
    with pytest.raises(TopThetaValueError, match="row_fraction"):
        measure_budgets(model, calibrate_error_curves(model, table, TEXTS, row_fraction=1.0), TEXTS, row_fraction=0.0)
