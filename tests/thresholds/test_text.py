"""The authors' files: what a table writes it reads back, and what cannot be read is named by its line."""

from __future__ import annotations

import contextlib
import gzip
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.thresholds import ThresholdTable

LENGTHS = (5, 9, 17, 40, 100)
LAYER_K = (0, 12)


def make(placement: str = "pre_softmax", seed: int = 0, **changes: Any) -> ThresholdTable:
    draw = torch.Generator().manual_seed(seed)
    shape = (1, 2, 3, len(LENGTHS))
    theta = torch.rand(shape, generator=draw)
    if placement == "pre_softmax":
        theta = 20 * theta - 10
    fields: dict[str, Any] = {
        "theta": theta, "k": torch.tensor([8]), "lengths": torch.tensor(LENGTHS),
        "counts": torch.randint(1, 99, shape[1:], generator=draw), "std": torch.zeros(shape), "placement": placement,
        "estimator": "algorithm1", "alpha": 0.1, "layer_k": LAYER_K, "fingerprint": "model",
        "discarded_mass": 100 * torch.rand(shape, generator=draw), "discarded_statistic": "mean",
    }  # fmt: skip
    return ThresholdTable(**{**fields, **changes})


def sparse(layer: int) -> torch.Tensor:
    return torch.tensor([length for length in LENGTHS if length > max(8, LAYER_K[layer])])


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_every_form_gives_every_threshold_back_exactly(
    placement: str, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("forms")
    table = make(placement, seed)
    table.export_text(folder / "th.txt", 8)
    table.export_csv(folder / "th.csv.gz", 8)
    table.export_sdc_text(folder / "sdc.txt", 8)
    text = ThresholdTable.from_text(folder / "th.txt", fingerprint="model", placement=placement)  # type: ignore[arg-type]
    csv = ThresholdTable.from_csv(
        folder / "th.csv.gz", k=8, layer_k=LAYER_K, fingerprint="model", placement=placement,  # type: ignore[arg-type]
    )  # fmt: skip
    text = text.with_sdc_text(folder / "sdc.txt")
    for layer in range(2):
        lengths = sparse(layer)
        for back in (text, csv):
            assert torch.equal(back.at(8).theta[layer][lengths], table.at(8).theta[layer][lengths])
        mine, theirs = table.at(8).discarded_mass, text.at(8).discarded_mass
        assert mine is not None
        assert theirs is not None
        assert torch.equal(theirs[layer][lengths], mine[layer][lengths])
    assert text.discarded_statistic == "mean"
    assert torch.equal(text.counts[0], table.counts[0][:, 1:])
    assert csv.layer_k == text.layer_k == LAYER_K
    assert (csv.counts.unique().tolist(), csv.k.tolist()) == ([0, 1], [8])
    for write, name in ((text.export_text, "th.txt"), (text.export_sdc_text, "sdc.txt"), (csv.export_csv, "th.csv.gz")):
        write(folder / "again", 8)
        assert (folder / "again").read_bytes() == (folder / name).read_bytes()


def test_the_lines_of_an_sdc_file_are_those_of_the_authors(tmp_path: Path) -> None:
    make(discarded_mass=torch.full((1, 2, 3, 5), 0.25)).export_sdc_text(tmp_path / "sdc.txt", 8)
    lines = (tmp_path / "sdc.txt").read_text().splitlines()
    counts = make().counts
    assert lines[0] == f"L0_H0:9 0.25 {counts[0, 0, 1]}"
    assert len(lines) == 3 * (4 + 3)
    with pytest.raises(TopThetaValueError, match="discarded_mass: expected a table calibrated with it, got None"):
        make(discarded_mass=None, discarded_statistic=None).export_sdc_text(tmp_path / "sdc.txt", 8)


def test_csv_need_not_be_packed(tmp_path: Path) -> None:
    make().export_csv(tmp_path / "packed", 8)
    (tmp_path / "plain.csv").write_bytes(gzip.decompress((tmp_path / "packed").read_bytes()))
    options: dict[str, Any] = {"k": 8, "layer_k": LAYER_K, "fingerprint": "model"}
    packed, plain = (ThresholdTable.from_csv(tmp_path / name, **options) for name in ("packed", "plain.csv"))
    assert torch.equal(packed.theta, plain.theta)


def test_the_mass_of_nearby_lengths_is_pooled_by_their_counts(tmp_path: Path) -> None:
    lines = [f"L0_H{head}:{length} {mass} {count}" for head in range(3)
             for length, mass, count in ((9, 1.0, 3), (10, 3.0, 1), (100, 8.0, 2))]  # fmt: skip
    lines += [f"L1_H{head}:{length} 2.5 1" for head in range(3) for length in (17, 40, 100)]
    (tmp_path / "sdc.txt").write_text("\n".join(lines))
    mass = make().with_sdc_text(tmp_path / "sdc.txt").discarded_mass
    assert mass is not None
    between = 1.5 + 6.5 * math.log(17 / 9) / math.log(100 / 9)
    assert mass[0, 0, 0, [1, 2, 4]].tolist() == pytest.approx([1.5, between, 8.0])
    assert mass[0, 1, :, 2:].unique().tolist() == [2.5]
    assert mass[0, 0, 0, 0].isfinite()


CSV = "layer,head,seq_len,threshold"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("0,0,9,1.0", {}, f"line 1: expected the header {CSV}, got '0,0,9,1.0'"),
        ("", {}, f"line 1: expected the header {CSV}, got ''"),
        (CSV, {}, "expected lines of the form <layer>,<head>,<length>,<threshold>, got none"),
        (f"{CSV}\n0,0,9,1.0\n0,0,17", {}, "line 3: expected <layer>,<head>,<length>,<threshold>, got '0,0,17'"),
        (f"{CSV}\n\n0,0,9,one", {}, "line 3: expected a number as threshold, got one"),
        (f"{CSV}\n0,0,9,nan", {}, "line 2: expected a number as threshold, got NaN"),
        (f"{CSV}\n0,0,9,1e999", {}, r"line 2: expected a number up to 3\.403e\+38, .* got 1e999; write inf or -inf"),
        (f"{CSV}\n0,0,9,-4e38", {}, r"line 2: expected a number up to 3\.403e\+38, as float32 holds it, got -4e38"),
        (f"{CSV}\n0,0,9,1_0", {}, "line 2: expected a number as threshold, got 1_0; write it in the digits 0 to 9"),
        (f"{CSV}\n0,0,9,\u0661.5", {}, "line 2: expected a number as threshold, got \u0661.5"),
        (f"{CSV}\n0,0,\u0669,1.0", {}, "line 2: expected <layer>,<head>,<length>,<threshold>, got '0,0,\u0669,1.0'"),
        (f"{CSV}\n0,0,8,1.0", {}, "line 2: expected 1 <= k < length .*, got k=8, length=8"),
        (f"{CSV}\n0,0,9,1.0", {"layer_k": [9]}, "line 2: expected 1 <= k < length .*, got k=9, length=9"),
        (f"{CSV}\n0,0,9,1.0\n0,0,9,1.0", {}, r"line 3: expected one line for L0_H0:9.*first is line 2"),
        (f"{CSV}\n0,0,9,1.0\n1,1,9,1.0", {}, "expected lines for 2 layers x 2 heads, got none for L0_H1"),
        (f"{CSV}\n0,0,9,1.0", {"layer_k": [0, 0]}, "layer_k: expected 1 numbers, one per layer of .*, got 2"),
        (f"{CSV}\n0,0,99999999,1.0", {}, "line 2: expected a length from 1 to 16777216, got 99999999"),
        (f"{CSV}\n0,0,9,1.0", {"k": 0}, "k: expected 1 to 16777216, got 0"),
        (f"{CSV}\n0,0,9,2.0", {"placement": "post_softmax"}, "theta: expected probabilities of at most 1"),
        (f"{CSV}\n0,0,9,1.0", {"placement": "middle"}, "placement: expected one of"),
        (gzip.compress(CSV.encode(), mtime=0)[:-9], {}, "expected a gzip file, got a damaged one"),
        (b"\x1f\x8bmore", {}, "expected a gzip file, got a damaged one"),
    ],
)
def test_unusable_csv_is_refused_with_its_line(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "th.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TopThetaValueError, match=message):
        ThresholdTable.from_csv(path, **{"k": 8, "fingerprint": "model", **options})


def test_k_and_layer_k_of_a_csv_are_ints(tmp_path: Path) -> None:
    make().export_csv(tmp_path / "th", 8)
    with pytest.raises(TopThetaTypeError, match=r"k: expected an int, got 8\.0"):
        ThresholdTable.from_csv(tmp_path / "th", k=8.0, fingerprint="model")  # type: ignore[arg-type]
    with pytest.raises(TopThetaValueError, match=r"layer_k: expected layers 0 to 1, which .* has, got layer 7"):
        ThresholdTable.from_csv(tmp_path / "th", k=8, layer_k={1: 12, 7: 12}, fingerprint="model")
    with pytest.raises(TopThetaValueError, match=r"layer_k: expected layers from 0, and a k from 0 to .*, got 1: -1"):
        ThresholdTable.from_csv(tmp_path / "th", k=8, layer_k=[0, -1], fingerprint="model")
    with pytest.raises(TopThetaTypeError, match=r"layer_k: expected ints, got 0: 1\.5"):
        ThresholdTable.from_csv(tmp_path / "th", k=8, layer_k=[1.5], fingerprint="model")  # type: ignore[list-item]
    assert ThresholdTable.from_csv(tmp_path / "th", k=8, layer_k={1: 12}, fingerprint="model").layer_k == LAYER_K
    with pytest.raises(TopThetaTypeError, match=r"layer_k: expected a list or tuple of ints, or a mapping .* got '0'"):
        ThresholdTable.from_csv(tmp_path / "th", k=8, layer_k="0", fingerprint="model")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["L0_H0:9 1.0"], "line 1: expected L<layer>_H<head>:<length> <discarded mass> <samples>, got 'L0_H0:9 1.0'"),
        (["L0_H0:9 1.0 3", "L0_H0:17 1.0 3 8"], "line 2: expected L<layer>_H<head>:<length> <discarded mass>"),
        (["L0_H0:9 nan 3"], "line 1: expected a finite mass of at least 0, got nan"),
        (["L0_H0:9 -0.1 3"], "line 1: expected a finite mass of at least 0, got -0.1"),
        (["L0_H0:9 1e999 3"], r"line 1: expected a number up to 3\.403e\+38, as float32 holds it, got 1e999"),
        (["L0_H0:9 1.0 \u0663"], "line 1: expected L<layer>_H<head>:<length> <discarded mass> <samples>, got"),
        (["L0_H0:9 inf 3"], "line 1: expected a finite mass of at least 0, got inf"),
        (["", "L0_H0:8 1.0 3"], "line 2: expected a length above 8, up to which rows of layer 0 are dense, got 8"),
        (["L1_H0:9 1.0 3"], "line 1: expected a length above 12, up to which rows of layer 1 are dense, got 9"),
        (["L2_H0:17 1.0 3"], "line 1: expected 2 layers x 3 heads, got L2_H0"),
        (["L0_H3:17 1.0 3"], "line 1: expected 2 layers x 3 heads, got L0_H3"),
        (["L0_H0:9 1.0 3", "L0_H0:9 1.0 3"], "line 2: expected one line for L0_H0:9"),
        (["L0_H0:9 1.0 3"], "expected lines for every head that has thresholds, got none for L0_H1"),
        ([""], "expected lines of the form L<layer>_H<head>:<length> <discarded mass> <samples>, got none"),
    ],
)
def test_unusable_sdc_is_refused_with_its_line(tmp_path: Path, lines: list[str], message: str) -> None:
    (tmp_path / "sdc.txt").write_text("\n".join(lines))
    with pytest.raises(TopThetaValueError, match=message) as caught:
        make().with_sdc_text(tmp_path / "sdc.txt")
    assert str(tmp_path / "sdc.txt") in str(caught.value)


