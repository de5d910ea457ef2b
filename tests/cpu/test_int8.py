"""int8 caches on the native kernel: equal bits on every instruction set, scales where engines put them, wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import CASES, Case
from tests.cpu.driver import BAD_VALUES, DONE, CaseFile, build_driver, run_driver
from tests.cpu.driver_cases import with_packed_scales
from tests.cpu.native import (
    ALL_LEVELS,
    ELEMENTS,
    EMULATED_LEVELS,
    OWN_LEVELS,
    operator_arguments,
    operators,
    same_bits,
    using,
)
from tests.helpers import assert_equals_oracle, make_inputs
from tests.random_cases import largest_score
from tests.tiers import only
from toptheta_npu import TopThetaValueError, incremental_attention_with_stats, use_backend
from toptheta_npu.cpu.plans import make_plan
from toptheta_npu.fallback import Arguments

INF, NAN = math.inf, math.nan
_INT8 = [case for case in CASES if case.int8]
_EMULATED = [parameter.values[0] for parameter in EMULATED_LEVELS]


def quantised(rows: Tensor, dims: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Numbers of int8, and the scales that are left when these dimensions go."""
    scale = rows.abs().amax(dims, keepdim=True) / 127
    return (rows / scale).round().to(torch.int8), scale.squeeze(dims)


