"""The Ascend C kernel on the host model against the oracle: every case, every path, split over any number of cores."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from tests.cases import CASES, NEUTRAL, SAMPLED_CASES, Case
from tests.helpers import (
    Inputs,
    assert_equals_oracle,
    assert_parts_merge,
    assert_within_yardstick,
    from_layout,
    make_inputs,
    yardstick,
)
from tests.op_kernel.calls import CUBE_KEY, call, for_kernel, part, statistics, statistics_of, uses_cube
from tests.tiers import only
from toptheta_npu.fallback import reference

_KERNEL_CASES = tuple(case for case in map(for_kernel, (*CASES, *SAMPLED_CASES)) if case is not None)
_H, _B = "float16", "bfloat16"
_POST = {"placement": "post_softmax"}
_TOKEN = {"int8": "both", "scales": "token"}
#: Shapes that only the kernel tells apart: tiles, chunks, rounds, head blocks, cuts between cores.
_OWN_CASES = (
    *(Case(f"g{g}-{d}-{dtype}", dtype=dtype, heads=g, kv_heads=1, head_dim=d, lengths=(700,), vmc=True)
      for g, d, dtype in ((1, 128, _H), (2, 128, _H), (4, 128, _H), (7, 64, _B), (8, 128, _B), (8, 256, _H))),
    *(Case(f"d{d}-{dtype}", dtype=dtype, heads=2, kv_heads=2, head_dim=d, lengths=(531, 3))
      for d in (16, 48, 64, 80, 128, 192, 256, 320, 336, 512) for dtype in (_H, _B)),
    *(Case(f"n{n}-{dtype}", dtype=dtype, heads=1, kv_heads=1, head_dim=128, lengths=(n,), keep=0.06)
      for n in (0, 1, 15, 16, 17, 127, 128, 129, 1000, 1023, 1024, 1025, 2048, 4097) for dtype in (_H, _B)),
    *(Case(f"post-room-{d}-g{g}-{n}", dtype=_H, heads=g, kv_heads=1, head_dim=d, lengths=(n,), lengths_as="none",
           **_POST) for d, g, n in ((96, 4, 485), (112, 2, 1005), (160, 8, 448), (160, 8, 998), (80, 2, 4500))),
    Case("lengths-of-two-slices", dtype=_H, heads=2, kv_heads=1, head_dim=16, lengths_as="int64",
         lengths=tuple(n % 300 for n in range(0, 65 * 37, 37)), keep=0.2),
    Case("lengths-of-two-slices-post", dtype=_H, heads=2, kv_heads=1, head_dim=16,
         lengths=tuple(n % 300 for n in range(0, 130 * 37, 37)), keep=0.2, **_POST),
    Case("n262144", dtype=_H, heads=1, kv_heads=1, head_dim=16, lengths=(262144,), keep=0.00003, lengths_as="none"),
    Case("n262144-dense", dtype=_B, heads=1, kv_heads=1, head_dim=16, lengths=(262144,), theta="dense",
         lengths_as="none"),
    Case("nothing-kept-twice", dtype=_H, heads=6, kv_heads=1, lengths=(1500, 40), theta="nothing"),
    Case("locally-dense", dtype=_H, heads=2, kv_heads=1, lengths=(2600,), keep=0.45),
    Case("many-rounds", dtype=_H, heads=1, kv_heads=1, head_dim=256, lengths=(3000,), keep=0.3),
    Case("post-long", dtype=_H, heads=4, kv_heads=2, lengths=(9000,), keep=0.02, vmc=True, **_POST),
    Case("post-d512", dtype=_B, heads=4, kv_heads=1, head_dim=512, lengths=(1500, 30), **_POST),
    Case("post-tile80", dtype=_H, heads=2, kv_heads=2, head_dim=192, lengths=(1900,), **_POST),
    *(Case(f"one-by-one-g{g}-{d}", dtype=_H, heads=g, kv_heads=1, head_dim=d, lengths=(1700, 300), keep=0.06, sdc=sdc)
      for g, d, sdc in ((8, 128, "exact"), (8, 256, "none"), (5, 80, "exact"), (4, 512, "exact"), (6, 16, "exact"))),
    Case("two-head-blocks", dtype=_H, heads=11, kv_heads=1, lengths=(900, 0, 40), theta="mixed"),
    Case("paged-many-slices", dtype=_H, paged="4d", block_size=16, heads=1, kv_heads=1, lengths=(9000,), keep=0.02),
    Case("paged-many-slices-post", dtype=_H, paged="3d", block_size=16, heads=1, kv_heads=1, lengths=(9000,),
         keep=0.02, **_POST),
    *(Case(f"int8-d{d}-{dtype}-{scales}", dtype=dtype, heads=2, kv_heads=2, head_dim=d, lengths=(531, 3), int8="both",
           scales=scales, vmc=True)
      for d in (32, 96, 128, 160, 288, 512) for dtype, scales in ((_H, "token"), (_B, "channel"))),
    *(Case(f"int8-n{n}-{dtype}", dtype=dtype, heads=1, kv_heads=1, head_dim=128, lengths=(n,), keep=0.06, int8=int8,
           scales="token") for n, int8 in ((0, "both"), (15, "key"), (129, "both"), (1537, "both"), (4097, "key"))
      for dtype in (_H, _B)),
    Case("int8-nothing", dtype=_H, heads=6, kv_heads=3, lengths=(1500, 40), theta="nothing", **_TOKEN),
    Case("int8-nothing-channel", dtype=_B, heads=6, kv_heads=3, lengths=(1500, 40), theta="nothing", int8="both"),
    Case("int8-locally-dense", dtype=_H, heads=2, kv_heads=1, lengths=(2600, 900), keep=0.45, **_TOKEN),
    Case("int8-many-chunks", dtype=_B, heads=1, kv_heads=1, head_dim=64, lengths=(9000, 300), keep=0.02, **_TOKEN),
    Case("int8-paged-many-slices", dtype=_H, paged="4d", block_size=16, heads=1, kv_heads=1, lengths=(9000,),
         keep=0.02, **_TOKEN),
    Case("int8-post-long", dtype=_H, heads=4, kv_heads=2, lengths=(9000,), keep=0.02, vmc=True, **_TOKEN, **_POST),
    Case("int8-whole-numbers", dtype=_H, heads=2, kv_heads=2, lengths=(700,), lengths_as="none", vmc=True, **_TOKEN),
    Case("paged-512", dtype=_B, paged="4d", block_size=512, heads=2, kv_heads=1, lengths=(1300, 512)),
)  # fmt: skip
_ALL = (*_KERNEL_CASES, *_OWN_CASES)
_BY_ID = {case.id: case for case in _ALL}
#: Cases that between them cut units in every way.
_SPLIT_IDS = (
    "ragged", "g7", "post-f16-vmc-bsh", "two-head-blocks", "nothing", "start-f16-bsnd", "post-long",
    "sdc-exp-threshold-mixed-vmc", "sdc-offline-mixed-vmc", "paged-4d-f16", "locally-dense", "inf-vmc",
    "int8-nothing", "int8-nothing-channel", "int8-locally-dense", "int8-paged-many-slices", "int8-post-long",
    "sampled-f16-g4", "sampled-mixed", "sampled-paged-slices", "sampled-two-head-blocks", "sampled-int8-channel",
    "lengths-of-two-slices", "lengths-of-two-slices-post", "sink-exp-threshold-vmc", "sink-post-f16-g12",
)  # fmt: skip


@lru_cache(maxsize=64)
def inputs_of(case: Case, *poison: str) -> Inputs:
    return make_inputs(case, poison=poison, for_kernel=True)


@pytest.mark.parametrize("case", _ALL, ids=lambda case: case.id)
def test_kernel_equals_the_oracle(case: Case) -> None:
    inputs = inputs_of(case, "outside")
    assert_equals_oracle(inputs, statistics_of(inputs))


@pytest.mark.parametrize("case", [case for case in _ALL if uses_cube(case)], ids=lambda case: case.id)
def test_groups_on_the_vector_unit_equal_the_oracle(case: Case) -> None:
    inputs = inputs_of(case)
    assert_equals_oracle(inputs, statistics_of(inputs, cube=False))


@pytest.mark.parametrize(
    ("heads", "keep", "dtype", "one_by_one"),
    [
        (8, 0.06, _H, True),
        (8, 0.06, _B, True),
        (8, 0.09, _H, True),  # half of the rows are on the list
        (8, 0.13, _H, True),  # more than half: the copies are dense
        (8, 0.13, _B, True),
        (8, 0.4, _H, False),
        (3, 0.2, _H, False),
        (3, 0.01, _B, False),  # a list too short
    ],
)
def test_rows_go_to_the_heads_one_by_one_where_each_keeps_few_of_a_list(
    heads: int, keep: float, dtype: str, one_by_one: bool
) -> None:
    case = Case("lists", dtype=dtype, heads=heads, kv_heads=1, head_dim=128, lengths=(1024,), keep=keep)
    inputs = inputs_of(case)
    result = call(inputs.arguments, cores=2)
    result.run.require_clean()
    assert_equals_oracle(inputs, statistics(result))
    # the scalar unit waits for the lists of the heads
    assert (
        any(site.file.endswith("own_rows.h") and site.kind == "WaitFlag" for site in result.run.sync_sites)
        == one_by_one
    )


@pytest.mark.parametrize("path", ["gather", "dense"])
@pytest.mark.parametrize("case_id", ["g4-128-float16", "ragged-f16-bsh", "mixed", "post-bf16-mixed", "d192-float16",
                                     "paged-4d-descending", "locally-dense", "half-kept", "int8-locally-dense",
                                     "int8-key-f16-channel", "int8-paged-4d"])  # fmt: skip
def test_forced_path_equals_the_oracle(case_id: str, path: str) -> None:
    inputs = inputs_of(_BY_ID[case_id])
    assert_equals_oracle(inputs, statistics_of(inputs, path=path))


def goes_dense(case: Case) -> bool:
    """Whether the kernel may fetch all V rows of a chunk, of which its heads keep more than half."""
    return case.theta in ("dense", "mixed") or case.keep * case.heads / case.kv_heads > 0.4


@pytest.mark.parametrize("case", only(goes_dense, _ALL), ids=lambda case: case.id)
def test_rows_that_nothing_keeps_are_never_multiplied(case: Case) -> None:
    inputs = inputs_of(case, "values", "outside")
    assert_equals_oracle(inputs, statistics_of(inputs, path="gather"))


@pytest.mark.parametrize("cube", [True, False])
@pytest.mark.parametrize("cores", [1, 2, 3, 4, 20, 40, 64])
@pytest.mark.parametrize("case_id", _SPLIT_IDS)
def test_any_number_of_cores_gives_the_same_rows(case_id: str, cores: int, cube: bool) -> None:
    inputs = inputs_of(_BY_ID[case_id])
    assert_equals_oracle(inputs, statistics_of(inputs, cores=cores, cube=cube))


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax", "sampled_softmax"])
@pytest.mark.parametrize(
    ("cores", "sequences", "rows"), [(3, 3, 100), (5, 5, 128), (7, 7, 1), (48, 3, 200), (6, 3, 256)]
)
def test_short_sequences_leave_no_output_unwritten(cores: int, sequences: int, rows: int, placement: str) -> None:
    case = Case("short", dtype=_H, heads=2, kv_heads=1, lengths=(rows,) * sequences, lengths_as="none", keep=0.2,
                placement=placement)  # fmt: skip
    inputs = inputs_of(case)
    assert_equals_oracle(inputs, statistics_of(inputs, cores=cores))


@pytest.mark.parametrize("cores", [1, 2, 5, 48])
@pytest.mark.parametrize("case_id", ["g4", "nothing", "inf", "post-bf16-mixed", "mixed", "empty-vmc", "all-empty",
                                     "two-head-blocks", "start-bf16-bsh-post", "int8-nothing",
                                     "int8-nothing-channel", "int8-key-bf16-token-g7"])  # fmt: skip
def test_parts_merge_to_the_whole_row(case_id: str, cores: int) -> None:
    inputs = inputs_of(_BY_ID[case_id])
    post = inputs.case.placement == "post_softmax"
    arguments = {name: value for name, value in inputs.arguments.items() if name not in ("value_mean", "sdc")}
    result = call(arguments, cores=cores, partial=True, row_lse=inputs.expected.lse.float() if post else None)
    result.run.require_clean()
    assert_parts_merge(inputs, [part(result)], [inputs.rows.lengths])


def test_part_where_nothing_passes_is_its_largest_element() -> None:
    inputs = inputs_of(_BY_ID["nothing"])
    result = call(inputs.arguments, partial=True)
    out, maximum, kept_mass, discarded_mass, kept = part(result)
    best = reference.attention_scores(inputs.rows.query.double(), inputs.rows.key.double(), inputs.case.head_dim**-0.5)
    best = best.masked_fill(~reference.valid_keys(best.shape[2], inputs.rows.lengths, inputs.rows.starts), -torch.inf)
    assert not kept.any()
    assert not kept_mass.any()
    torch.testing.assert_close(maximum.double(), best.amax(-1), rtol=0, atol=1e-5)
    mass = (best - best.amax(-1, keepdim=True)).exp().sum(-1)
    torch.testing.assert_close(discarded_mass.double(), mass, rtol=1e-5, atol=0)
    group = inputs.case.heads // inputs.case.kv_heads
    row = inputs.rows.value.repeat_interleave(group, dim=1).gather(
        2, best.argmax(-1)[..., None, None].expand(-1, -1, 1, inputs.case.head_dim)
    )
    torch.testing.assert_close(from_layout(out, inputs.case.layout, inputs.case.heads), row[:, :, 0].float())


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH"])
def test_strided_cache_is_read_in_place(layout: str) -> None:
    case = Case("strided", dtype=_H, layout=layout, heads=4, kv_heads=2, lengths=(300, 40))
    inputs = inputs_of(case)
    expected = call(inputs.arguments)
    strided = dict(inputs.arguments)
    for name in ("key", "value"):
        cache = inputs.arguments[name]
        wide = torch.full((*cache.shape[:-2], cache.shape[-2] + 5, 2 * cache.shape[-1]), torch.nan, dtype=cache.dtype)
        strided[name] = wide[..., 2 : 2 + cache.shape[-2], : cache.shape[-1]]
        strided[name].copy_(cache)
    result = call(strided)
    result.run.require_clean()
    for got, wanted in zip(statistics(result), statistics(expected), strict=True):
        assert torch.equal(got, wanted)
    assert result.tiling.workspace == expected.tiling.workspace
    assert result.run.traffic["key"].bytes_read == expected.run.traffic["key"].bytes_read


@pytest.mark.parametrize("case_id", ["int8-start", "int8-paged-4d", "int8-nothing"])
def test_strided_scales_are_read_in_place(case_id: str) -> None:
    """As in a cache that grows, or that keeps the scales of K and V side by side."""
    inputs = inputs_of(_BY_ID[case_id])
    strided = dict(inputs.arguments)
    scales = [f"{name}_antiquant_scale" for name in ("key", "value")]
    outer, heads, rows = inputs.arguments[scales[0]].shape
    both = torch.full((outer, 2, heads, rows + 13), torch.nan)
    for index, name in enumerate(scales):
        strided[name] = both[:, index, :, :rows]
        strided[name].copy_(inputs.arguments[name])
    result = call(strided)
    result.run.require_clean()
    for got, wanted in zip(statistics(result), statistics_of(inputs), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("case_id", ["paged-4d-f16", "start-f16-bsnd", "sdc-offline-mixed-vmc", "f16-bsh"])
def test_strides_of_other_inputs_change_nothing(case_id: str) -> None:
    inputs = inputs_of(_BY_ID[case_id])
    names = [name for name, value in inputs.arguments.items() if isinstance(value, torch.Tensor)]
    apart = {name: inputs.arguments[name].repeat_interleave(2, -1)[..., ::2] for name in names}
    assert not any(tensor.is_contiguous() for name, tensor in apart.items())
    strided = apart | {name: inputs.arguments[name] for name in ("key", "value")}
    result = call(inputs.arguments | strided)
    result.run.require_clean()
    assert_equals_oracle(inputs, statistics(result))
    for name in ("key", "value"):
        with pytest.raises(ValueError, match=rf"^{name}: expected a last stride of 1, .* pass {name}\.contiguous"):
            call(inputs.arguments | {name: apart[name]})


@pytest.mark.parametrize("lengths", [(-5, 5000), (200, 2**31 - 1)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_lengths_outside_the_cache_are_clamped(lengths: tuple[int, int], dtype: torch.dtype) -> None:
    case = Case("clamped", dtype=_H, lengths=tuple(min(max(n, 0), 200) for n in lengths))
    inputs = inputs_of(case)
    arguments = dict(inputs.arguments)
    for name in ("key", "value"):
        arguments[name] = arguments[name][:, :, :200]
    arguments["actual_seq_lengths"] = torch.tensor(lengths, dtype=dtype)
    result = call(arguments)
    result.run.require_clean()
    assert_equals_oracle(inputs, statistics(result))


_BLOCKS = 12  # of the caches below


@pytest.mark.parametrize("number", [-1, -(2**31), _BLOCKS, 2**31 - 1])
@pytest.mark.parametrize(("heads", "cube"), [(1, False), (4, False), (4, True)], ids=["single", "group", "cube"])
@pytest.mark.parametrize(("paged", "placement"), [("4d", "pre_softmax"), ("3d", "post_softmax")])
def test_block_numbers_outside_the_cache_are_clamped(
    number: int, heads: int, cube: bool, paged: str, placement: str
) -> None:
    case = Case("blocks", dtype=_H, paged=paged, block_size=16, heads=heads, kv_heads=1, lengths=(100, 20), keep=0.3,
                placement=placement)  # fmt: skip
    arguments = dict(inputs_of(case).arguments)
    assert len(arguments["key"]) == _BLOCKS
    table = arguments["block_table"].clone()
    table[0, 1], table[1, 1] = number, number
    got = call(arguments | {"block_table": table}, cube=cube)
    got.run.require_clean()
    expected = call(arguments | {"block_table": table.clamp(0, _BLOCKS - 1)}, cube=cube)
    for one, other in zip(statistics(got), statistics(expected), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", only(_OWN_CASES, _ALL), ids=lambda case: case.id)
def test_output_does_not_depend_on_statistics(case: Case) -> None:
    inputs = inputs_of(case)
    result = call(inputs.arguments, with_stats=False)
    result.run.require_clean()
    out = from_layout(result.outputs["attention_out"], case.layout, case.heads)
    assert_within_yardstick(out, yardstick(inputs)[0], inputs.expected.out)


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax", "sampled_softmax"])
@pytest.mark.parametrize("rows", [600, 640])
def test_scores_of_minus_infinity_never_lead_outside_the_cache(placement: str, rows: int) -> None:
    case = Case("infinite", dtype=_B, heads=2, kv_heads=1, lengths=(rows,), lengths_as="none", placement=placement)
    arguments = dict(inputs_of(case).arguments)
    arguments["key"] = torch.full_like(arguments["key"], -torch.inf)
    arguments["query"] = torch.ones_like(arguments["query"])
    call(arguments, path="gather").run.require_clean()


def test_part_with_an_empty_rest_of_the_row_stays_inside_the_cache() -> None:
    inputs = inputs_of(_BY_ID["post-f16-vmc-bsh"])
    arguments = {name: value for name, value in inputs.arguments.items() if name != "value_mean"}
    lse = torch.full((len(inputs.rows.lengths), inputs.case.heads), -torch.inf)
    call(arguments, path="gather", partial=True, row_lse=lse).run.require_clean()


def test_mean_of_v_counts_for_nothing_where_nothing_is_discarded() -> None:
    inputs = inputs_of(_BY_ID["sdc-offline-dense-vmc"])
    arguments = dict(inputs.arguments) | {"value_mean": torch.full_like(inputs.arguments["value_mean"], torch.nan)}
    assert_equals_oracle(inputs, statistics(call(arguments)))


@pytest.mark.parametrize(
    "case_id", ["mixed", "sdc-none", "sdc-offline-mixed-vmc", "post-f16-vmc-bsh", "two-head-blocks"]
)
@pytest.mark.parametrize("name", NEUTRAL)
def test_what_is_like_no_argument_changes_no_bit(name: str, case_id: str) -> None:
    inputs = inputs_of(_BY_ID[case_id])
    result = call(inputs.arguments | {name: NEUTRAL[name](inputs.case)})
    result.run.require_clean()
    for got, wanted in zip(statistics(result), statistics_of(inputs), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("case_id", ["ragged", "g7", "nothing", "post-bf16-mixed", "paged-4d-f16", "two-head-blocks",
                                     "sampled-f16-g4"])  # fmt: skip
@pytest.mark.parametrize(("cores", "cube"), [(1, False), (2, True), (48, True), (48, False)])
def test_nan_scores_never_lead_outside_the_cache(case_id: str, where: str, cores: int, cube: bool) -> None:
    inputs = inputs_of(_BY_ID[case_id])
    arguments = dict(inputs.arguments)
    arguments[where] = torch.full_like(arguments[where], torch.nan)
    result = call(arguments, cores=cores, cube=cube)
    result.run.require_clean()
    assert result.run.completed


@pytest.mark.parametrize("placement", ["pre_softmax", "post_softmax", "sampled_softmax"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "lengths_as", "form"),
    [(2, 2, "none", 1), (2, 2, "int32", 2), (4, 1, "int32", CUBE_KEY)],
    ids=["whole", "split", "cube"],
)
def test_every_tiling_key_equals_the_oracle(
    heads: int, kv_heads: int, lengths_as: str, form: int, placement: str
) -> None:
    """The keys of probabilities lie 10 behind those of the same form."""
    case = Case("key", dtype=_H, heads=heads, kv_heads=kv_heads, lengths=(1300,), lengths_as=lengths_as, vmc=True,
                sink=True, keep=0.1, placement=placement)  # fmt: skip
    inputs = inputs_of(case)
    result = call(inputs.arguments, cores=2 if lengths_as == "none" else 48)
    result.run.require_clean()
    assert result.tiling.key == form + (0 if placement == "pre_softmax" else 10)
    assert_equals_oracle(inputs, statistics(result))


@pytest.mark.parametrize("rows", [449, 511])
@pytest.mark.parametrize(
    ("heads", "lengths_as", "cores", "key"), [(2, "none", 1, 11), (2, "int32", 1, 12), (8, "none", 2, CUBE_KEY + 10)]
)
def test_stored_scores_of_a_chunk_that_is_not_full_survive(
    heads: int, lengths_as: str, cores: int, key: int, rows: int
) -> None:
    """The only chunk of a segment, too long to stay in the Unified Buffer: it is read back where it was made."""
    case = Case("one-chunk", dtype=_H, heads=heads, kv_heads=1, head_dim=128, lengths=(rows,) * cores, keep=0.1,
                lengths_as=lengths_as, **_POST)  # fmt: skip
    inputs = inputs_of(case)
    result = call(inputs.arguments, cores=cores)
    result.run.require_clean()
    assert result.tiling.key == key
    assert_equals_oracle(inputs, statistics(result))
