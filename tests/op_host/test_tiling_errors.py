"""Every error of the tiling function: argument, what was expected, what came, the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from emulator.cann import OperatorError, Platform, TensorSpec
from tests.cases import ERROR_CASES, PER_HEAD, ErrorCase, valid_arguments
from tests.op_host.operator_calls import Call, Shape, per_head, value_mean
from toptheta_host_model import OPERATOR

_BASE = Shape()  # BNSD: query [2, 4, 1, 32], key and value [2, 2, 64, 32]
_PAGED = Shape(paged="4d", block_size=16, rows=4)
_BSH = Shape(layout="BSH")
_POST = {"placement": "post_softmax"}
_MERGE = "give {} to merge_partials"
_ONE_BY_ONE = "give the tokens one by one, or use the fallback"


def _int8(shape: Shape = _BASE, *, by_token: bool = False, **attrs: Any) -> Call:
    """Both caches in int8, with scales for each channel or for each token and head."""
    mode = (5 if shape.paged else 3) if by_token else 0
    outer, rows = (shape.blocks, shape.block_size) if shape.paged else (shape.batch, shape.rows)
    sizes = (outer, shape.kv_heads, rows) if by_token else (shape.kv_heads, shape.head_dim)
    cache, scale = TensorSpec(shape.cache, "int8"), TensorSpec(sizes, "float32")
    modes = {"key_antiquant_mode": mode, "value_antiquant_mode": mode}
    return shape.call(**{**modes, **attrs}).with_inputs(
        key=cache, value=cache, key_antiquant_scale=scale, value_antiquant_scale=scale
    )


#: name, the call, the operator's message
_OWN_ERRORS: tuple[tuple[str, Call, str], ...] = (
    # limits of the NPU
    ("head-dim-step", Shape(head_dim=40).call(), "query: expected head_dim a multiple of 16 on an NPU, got 40; "
     "pad query, key and value with zeros and keep scale_value"),
    ("batch", Shape(batch=65537).call(), "query: expected at most 65536 sequences, got [65537, 4, 1, 32]; "
     "split the batch"),
    ("query-dims", _BASE.call().with_shapes(query=(2, 4, 32)), "query: expected BNSD [B, Hq, Sq, D], got [2, 4, 32]"),
    ("no-tokens", _BASE.call().with_shapes(query=(2, 4, 0, 32)), "query: expected at least one token, "
     "BNSD [B, Hq, Sq, D], got [2, 4, 0, 32]"),
    ("many-tokens", _BASE.call().with_shapes(query=(2, 4, 17, 32)), "query: expected 1 to 16 tokens, "
     "BNSD [B, Hq, Sq, D], got [2, 4, 17, 32]; use prefill_attention for more tokens"),
    # several tokens
    ("tokens-post", _BASE.call(**_POST).with_shapes(query=(2, 4, 2, 32)), "placement: expected 'pre_softmax' with "
     f"several query tokens on an NPU, got 'post_softmax'; {_ONE_BY_ONE}"),
    ("tokens-part", _BASE.call(partial=True).with_shapes(query=(2, 4, 2, 32)), "partial: expected False with several "
     f"query tokens on an NPU, got True; {_ONE_BY_ONE}"),
    ("tokens-part-of-one", _BASE.call(partial=True).with_inputs(actual_query_lengths=TensorSpec((2,), "int32")),
     f"partial: expected False with several query tokens on an NPU, got True; {_ONE_BY_ONE}"),
    ("tokens-rows", Shape(kv_heads=1, group=257).call().with_shapes(query=(2, 257, 16, 32), threshold=(257,)),
     "query: expected at most 4096 heads times tokens on an NPU, got [2, 257, 16, 32]; give fewer tokens at once"),
    ("tokens-far-rows", _BASE.call(key_strides=[16, 512, 65536]).with_shapes(query=(2, 4, 2, 32)),
     "key_strides: expected rows at most 65535 elements apart with several query tokens on an NPU, got 65536; "
     "pass key.contiguous()"),
    ("tokens-without-cubes", replace(_BASE.call().with_shapes(query=(2, 4, 2, 32)), platform=Platform(cube_cores=0)),
     "query: expected one token per sequence where there is no cube core for two vector cores, got [2, 4, 2, 32]; "
     "give the tokens one by one"),
    ("tokens-threshold", _BASE.call().with_shapes(query=(2, 4, 2, 32), threshold=(2, 4, 3)),
     "threshold: expected shape [2, 4, 2] [B, Hq, Sq], got [2, 4, 3]"),
    ("tokens-mean", _BASE.call().with_shapes(query=(2, 4, 2, 32), value_mean=(2, 2, 32)),
     "value_mean: expected shape [2, 2, 2, 32] [B, Hkv, Sq, D], got [2, 2, 32]"),
    ("tokens-mass", _BASE.call(sdc="offline").with_shapes(query=(2, 4, 2, 32), discarded_mass=(2, 4)),
     "discarded_mass: expected shape [2, 4, 2] [B, Hq, Sq], got [2, 4]"),
    ("query-lengths-dtype", _BASE.call(lengths="int32").with_inputs(actual_query_lengths=TensorSpec((2,), "int64")),
     "actual_query_lengths: expected dtype int32, got int64; "
     "convert it with actual_query_lengths.to(torch.int32)"),
    ("query-lengths-like-starts", _BASE.call(starts="int64").with_inputs(
        actual_query_lengths=TensorSpec((2,), "int32")), "actual_query_lengths: expected dtype int64, got int32; "
     "convert it with actual_query_lengths.to(torch.int64)"),
    ("query-lengths-shape", _BASE.call().with_inputs(actual_query_lengths=TensorSpec((3,), "int32")),
     "actual_query_lengths: expected shape [2] [B], got [3]"),
    ("heads", Shape(kv_heads=4097, group=1).call(), "num_heads: expected 1 to 4096, got 4097"),
    ("capacity", Shape(rows=262145).call(), "key: expected at most 262144 keys per sequence, got [2, 2, 262145, 32]"),
    ("paged-capacity", replace(_PAGED, rows=16385).call(),
     "block_table: expected 1 to 16384 blocks per sequence with block_size=16, got 16385"),
    ("paged-no-blocks-per-sequence", replace(_PAGED, rows=0).call(),
     "block_table: expected 1 to 16384 blocks per sequence with block_size=16, got 0"),
    ("paged-no-blocks", replace(_PAGED, blocks=0).call(),
     "key: expected room for at least one key, got [0, 2, 16, 32]"),
    ("block-size-step", replace(_PAGED, block_size=24).call(), "block_size: expected a multiple of 16 up to 512 on an "
     "NPU, got 24; use a cache with block_size=128, for example"),
    ("block-size-large", replace(_PAGED, block_size=528).call(), "block_size: expected a multiple of 16 up to 512 on "
     "an NPU, got 528; use a cache with block_size=128, for example"),
    ("block-size-negative", _PAGED.call().with_attrs(block_size=-16),
     "block_size: expected the rows per block of the paged cache, got -16"),
    ("scores", Shape(batch=64, kv_heads=8, group=1, rows=262144).call(lengths="int32", **_POST),
     "placement: expected at most 256 MiB of scores with placement='post_softmax', got 512 MiB for [B, Hq, capacity] "
     "= [64, 8, 262144]; use placement='sampled_softmax', smaller batches or a smaller cache"),
    ("no-vector-cores", replace(_BASE.call(), platform=Platform(vector_cores=0)),
     "SoC: expected vector cores, got none; the operator is made for ascend910b and ascend910_93"),
    ("small-ub", replace(_BASE.call(), platform=Platform(ub_bytes=188159)),
     "SoC: expected 188160 bytes of Unified Buffer, got 188159; the operator is made for ascend910b and ascend910_93"),
    # dtypes
    ("query-dtype", _BASE.call().with_inputs(query=TensorSpec(_BASE.query, "float32")),
     "query: expected dtype float16 or bfloat16, got float32; convert it with query.to(torch.float16)"),
    ("key-dtype", _BASE.call().with_inputs(key=TensorSpec(_BASE.cache, "bfloat16")),
     "key: expected dtype float16 or int8, got bfloat16; convert it with key.to(torch.float16)"),
    ("value-dtype", Shape(dtype="bfloat16").call().with_inputs(value=TensorSpec(_BASE.cache, "float16")),
     "value: expected dtype bfloat16, got float16; convert it with value.to(torch.bfloat16)"),
    ("int8-value-alone", _BASE.call().with_inputs(value=TensorSpec(_BASE.cache, "int8")),
     "value: expected float16, as key is, got int8; quantise K alone, or both"),
    ("another-dtype", _BASE.call().with_inputs(value=TensorSpec(_BASE.cache, "float64")),
     "value: expected dtype float16, got another dtype; convert it with value.to(torch.float16)"),
    ("starts-dtype", _BASE.call(lengths="int32", starts="int64"),
     "key_start: expected dtype int32, got int64; convert it with key_start.to(torch.int32)"),
    ("starts-alone-dtype", _BASE.call(starts="float32"),
     "key_start: expected dtype int32 or int64, got float32; convert it with key_start.to(torch.int32)"),
    ("mass-dtype", _BASE.call(sdc="offline").with_inputs(discarded_mass=TensorSpec((2, 4), "float16")),
     "discarded_mass: expected dtype float32, got float16; convert it with discarded_mass.to(torch.float32)"),
    # int8 caches
    ("int8-head-dim", _int8(Shape(head_dim=48)),
     "query: expected head_dim a multiple of 32 with int8 on an NPU, got 48; "
     "pad query, key and value with zeros and keep scale_value"),
    ("int8-strides", _int8(key_strides=[4096, 2048, 48]),
     "key_strides: expected multiples of 32 elements, at least 0, got [4096, 2048, 48]; pass key.contiguous()"),
    *((f"int8-{name}-scale-dtype", _int8(by_token=True).with_inputs(
        **{f"{name}_antiquant_scale": TensorSpec((2, 2, 64), "bfloat16")}),
       f"{name}_antiquant_scale: expected dtype float32, got bfloat16; "
       f"convert it with {name}_antiquant_scale.to(torch.float32)") for name in ("key", "value")),
    ("int8-channel-shape", _int8().with_shapes(value_antiquant_scale=(32,)),
     "value_antiquant_scale: expected shape [2, 32] [Hkv, D], got [32]"),
    ("int8-paged-shape", _int8(_PAGED, by_token=True).with_shapes(key_antiquant_scale=(2, 2, 64)),
     "key_antiquant_scale: expected shape [9, 2, 16] [blocks, Hkv, block_size], got [2, 2, 64]"),
    ("int8-scale-strides-count", _int8(by_token=True, key_scale_strides=[128, 64]),
     "key_scale_strides: expected the strides of sequence or block, head and row, got [128, 64]"),
    ("int8-scale-strides-last", _int8(by_token=True, value_scale_strides=[256, 128, 2]),
     "value_scale_strides: expected a last stride of 1, got [256, 128, 2]; pass value_antiquant_scale.contiguous()"),
    ("int8-scale-strides-negative", _int8(by_token=True, value_scale_strides=[-256, 128, 1]),
     "value_scale_strides: expected strides of at least 0, got [-256, 128, 1]; "
     "pass value_antiquant_scale.contiguous()"),
    ("int8-alone-mode", _BASE.call(key_antiquant_mode=3),
     "key_antiquant_mode: expected 0, since key is float16, got 3"),
    # heads and shapes
    ("no-heads", _BASE.call().with_shapes(query=(2, 0, 1, 32)).with_attrs(num_heads=0),
     "num_heads: expected 1 to 4096, got 0"),
    ("bsh-no-heads", _BSH.call().with_attrs(num_heads=0),
     "num_heads: expected a divisor of the hidden size 128, got 0"),
    ("bsh-kv-heads-zero", _BSH.call().with_attrs(num_key_value_heads=0), "num_key_value_heads: expected a divisor of "
     "the 4 query heads, got 0; check the KV cache's layout"),
    ("bsh-form", _BSH.call().with_shapes(query=(2, 4, 1, 32)), "query: expected BSH [B, Sq, Hq*D], got [2, 4, 1, 32]"),
    ("bsnd-form", Shape(layout="BSND").call().with_shapes(query=(2, 128)),
     "query: expected BSND [B, Sq, Hq, D], got [2, 128]"),
    ("bsnd-key", Shape(layout="BSND").call().with_shapes(key=(2, 64, 2, 16)),
     "key: expected shape [2, 64, 2, 32] [B, S, Hkv, D], got [2, 64, 2, 16]"),
    ("bsh-key-dims", _BSH.call().with_shapes(key=(2, 64, 2, 32)),
     "key: expected 3 dimensions for BSH, got [2, 64, 2, 32]"),
    ("paged-key-dims", _PAGED.call().with_shapes(key=(9, 1024)),
     "key: expected 4 or 3 dimensions for a paged cache, got [9, 1024]"),
    ("paged-4d-key", _PAGED.call().with_shapes(key=(9, 2, 32, 32)),
     "key: expected shape [9, 2, 16, 32] [blocks, Hkv, block_size, D], got [9, 2, 32, 32]"),
    ("paged-3d-key", replace(_PAGED, paged="3d").call().with_shapes(key=(9, 16, 32)),
     "key: expected shape [9, 16, 64] [blocks, block_size, Hkv*D], got [9, 16, 32]"),
    ("threshold-scalar", _BASE.call().with_shapes(threshold=()), "threshold: expected shape [2, 4] [B, Hq], got []"),
    ("row-lse-shape", _BASE.call(partial=True, **_POST).with_shapes(row_lse=(4,)),
     "row_lse: expected shape [2, 4] [B, Hq], got [4]"),
    # strides
    ("strides-count", _BASE.call(key_strides=[4096, 32]),
     "key_strides: expected the strides of sequence or block, head and row, got [4096, 32]"),
    ("strides-step", _BASE.call(key_strides=[4096, 2048, 40]),
     "key_strides: expected multiples of 16 elements, at least 0, got [4096, 2048, 40]; pass key.contiguous()"),
    ("strides-negative", _BASE.call(value_strides=[-4096, 2048, 32]),
     "value_strides: expected multiples of 16 elements, at least 0, got [-4096, 2048, 32]; pass value.contiguous()"),
    ("rows-overlap", _BASE.call(value_strides=[4096, 2048, 16]),
     "value_strides: expected rows from 32 to 1073741855 elements apart, got 16; pass value.contiguous()"),
    ("rows-far-apart", _BASE.call(key_strides=[4096, 2048, 1073741856]),
     "key_strides: expected rows from 32 to 1073741855 elements apart, got 1073741856; pass key.contiguous()"),
    # modes
    ("no-such-sdc", _BASE.call(sdc="exakt"),
     "sdc: expected one of none, exact, exp_threshold, offline, got 'exakt'"),
    ("lse-without-part", _BASE.call(**_POST).with_inputs(row_lse=per_head(_BASE)),
     "row_lse needs partial=True; leave it out"),
    ("part-with-stats", _BASE.call(partial=True, with_stats=True),
     "with_stats excludes partial=True, which returns its own quantities; leave it out"),
    ("part-sdc", _BASE.call(partial=True, sdc="none"),
     f"sdc='none' excludes partial=True, which compensates nothing; {_MERGE.format('sdc')}"),
    ("part-vmc", _BASE.call(partial=True).with_inputs(value_mean=value_mean(_BASE)),
     f"value_mean excludes partial=True, which compensates nothing; {_MERGE.format('value_mean')}"),
    *((f"part-{name}", _BASE.call(partial=True).with_shapes(**{name: (4,)}),
       f"{name} excludes partial=True, whose masses leave it out; {_MERGE.format(name)}")
      for name in PER_HEAD),
    # outputs that a caller of the C function allocates itself
    *(("output-" + name, replace(_BASE.call().with_attrs(**attrs), outputs={name: TensorSpec(got, "float32")}),
       f"{name}: expected shape {wanted}, got {list(got)}")
      for name, attrs, got, wanted in (
          ("attention_out", {}, (2, 4, 32), "[2, 4, 1, 32], like query"),
          ("attention_out", {"with_stats": True}, (0,), "[2, 4, 1, 32], like query"),
          ("lse", {"with_stats": True}, (0,), "[2, 4] [B, Hq]"),
          ("kept", {"with_stats": True}, (8,), "[2, 4] [B, Hq]"),
          ("kept", {"partial": True}, (0,), "[2, 4] [B, Hq]"),
          ("value_rows", {"with_stats": True}, (2, 4), "[2, 2] [B, Hkv]"),
          ("part_out", {"partial": True}, (0,), "[2, 4, 1, 32], like query"),
          ("part_maximum", {"partial": True}, (2,), "[2, 4] [B, Hq]"),
          ("part_kept_mass", {"partial": True}, (0,), "[2, 4] [B, Hq]"),
          ("part_discarded_mass", {"partial": True}, (4, 2), "[2, 4] [B, Hq]"))),
)  # fmt: skip


@pytest.mark.parametrize(("call", "message"), [error[1:] for error in _OWN_ERRORS],
                         ids=[f"{error[0]}-{index}" for index, error in enumerate(_OWN_ERRORS)])  # fmt: skip
def test_own_error(call: Call, message: str) -> None:
    assert _message_of(call) == message


def _message_of(call: Call) -> str:
    with pytest.raises(OperatorError) as caught:
        call.run()
    return str(caught.value).removeprefix("TopThetaIncrementalAttention: ")


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("base", [_BASE, _PAGED, _BSH], ids=["BNSD", "paged-4d", "BSH"])
def test_int8_is_accepted_and_its_scales_reach_the_kernel(base: Shape, by_token: bool) -> None:
    contiguous = _int8(base, by_token=by_token).fields()
    rows = base.block_size or base.rows
    expected = {"outer": base.kv_heads * rows, "head": rows, "perToken": 1, "unused": 0}
    assert contiguous["keyScales"] == (expected if by_token else dict.fromkeys(expected, 0))
    strided = _int8(base, by_token=by_token, key_scale_strides=[1000, 100, 1]).fields()
    assert strided["keyScales"] == (expected | {"outer": 1000, "head": 100} if by_token else contiguous["keyScales"])


@pytest.mark.parametrize("base", [_BASE, _PAGED, _BSH, replace(_PAGED, paged="3d"), Shape(layout="BSND")],
                         ids=["BNSD", "paged-4d", "BSH", "paged-3d", "BSND"])  # fmt: skip
def test_bases_are_accepted(base: Shape) -> None:
    assert base.call().run().block_dim > 0


#: Cases of the common table that a caller of the C function can make too.
_SHARED = (
    "no-sequence", "head-dim-small", "head-dim-large", "key-dims", "key-head-dim",
    "key-batch", "key-heads", "key-no-rows", "value-shape", "threshold-heads", "threshold-batch", "threshold-dtype",
    "lengths-shape", "lengths-dtype", "start-shape", "table-batch", "table-dtype", "mean-heads", "mean-head-dim",
    "mass-shape", "bsh-heads-not-divisor", "bsh-kv-heads-not-divisor", "heads-contradict", "kv-heads-contradict",
    "layout", "placement", "private-path", "gamma-negative", "gamma-nan", "scale-inf", "paged-no-lengths",
    "paged-start", "paged-no-block-size", "block-size-no-table", "offline-no-mass", "mass-not-offline",
    "vmc-without-sdc", "post-sdc-none", "post-sdc-exp-threshold", "partial-post-no-lse", "partial-pre-lse",
    *(f"int8-mode-{mode}" for mode in (1, 2, 4, -1)), "int8-paged-mode", "int8-token-shape",
    "partial-lse-shape", *(case for name in PER_HEAD for case in (f"{name}-dtype", f"decode-{name}-shape")),
)  # fmt: skip
_BY_ID = {case.id: case for case in ERROR_CASES}


@pytest.mark.parametrize("case_id", _SHARED)
def test_errors_have_the_words_of_the_python_package(case_id: str) -> None:
    case = _BY_ID[case_id]
    message = case.message.replace(", or None", "").replace("_path:", "path:")
    message = re.sub("^lse", "row_lse", message)
    assert _message_of(_call_of(case)) == message


def _call_of(case: ErrorCase) -> Call:
    """The call behind an error case, with float16 in place of the float32 that the NPU does not take."""
    arguments = valid_arguments(case.base)
    changed: dict[str, Any] = arguments | case.change(arguments)
    if "lse" in changed:
        changed["row_lse"] = changed.pop("lse")
    inputs = {name: _spec(name, value) for name, value in changed.items() if _is_input(name, value)}
    layout = changed.get("input_layout", "BNSD")
    valid_query = arguments["query"]
    kv_axis = 2 if layout == "BSND" else 1
    attrs = {
        "num_heads": changed.get("num_heads") or valid_query.shape[1],
        "num_key_value_heads": changed.get("num_key_value_heads") or changed["key"].shape[kv_axis],
        "scale_value": changed.get("scale_value", 0.25), "input_layout": layout,
        "placement": changed.get("placement", "pre_softmax"), "sdc": changed.get("sdc", "exact"),
        "sdc_gamma": changed.get("sdc_gamma", 0.05), "path": changed.get("_path", "auto"),
        "block_size": changed.get("block_size", 0), "partial": case.base == "partial",
        **{name: value for name, value in changed.items() if name.endswith("_antiquant_mode")},
    }  # fmt: skip
    return Call(inputs, attrs)


def _is_input(name: str, value: Any) -> bool:
    return isinstance(value, Tensor) or (name in ("actual_seq_lengths", "key_start") and isinstance(value, list))


def _spec(name: str, value: Any) -> TensorSpec:
    if isinstance(value, list):
        return TensorSpec((len(value),), "int32")
    dtype = str(value.dtype).removeprefix("torch.")
    if name in ("query", "key", "value") and dtype != "int8":
        dtype = "float16"
    return TensorSpec(tuple(value.shape), dtype)


def _without(name: str) -> Callable[[], object]:
    call = _BASE.call()
    return call.with_inputs(**{name: None}).run


@pytest.mark.parametrize("name", ["query", "key", "value", "threshold"])
def test_missing_input(name: str) -> None:
    with pytest.raises(OperatorError, match=f"^{name}: expected a tensor, got None"):
        _without(name)()


@pytest.mark.parametrize("name", ["num_heads", "num_key_value_heads", "scale_value"])
def test_missing_attribute(name: str) -> None:
    call = _BASE.call()
    attrs = {key: value for key, value in call.attrs.items() if key != name}
    with pytest.raises(OperatorError, match=f"^{name}: expected a value, got None"):
        OPERATOR.run_tiling(call.inputs, attrs)
