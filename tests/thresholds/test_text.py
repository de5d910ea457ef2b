"""The authors' files: what a table writes it reads back, and what cannot be read is named by its line."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toptheta_npu.errors import TopThetaError, TopThetaValueError
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
    table.export_sdc_text(folder / "sdc.txt", 8)
    text = ThresholdTable.from_text(folder / "th.txt", fingerprint="model", placement=placement)  # type: ignore[arg-type]
    text = text.with_sdc_text(folder / "sdc.txt")
    for layer in range(2):
        lengths = sparse(layer)
        assert torch.equal(text.at(8).theta[layer][lengths], table.at(8).theta[layer][lengths])
        mine, theirs = table.at(8).discarded_mass, text.at(8).discarded_mass
        assert mine is not None
        assert theirs is not None
        assert torch.equal(theirs[layer][lengths], mine[layer][lengths])
    assert text.discarded_statistic == "mean"
    assert torch.equal(text.counts[0], table.counts[0][:, 1:])
    assert text.layer_k == LAYER_K
    for write, name in ((text.export_text, "th.txt"), (text.export_sdc_text, "sdc.txt")):
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


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["L0_H0:9 1.0 3", "L0_H0:17 1.0 3 8"], "line 2: expected L<layer>_H<head>:<length> <discarded mass>"),
        (["L0_H0:9 -0.1 3"], "line 1: expected a finite mass of at least 0, got 'L0_H0:9 -0.1 3'"),
        (["L0_H0:9 inf 3"], "line 1: expected a finite mass of at least 0"),
        (["", "L1_H0:9 1.0 3"], "line 2: expected a length above the k of its layer, up to which rows are dense, got"),
        (["L2_H0:17 1.0 3"], "line 1: expected 2 layers x 3 heads, got 'L2_H0:17 1.0 3'"),
        (["L0_H3:17 1.0 3"], "line 1: expected 2 layers x 3 heads"),
        (["L0_H0:9 1.0 3"], "expected lines for every head that has thresholds, got none for L0_H1"),
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


words = st.sampled_from(["L0_H0:9", "L0_H0:17", "1.0", "nan", "3", "8", "-1", "\0", "é", "1e400", "9" * 40])


@given(st.lists(st.lists(words, max_size=5).map(" ".join), max_size=5).map("\n".join))
@settings(max_examples=150, deadline=None)
def test_any_lines_are_read_or_refused_in_words(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn"
    path.write_text(content)
    reads: list[Any] = [
        lambda: ThresholdTable.from_text(path, fingerprint="model"),
        lambda: make().with_sdc_text(path),
    ]
    for read in reads:
        with contextlib.suppress(TopThetaError):
            assert isinstance(read(), ThresholdTable)