def test_an_sdc_file_is_of_one_k(tmp_path: Path) -> None:
    shape = (2, 2, 3, 5)
    table = make(k=torch.tensor([4, 8]), theta=torch.rand(shape), std=torch.zeros(shape), discarded_mass=None,
                 discarded_statistic=None)  # fmt: skip
    with pytest.raises(TopThetaValueError, match=r"table: expected a table of one k, got \[4, 8\]; the file is of"):
        table.with_sdc_text(tmp_path / "sdc.txt")


words = st.sampled_from(
    ["L0_H0:9", "L0_H0:17", "1.0", "nan", "3", "8", "-1", "0,0,9,1.0", CSV, "\0", "é", "1e400", "9" * 40]
)


@given(st.lists(st.lists(words, max_size=5).map(" ".join), max_size=5).map("\n".join))
@settings(max_examples=150, deadline=None)
def test_any_lines_are_read_or_refused_in_words(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn"
    path.write_text(content)
    reads: list[Any] = [
        lambda: ThresholdTable.from_text(path, fingerprint="model"),
        lambda: ThresholdTable.from_csv(path, k=8, fingerprint="model"),
        lambda: make().with_sdc_text(path),
    ]
    for read in reads:
        with contextlib.suppress(TopThetaError):
            assert isinstance(read(), ThresholdTable)
