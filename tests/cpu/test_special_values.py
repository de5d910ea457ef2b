"""NaN, infinities, huge and tiny numbers in query, K and V on every instruction set, against the oracle."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import PER_HEAD
from tests.cpu.driver import DONE, CaseFile, Result, build_driver, run_driver
from tests.cpu.native import ELEMENTS, EMULATED_LEVELS, OWN_LEVELS
from tests.helpers import tolerance
from tests.tiers import only, product
from toptheta_npu import fallback
from toptheta_npu.fallback import reference
from toptheta_npu.fallback.arguments import TABLE
from toptheta_npu.fallback.compensation import Compensation

INF, NAN = math.inf, math.nan
_COUNT = 150
#: With these and small whole numbers scores are exact, so that all implementations select alike.
_SPECIAL = {
    "query": (NAN, INF, -INF, -0.0, 512.0, -512.0),
    "key": (NAN, INF, -INF, -0.0, 512.0, -512.0, 1e-40, -1e-40),
    "value": (NAN, INF, -INF, -0.0, 1e38, -1e38, 1e-40),
}
#: Of a query head.
_NUMBERS = (-INF, -3e38, -900.0, 0.5, 4.0, 60.0, 900.0, 3e38)
_PATHS = ("auto", "gather", "dense")
#: What parts of rows do not take.
_OF_WHOLE_ROWS = {
    name for name, argument in TABLE.items() if "incremental_attention_partial" not in argument.about.operators
}
#: Each dtype is built for each instruction set with sanitizers, which takes long.
_ALL = [
    *only(lambda pair: pair == ("bfloat16", OWN_LEVELS[-1]), itertools.product(ELEMENTS, OWN_LEVELS)),
    *product(ELEMENTS, EMULATED_LEVELS),
]
_CLOSE = {"equal_nan": True, "check_dtype": False}


@dataclass(frozen=True)
class Drawn:
    """A step over small whole numbers with some special ones among them."""

    arguments: dict[str, Any]
    paths: tuple[str, ...]

    @staticmethod
    def of(seed: int, dtype: str) -> Drawn:
        draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        # a V row that is not finite spoils all heads that read it, wherever it is in V
        spoils_values = draw.random() < 0.3
        kv_heads, group = draw.randint(1, 2), 1 if spoils_values else draw.randint(1, 9)
        head_dim, n = draw.choice([16, 17, 32, 42, 64]), draw.randint(1, 70)
        start, heads, capacity = draw.randint(0, 5), kv_heads * group, n + 8

        def whole(*shape: int, largest: int, filled: int) -> Tensor:
            numbers = torch.randint(-largest, largest + 1, shape, generator=generator).float()
            numbers[..., filled:] = 0.0
            return numbers

        tensors = {
            "query": whole(1, heads, 1, head_dim, largest=3, filled=2),
            "key": whole(1, kv_heads, capacity, head_dim, largest=3, filled=2),
            "value": whole(1, kv_heads, capacity, head_dim, largest=8, filled=head_dim),
        }
        for name in ("value",) if spoils_values else ("query", "key"):
            for _ in range(draw.randint(0, 3)):
                place = tuple(draw.randrange(size) for size in tensors[name].shape)
                tensors[name][place] = draw.choice(_SPECIAL[name])
        thetas = [draw.choice([-INF, INF, 0.5, 2.0, 2.5, -3.5, 9.0, -1e38]) for _ in range(heads)]
        arguments = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()} | {
            "threshold": torch.tensor([thetas]), "actual_seq_lengths": torch.tensor([n]),
            "key_start": torch.tensor([start]), "num_heads": heads, "num_key_value_heads": kv_heads,
            "scale_value": 1.0,
        }  # fmt: skip
        return Drawn(
            arguments | _compensation(draw, heads, kv_heads, head_dim), ("gather",) if spoils_values else _PATHS
        )

    def file(self) -> CaseFile:
        file = CaseFile({name: value for name, value in self.arguments.items() if isinstance(value, Tensor)})
        part = {n: v for n, v in self.arguments.items() if n not in _OF_WHOLE_ROWS}
        for path in self.paths:
            file.add("incremental_attention_with_stats", self.arguments | {"path": path})
            file.add("incremental_attention_partial", part | {"path": path})
        return file

    def judge(self, results: list[Result]) -> None:
        given = {name: v.double() if isinstance(v, Tensor) else v for name, v in self.arguments.items()}
        rows = reference.Rows(
            given["query"][:, :, 0], given["key"], given["value"], given["threshold"], given["actual_seq_lengths"],
            given["key_start"], scale_value=1.0,
        )  # fmt: skip
        modes = {name: given[name] for name in _OF_WHOLE_ROWS if name in given}
        whole = reference.incremental_attention(rows, Compensation(**modes))
        plain = reference.incremental_attention(rows, Compensation("none"))
        # of the other rows only the output is defined: it is NaN
        defined = whole.maximum.isfinite()
        rounded = tolerance(self.arguments["query"].dtype)
        for statistics, partial in zip(results[::2], results[1::2], strict=True):
            assert (statistics.status, partial.status) == (DONE, DONE)
            out, lse, kept, value_rows = statistics.outputs
            wanted = whole.out.to(out.dtype)  # may be beyond float16
            torch.testing.assert_close(out[:, :, 0].double(), wanted.double(), **_CLOSE, **rounded)
            torch.testing.assert_close(lse[defined], whole.lse[defined], **_CLOSE, rtol=1e-5, atol=1e-5)
            assert torch.equal(kept[defined].long(), whole.kept[defined])
            assert not defined.all() or torch.equal(value_rows.long(), whole.value_rows)
            torch.testing.assert_close(partial.outputs[0][:, :, 0], plain.out, **_CLOSE, rtol=1e-5, atol=1e-5)


def _compensation(draw: random.Random, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    given: dict[str, Any] = {"sdc": draw.choice(["none", "exact", "exp_threshold", "offline"])}
    if given["sdc"] == "offline":
        given["discarded_mass"] = torch.full((1, heads), 0.5)
    for name in PER_HEAD:
        if draw.random() < 0.5:
            values = TABLE[name].about.values
            allowed = [one for one in _NUMBERS if values is None or values.least <= one < values.limit]
            given[name] = torch.tensor([draw.choice(allowed) for _ in range(heads)])
    if given["sdc"] != "none" and draw.random() < 0.5:
        given["value_mean"] = torch.linspace(-1, 1, kv_heads * head_dim).view(1, kv_heads, head_dim)
    return given


@pytest.mark.parametrize(("dtype", "level"), _ALL)
def test_special_numbers_do_what_they_do_in_the_oracle(dtype: str, level: str, tmp_path: Path) -> None:
    drawn = [Drawn.of(seed, dtype) for seed in range(_COUNT)]
    sanitizers = "" if level in [parameter.values[0] for parameter in EMULATED_LEVELS] else "address,undefined"
    results = run_driver(build_driver(dtype, level, sanitizers), level, tmp_path, [one.file() for one in drawn])
    spoilt = 0
    for seed, (one, found) in enumerate(zip(drawn, results, strict=True)):
        try:
            one.judge(found)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {one.arguments}") from error
        spoilt += int(found[0].outputs[0].isnan().any())
    assert spoilt > _COUNT / 5


def _rows_of_minus_infinity(dtype: str, theta: float) -> dict[str, Any]:
    """Two KV heads of two heads each, over several granules: the products of heads 0 and 2 overflow, 1 and 3 are 0.

    All keys of the first KV head do that, and of the second all but the last ones.
    """
    large, kind = 6e4, getattr(torch, dtype)
    query, key = torch.zeros(1, 4, 1, 512, dtype=kind), torch.full((1, 2, 300, 512), -large, dtype=kind)
    query[:, ::2], key[:, 1, 280:] = large, 0.0
    value = torch.arange(1, 301).remainder(17).to(kind).view(1, 1, 300, 1).repeat(1, 2, 1, 512)
    return {
        "query": query, "key": key, "value": value, "threshold": torch.full((1, 4), theta), "num_heads": 4,
        "num_key_value_heads": 2, "scale_value": 1e27,
    }  # fmt: skip


_MODES: list[dict[str, Any]] = [
    *({"sdc": sdc} for sdc in ("none", "exact", "exp_threshold")),
    {"sdc": "offline", "discarded_mass": torch.full((1, 4), 0.5), "value_mean": torch.ones(1, 2, 512)},
    {"sdc": "exact", "value_mean": torch.ones(1, 2, 512), "placement": "post_softmax"},
    {"sdc": "exact", "learnable_sink": torch.tensor([1.0, 1.0, -INF, 3e38])},
    {"learnable_sink": torch.tensor([1.0, 1.0, 3e38, -INF]), "placement": "post_softmax"},
]


@pytest.mark.parametrize(("dtype", "level"), _ALL)
def test_scores_of_minus_infinity_alone_have_no_mass(dtype: str, level: str, tmp_path: Path) -> None:
    files, expected = [], []
    for theta in (-INF, 1e-3, INF):
        rows = _rows_of_minus_infinity(dtype, theta)
        for mode in _MODES:
            whole = rows | mode
            part = {n: v for n, v in whole.items() if n not in _OF_WHOLE_ROWS}
            if "placement" in mode:
                part["lse"] = fallback.incremental_attention_with_stats(fallback.Arguments(**whole))[1]
            file = CaseFile({name: given for name, given in (whole | part).items() if isinstance(given, Tensor)})
            for path in _PATHS:
                for threads in (1, 3):
                    file.add("incremental_attention_with_stats", whole | {"path": path}, threads=threads)
                    file.add("incremental_attention_partial", part | {"path": path}, threads=threads)
            files.append(file)
            expected.append((
                fallback.incremental_attention_with_stats(fallback.Arguments(**whole)),
                fallback.incremental_attention_partial(fallback.Arguments(**part)),
            ))  # fmt: skip
    for found, wanted in zip(run_driver(build_driver(dtype, level), level, tmp_path, files), expected, strict=True):
        assert wanted[0][0][:, 0].count_nonzero() == 0
        assert (wanted[0][1][:, 0].item(), wanted[0][2][:, 0].item()) == (-INF, 0)
        for place, one in enumerate(found):
            assert one.status == DONE
            for got, right in zip(one.outputs, wanted[place % 2], strict=True):
                torch.testing.assert_close(got, right, check_dtype=True)
