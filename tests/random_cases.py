"""Decode steps that nobody thought of: a hypothesis strategy over everything a `Case` can say."""

from __future__ import annotations

from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from tests.cases import Case
from tests.helpers import Inputs, make_inputs
from tests.op_kernel.test_ub_layout import Variant, head_block_of, layout_of
from toptheta_npu._checks import MAX_TOKENS

_MAX_WORK = 3_000_000  # query heads x keys x head_dim: what the host model does in about a second
_MAX_ROWS = 128  # of query tokens and heads: each needs a gap for its threshold
_FEW_ROWS = (0, 1, 16, 17)
#: Where a length lies to a border: on it, a row beside it, or at the 64 lanes of a vector instruction.
_BESIDE = (-64, -63, -1, 0, 1, 63, 64)
_GRANULE_ROWS = 128  # of the split between cores
#: One large column leaves a cube core few bits of an int8 query for the others; among more rows than these, no gap is
#: wide enough for a threshold that the rounding does not cross.
_MAX_ROWS_BESIDE_A_LARGE_COLUMN = 130
_CPU_BORDERS = (16, 128, 512, 1024)
_PLACEMENTS = ("pre_softmax", "post_softmax", "sampled_softmax")


@st.composite
def random_cases(
    draw: st.DrawFn, *, for_kernel: bool, at_borders: bool = False, query_tokens: bool = False,
    work: int = _MAX_WORK, rows: int = _MAX_ROWS,
) -> Case:  # fmt: skip
    """Any valid case.

    Args:
        for_kernel: keeps to the kernel's dtypes, sizes and page sizes.
        query_tokens: whether steps may have several tokens.
        work: the most query heads x keys x head_dim.
        rows: the most query heads x tokens.
        at_borders: more sequences, all of them about as long as what a core works on at a time.
    """
    step = 16 if for_kernel else 1
    dtype = draw(st.sampled_from(["float16", "bfloat16"] if for_kernel else ["float16", "bfloat16", "float32"]))
    kv_heads = draw(st.sampled_from([1, 1, 1, 2, 3]))
    group = draw(st.sampled_from([1, 1, 2, 3]) | st.integers(1, min(12, rows // 3)))
    sizes = st.sampled_from([16, 64, 80, 128]) | st.integers(16 // step, 512 // step).map(lambda size: size * step)
    placement = draw(st.sampled_from(["pre_softmax"] if for_kernel and query_tokens else _PLACEMENTS))
    int8 = draw(_int8(for_kernel, placement))
    head_dim = draw(sizes)
    if for_kernel and int8:
        head_dim = -(-head_dim // 32) * 32
    paged = draw(st.sampled_from(["", "4d", "3d"]))
    post = placement == "post_softmax"
    borders = _kernel_borders(group, head_dim, dtype, post, int8.get("int8", "")) if for_kernel else _CPU_BORDERS
    tokens = draw(st.sampled_from([1, 1, 2, 3, 4, 8, 16]) | st.integers(1, MAX_TOKENS)) if query_tokens else 1
    tokens = min(tokens, max(1, rows // (kv_heads * group)))
    longest = max(20, min(3000, work // (kv_heads * group * head_dim * tokens * (1 if tokens == 1 else 4))))
    longest *= 2 if at_borders else 1
    one = _beside(borders, longest) if at_borders else _lengths(borders, longest)
    lengths = draw(st.lists(one, min_size=5, max_size=10) if at_borders else st.lists(one, min_size=1, max_size=5))
    while sum(lengths) > longest and len(lengths) > 1:
        lengths.pop()
    theta = draw(st.sampled_from(["quantile", "beside", "beside", "mixed", "dense", "inf", "nothing"]))
    scores = ["plain", "plain", "plain", "steep", "offset"]
    by_column = for_kernel and group > 1 and int8.get("scales", "token") != "token"
    if by_column and theta in ("quantile", "beside", "mixed") and max(lengths) > _MAX_ROWS_BESIDE_A_LARGE_COLUMN:
        scores.remove("offset")
    return Case(
        "random",
        dtype=dtype,
        layout=draw(st.sampled_from(["BNSD", "BSND", "BSH"])),
        paged=paged,
        block_size=draw(st.integers(16 // step, 512 // step)) * step if paged else 0,
        blocks=draw(st.sampled_from(["permuted", "descending"])),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        theta=theta,
        keep=draw(st.sampled_from([0.01, 0.03, 0.1, 0.3, 0.45, 0.9])),
        scores=draw(st.sampled_from(scores)),
        scale=draw(st.sampled_from([None, None, 0.25, 1.0, -0.5])),
        sink=draw(st.booleans()),
        **int8,
        **draw(_keys(lengths, paged=bool(paged))),
        **(draw(_query_lengths(lengths, tokens)) if query_tokens else {}),
        **draw(_compensation(placement)),
    )


@st.composite
def _query_lengths(draw: st.DrawFn, lengths: list[int], tokens: int) -> dict[str, Any]:
    """Tokens, and how many of each sequence are real; all of them where nothing is said."""
    all_real = all(n == 0 or n >= tokens for n in lengths)
    if all_real and draw(st.booleans()):
        return {"query_tokens": tokens}
    most = [min(n, tokens) for n in lengths]
    real = [draw(st.sampled_from([s, s, s, min(s, 1), 0]) | st.integers(0, s)) for s in most]
    return {"query_tokens": tokens, "query_lengths": tuple(real)}


def _kernel_borders(group: int, head_dim: int, dtype: str, post: bool, int8: str) -> tuple[int, ...]:
    """Rows after which the kernel begins a granule, a tile or a chunk, or has no more room for stored scores."""
    block = head_block_of(group, head_dim)
    element = (1 if int8 else 2, 1 if int8 == "both" else 2)
    layouts = [layout_of(Variant(head_dim, block, dtype == "bfloat16", post, cube, *element)).counts
               for cube in (False, True)]  # fmt: skip
    return (_GRANULE_ROWS, *(counts[name] for counts in layouts for name in ("tileRows", "chunkRows", "scoreRows")))


@st.composite
def _beside(draw: st.DrawFn, borders: tuple[int, ...], longest: int) -> int:
    """Up to ``longest`` rows that end beside a multiple of a border, as a rule the first."""
    near = [border for border in borders if border + min(_BESIDE) < longest] or [longest]
    border = draw(st.sampled_from(near))
    times = draw(st.sampled_from([1, 1, 2, 3]))
    beside = draw(st.sampled_from(_BESIDE) | st.integers(min(_BESIDE), max(_BESIDE)))
    return min(max(times * border + beside, 0), longest)


def _lengths(borders: tuple[int, ...], longest: int) -> st.SearchStrategy[int]:
    return st.sampled_from(_FEW_ROWS) | st.integers(0, longest) | _beside(borders, longest) | _beside(borders, longest)


@st.composite
def _keys(draw: st.DrawFn, lengths: list[int], *, paged: bool) -> dict[str, Any]:
    """Lengths, how they are given, and starts."""
    ways = ["int32", "int64", "list"]
    full = not paged and min(lengths) == max(lengths) > 0
    lengths_as = draw(st.sampled_from([*ways, "none"] if full else ways))
    if paged or lengths_as == "none" or draw(st.booleans()):
        return {"lengths": tuple(lengths), "lengths_as": lengths_as}
    starts = draw(st.lists(st.integers(0, 200), min_size=len(lengths), max_size=len(lengths)))
    return {"lengths": tuple(lengths), "lengths_as": lengths_as, "starts": tuple(starts)}


@st.composite
def _int8(draw: st.DrawFn, for_kernel: bool, placement: str) -> dict[str, Any]:
    """Which of K and V are int8, in three fifths of the cases, and the scales of each."""
    kinds = ["channel", "tensor", "token"]
    of_key = kinds[:2] if for_kernel and placement == "sampled_softmax" else kinds
    scales = draw(st.sampled_from(["", "", *of_key]))
    if not scales:
        return {}
    value_scales = draw(st.sampled_from(["", *kinds]))
    by_token = "token" in (scales, value_scales)
    dtypes = ["float32"] if for_kernel and by_token else ["float32", "float32", "float16", "bfloat16"]
    return {
        "int8": "both" if value_scales else "key",
        "scales": scales,
        "value_scales": value_scales,
        "scales_as": draw(st.sampled_from(dtypes)),
    }


@st.composite
def _compensation(draw: st.DrawFn, placement: str) -> dict[str, Any]:
    """A placement with an SDC that goes with it, and VMC where there is mass to give back."""
    if placement != "pre_softmax":
        return {"placement": placement, "vmc": draw(st.booleans())}
    sdc = draw(st.sampled_from(["exact", "none", "exp_threshold", "offline"]))
    return {"sdc": sdc, "vmc": sdc != "none" and draw(st.booleans()), "shared_theta": draw(st.booleans())}


def inputs_or_reject(case: Case, path: str = "auto", device: str = "cpu", *, for_kernel: bool = False) -> Inputs:
    """The case's tensors, poisoned where ``path`` reads nothing. Without a gap for a threshold it proves nothing."""
    if case.query_tokens > 1 and case.scores == "offset":
        reject()  # of so many rows one has no gap as a rule, and it takes long to see that
    poison = ("outside", "values") if path == "gather" else ("outside",)
    try:
        return make_inputs(case, device, poison=poison, for_kernel=for_kernel)
    except AssertionError as error:
        if "no inputs with a gap" not in str(error):
            raise
        reject()


def largest_score(inputs: Inputs) -> float:
    """About the largest score of any row: what the LSE of the rows comes to."""
    return float(inputs.expected.lse.abs().nan_to_num(posinf=0.0).max())