def one_key_each(dtype: str, head_dim: int, *, by_row: bool) -> dict[str, Any]:
    """Many sequences of one key, whose score is the maximum of its part, on the keys of one cache."""
    draw = torch.Generator().manual_seed(head_dim)
    key = torch.randn(40, 2, 1, head_dim, generator=draw) * torch.logspace(-1, 1, head_dim)
    numbers, scale = quantised(key, -1 if by_row else (0, 2))
    query = torch.randn(40, 14, 1, head_dim, generator=draw).to(getattr(torch, dtype))
    return {
        "query": query, "key": numbers, "value": query[:, :2].clone(), "threshold": torch.full((14,), -INF),
        "key_antiquant_scale": scale, "key_antiquant_mode": 3 if by_row else 0, "num_heads": 14,
        "num_key_value_heads": 2, "scale_value": head_dim**-0.5,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", only({"bfloat16"}, ELEMENTS))
def test_every_instruction_set_gives_the_same_bits_of_scores(dtype: str, tmp_path: Path) -> None:
    files = []
    for head_dim in (16, 40, 64, 128, 512):
        for by_row in (False, True):
            arguments = one_key_each(dtype, head_dim, by_row=by_row)
            file = CaseFile({name: given for name, given in arguments.items() if isinstance(given, Tensor)})
            file.add("incremental_attention_partial", arguments)
            files.append((arguments, file))
    by_level = {}
    for parameter in ALL_LEVELS:
        if not any(mark.args[0] for mark in parameter.marks if mark.name == "skipif"):
            (level,) = parameter.values
            folder = tmp_path / level
            folder.mkdir()
            found = run_driver(build_driver(dtype, level), level, folder, [file for _, file in files])
            by_level[level] = [one.outputs[1] for (one,) in found]
    first = next(iter(by_level.values()))  # a machine without AVX-512 has one instruction set alone
    for scores in by_level.values():
        assert same_bits(tuple(scores), tuple(first))
    for (arguments, _), scores in zip(files, first, strict=True):
        key, scale = arguments["key"].double(), arguments["key_antiquant_scale"].double()
        rows = key * (scale[..., None] if arguments["key_antiquant_mode"] else scale[None, :, None])
        query = arguments["query"][:, :, 0].double().unflatten(1, (2, 7))
        wanted = torch.einsum("bhgd,bhd->bhg", query, rows[:, :, 0]).flatten(1) * arguments["scale_value"]
        allowed = 1e-6 if dtype == "float32" else 3e-4  # q is rounded to 2^-30 or 2^-15 of its largest number
        assert float((scores - wanted).abs().max()) < allowed * float(wanted.abs().max())


@pytest.mark.parametrize("level", OWN_LEVELS)
@pytest.mark.parametrize("scales_as", ["float32", "float16", "bfloat16"])
def test_scales_inside_the_rows_as_engines_put_them(level: str, scales_as: str) -> None:
    """A row is [K | scale | V | scale]: every second row begins at an address that is no multiple of 8."""
    case = Case("inside", dtype="bfloat16", int8="both", scales="token", scales_as=scales_as, head_dim=128, kv_heads=2,
                paged="4d", block_size=16, lengths=(300, 33, 0, 1), heads=8)  # fmt: skip
    inputs = make_inputs(case, poison=("outside",))
    arguments = operator_arguments(inputs)
    key, kind = arguments["key"], getattr(torch, scales_as)
    width = 2 * (128 + kind.itemsize)
    rows = torch.zeros(*key.shape[:3], width, dtype=torch.int8)
    scales = rows.view(kind)
    for name, first in (("key", 0), ("value", width // 2)):
        rows[..., first : first + 128] = arguments[name]
        place = (first + 128) // kind.itemsize
        scales[..., place] = arguments[f"{name}_antiquant_scale"]
        arguments[name] = rows[..., first : first + 128]
        arguments[f"{name}_antiquant_scale"] = scales[..., place]
    with using(level, threads=2):
        for path in ("auto", "gather", "dense"):
            assert_equals_oracle(inputs, operators.incremental_attention_with_stats(Arguments(**arguments, path=path)))


def _step(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A step of scales per row with one large key, which a threshold of +inf keeps alone: number 20."""
    key = torch.ones(1, 1, 40, 16, dtype=torch.int8)
    key[:, :, 20] = 100
    scales = {f"{name}_antiquant_scale": torch.ones(1, 1, 40) for name in ("key", "value")}
    modes = {f"{name}_antiquant_mode": 3 for name in ("key", "value")}
    return {
        "query": torch.ones(1, 2, 1, 16, dtype=dtype), "key": key, "value": key.clone(),
        "threshold": torch.full((2,), 20.0), "actual_seq_lengths": torch.tensor([37]), **scales, **modes,
    }  # fmt: skip


def _spoil(name: str, place: int, wrong: float) -> Callable[[dict[str, Any]], None]:
    def spoil(arguments: dict[str, Any]) -> None:
        arguments[f"{name}_antiquant_scale"][..., place] = wrong

    return spoil


def _spoil_channel(name: str, wrong: float) -> Callable[[dict[str, Any]], None]:
    def spoil(arguments: dict[str, Any]) -> None:
        arguments[f"{name}_antiquant_mode"] = 0
        arguments[f"{name}_antiquant_scale"] = torch.ones(1, 16).index_fill(1, torch.tensor([15]), wrong)

    return spoil


_WRONG = [
    *((name, _spoil(name, 20, wrong)) for name in ("key", "value") for wrong in (-1.0, NAN, INF, -INF)),
    *(("key", _spoil("key", place, NAN)) for place in (0, 35, 36)),
    *((name, _spoil_channel(name, wrong)) for name in ("key", "value") for wrong in (-1.0, NAN, INF)),
]  # fmt: skip


@pytest.mark.parametrize("theta", [20.0, INF, -INF])
@pytest.mark.parametrize(("name", "spoil"), _WRONG)
def test_a_wrong_scale_that_is_read_is_named(name: str, spoil: Callable[[dict[str, Any]], None], theta: float) -> None:
    arguments = _step() | {"threshold": torch.full((2,), theta)}
    spoil(arguments)
    with (
        use_backend("native", device="cpu"),
        pytest.raises(TopThetaValueError, match=rf"^{name}_antiquant_scale: expected finite numbers >= 0, got"),
    ):
        incremental_attention_with_stats(**arguments)


def test_scales_that_are_not_read_may_be_anything() -> None:
    arguments = _step()
    with use_backend("native", device="cpu"):
        expected = incremental_attention_with_stats(**arguments)
        assert expected[2].tolist() == [[1, 1]]
        for name, places in (("key", slice(37, 40)), ("value", slice(0, 20)), ("value", slice(21, 40))):
            arguments[f"{name}_antiquant_scale"][..., places] = NAN
        assert same_bits(incremental_attention_with_stats(**arguments), expected)


@pytest.mark.parametrize("level", only(lambda level: level is OWN_LEVELS[-1], OWN_LEVELS))
def test_a_wrong_channel_is_found_before_anything_is_written(level: str, tmp_path: Path) -> None:
    arguments = _step() | {"num_heads": 2, "num_key_value_heads": 1, "scale_value": 0.25}
    _spoil_channel("value", NAN)(arguments)
    file = CaseFile({name: given for name, given in arguments.items() if isinstance(given, Tensor)})
    file.add("incremental_attention_with_stats", arguments)
    ((found,),) = run_driver(build_driver("float32", level, "address,undefined"), level, tmp_path, [file])
    assert found.status == BAD_VALUES
    assert all(set(output.view(torch.uint8).flatten().tolist()) == {0xA5} for output in found.outputs)


@pytest.mark.parametrize("wrong", [NAN, INF])
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_a_query_that_is_not_finite_spoils_its_head_alone(dtype: str, wrong: float) -> None:
    arguments = _step(getattr(torch, dtype))
    with use_backend("native", device="cpu"):
        expected = incremental_attention_with_stats(**arguments)[0]
        arguments["query"][:, 1, :, 3] = wrong
        found = incremental_attention_with_stats(**arguments)[0]
    assert torch.equal(found[:, 0], expected[:, 0])
    assert found[:, 1].isnan().all()


@pytest.mark.parametrize("level", ALL_LEVELS)
@pytest.mark.parametrize("head_dim", [16, 512])
def test_the_largest_numbers_do_not_overflow(level: str, head_dim: int, tmp_path: Path) -> None:
    """All of q at its largest, all of K -128: the sums of products are as large as they become."""
    arguments = {
        "query": torch.full((1, 1, 1, head_dim), 3.0), "value": torch.ones(1, 1, 20, head_dim),
        "key": torch.full((1, 1, 20, head_dim), -128, dtype=torch.int8), "threshold": torch.tensor([-INF]),
        "key_antiquant_scale": torch.full((1, head_dim), 0.5), "num_heads": 1, "num_key_value_heads": 1,
        "scale_value": 1.0,
    }  # fmt: skip
    file = CaseFile({name: given for name, given in arguments.items() if isinstance(given, Tensor)})
    file.add("incremental_attention_partial", arguments)
    sanitizers = "" if level in _EMULATED else "address,undefined"
    ((found,),) = run_driver(build_driver("float32", level, sanitizers), level, tmp_path, [file])
    assert found.status == DONE
    torch.testing.assert_close(found.outputs[1], torch.full((1, 1), -3.0 * 64 * head_dim), rtol=1e-6, atol=0)


def test_scales_of_the_driver_are_those_that_the_operator_packs() -> None:
    arguments = operator_arguments(make_inputs(_INT8[0]))
    packed = with_packed_scales(arguments)
    with using(OWN_LEVELS[-1].values[0]):
        found = [operators.incremental_attention(Arguments(**given)) for given in (arguments, packed)]
    assert same_bits((found[0],), (found[1],))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["[Hkv, D]", "[Hkv * D]", "[Hkv, 1, D]", "columns", "[Hkv, 1]"])
def test_scales_of_channels_are_read_where_they_lie_if_they_can_be(form: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    scale = (torch.rand(2, 16).clamp_min(0.1)).to(dtype)
    given = {
        "[Hkv, D]": scale, "[Hkv * D]": scale.flatten(), "[Hkv, 1, D]": scale[:, None],
        "columns": scale.T.contiguous().T, "[Hkv, 1]": scale[:, :1],
    }[form]  # fmt: skip
    cache = torch.randint(-127, 128, (1, 2, 40, 16), dtype=torch.int8)
    arguments = Arguments(
        4, 2, 0.25, torch.randn(1, 4, 1, 16), cache, cache.flip(2), torch.zeros(4),
        key_antiquant_scale=given, value_antiquant_scale=given,
    )  # fmt: skip
    whole = given.expand(2, 16).float().contiguous() if form == "[Hkv, 1]" else scale.float()
    expected = arguments._replace(key_antiquant_scale=whole, value_antiquant_scale=whole)
    lie_well = form not in ("columns", "[Hkv, 1]") and dtype == torch.float32
    assert len(make_plan(arguments, operators.WITH_STATISTICS).copied) == (0 if lie_well else 2)
    with using(OWN_LEVELS[-1].values[0]):
        found = [operators.incremental_attention_with_stats(each) for each in (arguments, expected)]
    assert same_bits(*found)


@pytest.mark.parametrize("level", OWN_LEVELS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_channel_that_holds_nearly_all_of_the_score_moves_no_selection(dtype: str, level: str) -> None:
    """One word of 16 bits for each number of the query would be off by more than the gap around thresholds."""
    case = Case("one-channel", dtype=dtype, heads=1, kv_heads=1, head_dim=128, lengths=(90, 60), keep=0.1,
                scores="offset", int8="both", scales="channel")  # fmt: skip
    for seed in range(12):
        inputs = make_inputs(case, seed=seed)
        arguments = operator_arguments(inputs)
        with using(level):
            found = operators.incremental_attention_with_stats(Arguments(**arguments))
        assert_equals_oracle(inputs, found, largest_score(inputs))
