"""Several query tokens in the Ascend C kernel, on the host model against the oracle."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from tests.cases import TOKEN_CASES, Case
from tests.helpers import Inputs, make_inputs
from tests.op_kernel.calls import TOKENS_KEY, assert_kernel_equals_oracle, call, for_kernel, statistics

_H, _B = "float16", "bfloat16"
_TOKEN_SCALES = {"int8": "both", "scales": "token"}
_COMMON = tuple(
    case for case in map(for_kernel, TOKEN_CASES) if case is not None and case.placement == "pre_softmax"
)  # fmt: skip
#: Shapes that only the kernel tells apart: rounds, chunks, blocks of query rows, cuts between cores.
_OWN = (
    *(Case(f"g{g}-t{tokens}-d{d}-{dtype}", dtype=dtype, heads=g, kv_heads=1, head_dim=d, query_tokens=tokens,
           lengths=(700,), vmc=True)
      for g, tokens, d, dtype in ((1, 2, 128, _H), (1, 16, 64, _B), (4, 4, 128, _H), (7, 3, 64, _B), (2, 8, 256, _H),
                                  (3, 5, 96, _B), (4, 2, 512, _H))),
    *(Case(f"n{n}-{dtype}", dtype=dtype, heads=4, kv_heads=2, head_dim=128, query_tokens=4, lengths=(n,), keep=0.06)
      for n in (4, 5, 16, 129, 256, 258, 514, 1025, 2048, 4097) for dtype in (_H, _B)),
    Case("one-row", dtype=_B, heads=2, kv_heads=2, lengths=(300, 20), query_lengths=(1, 0), vmc=True),
    Case("nothing", dtype=_H, heads=6, kv_heads=2, query_tokens=3, lengths=(1500, 40), query_lengths=(3, 1),
         theta="nothing"),
    Case("locally-dense", dtype=_H, heads=2, kv_heads=1, query_tokens=2, lengths=(2600,), keep=0.45),
    Case("lengths-of-two-slices", dtype=_H, heads=2, kv_heads=1, head_dim=16, query_tokens=2, lengths_as="int64",
         lengths=tuple(2 + n % 300 for n in range(0, 65 * 37, 37)), keep=0.2,
         query_lengths=tuple(n % 3 for n in range(65))),
    Case("sink-bsnd-ragged", dtype=_B, heads=8, kv_heads=2, layout="BSND", query_tokens=5, sink=True, vmc=True,
         lengths=(900, 0, 40, 7), query_lengths=(5, 0, 2, 5)),
    *(Case(f"int8-n{n}-{scales}", dtype=dtype, heads=4, kv_heads=1, head_dim=128, query_tokens=4, lengths=(n,),
           keep=0.06, int8=int8, scales=scales, vmc=True)
      for n, dtype, int8, scales in ((513, _H, "both", "token"), (1537, _B, "both", "channel"),
                                     (1300, _B, "key", "token"), (2049, _H, "key", "channel"))),
    Case("int8-bsh-ragged", dtype=_B, heads=4, kv_heads=2, head_dim=64, layout="BSH", query_tokens=6,
         lengths=(700, 30, 9), query_lengths=(6, 1, 6), **_TOKEN_SCALES),
    Case("paged-many-slices", dtype=_H, paged="4d", block_size=16, heads=2, kv_heads=1, query_tokens=3,
         lengths=(9000,), keep=0.02),
)  # fmt: skip
_ALL = (*_COMMON, *_OWN)
_BY_ID = {case.id: case for case in _ALL}
_SPLIT_IDS = ("tokens-ragged", "tokens-g12-two-head-blocks", "nothing", "sink-bsnd-ragged", "int8-bsh-ragged",
              "tokens-offline-vmc", "locally-dense", "g4-t4-d128-float16")  # fmt: skip


@lru_cache(maxsize=64)
def inputs_of(case: Case, *poison: str) -> Inputs:
    return make_inputs(case, poison=poison, for_kernel=True)


def assert_tokens_equal_the_oracle(inputs: Inputs, **options: Any) -> None:
    result = call(inputs.arguments, **options)
    result.run.require_clean()
    assert result.tiling.key == TOKENS_KEY
    assert_kernel_equals_oracle(inputs, statistics(result))


@pytest.mark.parametrize("case", _ALL, ids=lambda case: case.id)
def test_tokens_equal_the_oracle(case: Case) -> None:
    assert_tokens_equal_the_oracle(inputs_of(case, "outside"))


@pytest.mark.parametrize("cores", [2, 6, 22, 48])
@pytest.mark.parametrize("name", _SPLIT_IDS)
def test_any_number_of_cores_shares_the_rows(name: str, cores: int) -> None:
    assert_tokens_equal_the_oracle(inputs_of(_BY_ID[name]), cores=cores)
