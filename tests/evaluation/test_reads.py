"""Reads from summaries against figures computed from the rows themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pytest
import torch

from tests.models.tiny import K, model_of, new_model, tokens
from toptheta_npu.evaluation.methods.kinds import make_method
from toptheta_npu.evaluation.methods.method import KeyReads, Method
from toptheta_npu.evaluation.methods.top_k import select_top_k
from toptheta_npu.evaluation.read_counter import ReadCounter, SamplesRead, summarise
from toptheta_npu.evaluation.reads import Reads
from toptheta_npu.models import LayerStatistics, apply_selection, calibrate, sparsify
from toptheta_npu.models.sparse.statistics import Statistics

LENGTHS = (40, 12, 25)


def reads_of_rows(layers: Sequence[LayerStatistics]) -> Reads:
    rows = torch.cat([layer.value_rows.flatten() for layer in layers]).float()
    return Reads(
        torch.cat([layer.kept.flatten() for layer in layers]).float().mean().item(),
        rows.mean().item(),
        rows.kthvalue(round(0.95 * len(rows))).values.item(),
        rows.max().item(),
        torch.cat([layer.keys for layer in layers]).float().mean().item(),
        torch.cat([layer.empty.flatten() for layer in layers]).float().mean().item(),
    )


def run(kind: Statistics, lengths: Sequence[int], seed: int, k: int = K, **fields: object) -> object:
    """All samples by rows, or what a counter makes of their summaries."""
    model = new_model(layers=4)
    enter = sparsify(model, table(), k=k, prefill="thresholded", statistics=kind)
    if seed % 2:
        enter = apply_selection(model, lambda layer: select_top_k(K + layer), statistics=kind, targets=[K] * 4)
    counter = ReadCounter(Method("any", k, lambda model: enter, **fields))  # type: ignore[arg-type]
    with torch.no_grad(), enter as recording:
        for number, length in enumerate(lengths):
            model(tokens(1, length, seed=10 * seed + number))
            if kind == "summary":
                counter.add(recording.summaries())
                recording.clear()
        return recording.statistics() if kind == "rows" else counter.result()


def table():
    model = new_model(layers=4)
    return calibrate(model, tokens(4, 50, seed=1), k=K, layer_k=[16, 16, 0, 0], placement="post_softmax")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reads_are_those_of_the_rows_to_the_last_digit(seed: int) -> None:
    rows, found = run("rows", LENGTHS, seed), run("summary", LENGTHS, seed)
    assert isinstance(rows, list)
    assert isinstance(found, SamplesRead)
    for part, reads in ((rows[2:], found.reads), (rows, found.reads_all), *zip([[r] for r in rows], [
        layer.reads for layer in found.layers], strict=True)):  # fmt: skip
        expected = asdict(reads_of_rows(part)) | {"key_rows_mean": reads.keys_mean}
        assert asdict(reads) == expected | {"kept_over_target": reads.kept_over_target}
    sparse = torch.cat([layer.kept[layer.keys > K] for layer in rows[2:]]).double() / K
    assert found.reads.kept_over_target == pytest.approx(sparse.mean().item())


def test_layers_tell_kept_over_target() -> None:
    rows, found = run("rows", LENGTHS, 0), run("summary", LENGTHS, 0)
    assert isinstance(rows, list)
    assert isinstance(found, SamplesRead)
    for layer, each, target in zip(rows, found.layers, (16, 16, K, K), strict=True):
        sparse = layer.keys > target
        assert each.kept_over_target == pytest.approx((layer.kept[sparse].double().mean(0) / target).tolist())


def test_the_first_layers_score_every_key_whatever_the_method_does_after_them() -> None:
    found = run("summary", LENGTHS, 0, key_reads=KeyReads(0.25, 2.0))
    assert isinstance(found, SamplesRead)
    assert found.reads.key_rows_mean == 0.25 * found.reads.keys_mean + 2 * found.reads.value_rows_mean
    key_rows = [layer.reads.key_rows_mean for layer in found.layers]
    assert key_rows[:2] == [layer.reads.keys_mean for layer in found.layers[:2]]
    assert key_rows[2] == 0.25 * found.layers[2].reads.keys_mean + 2 * found.layers[2].reads.value_rows_mean
    assert found.reads_all.key_rows_mean == pytest.approx(sum(key_rows) / len(key_rows))


def test_layers_without_rows_read_nothing() -> None:
    model = model_of()
    with apply_selection(model, lambda layer: select_top_k(4), statistics="summary") as recording:
        empty = recording.summaries()
    reads = summarise(empty)
    assert (reads.kept_mean, reads.value_rows_p95, reads.keys_mean, reads.empty_share) == (0, 0, 0, 0)
    counter = ReadCounter(make_method("top-k", 4, targets=[4, 4]))
    counter.add(empty)
    found = counter.result()
    assert found.layers[0].kept_over_target == (None,) * 4
