"""Decode steps that nobody thought of: a hypothesis strategy over everything a `Case` can say."""

from __future__ import annotations

from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from tests.cases import Case
from tests.helpers import Inputs, make_inputs

_MOST_WORK = 3_000_000  # query heads x keys x head_dim: what the host model does in about a second


@st.composite
def random_cases(draw: st.DrawFn, *, for_kernel: bool) -> Case:
    """Any valid case; ``for_kernel`` keeps to the kernel's dtypes, sizes and page sizes."""
    step = 16 if for_kernel else 1
    dtypes = ["float16", "bfloat16"] if for_kernel else ["float16", "bfloat16", "float32"]
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    sizes = st.sampled_from([16, 64, 80, 128]) | st.integers(16 // step, 512 // step).map(lambda size: size * step)
    head_dim = draw(sizes)
    paged = draw(st.sampled_from(["", "", "4d", "3d"]))
    longest = max(20, min(3000, _MOST_WORK // (kv_heads * group * head_dim)))
    edges = [length for length in (0, 1, 16, 17, 127, 128, 129, 1024, 1025) if length <= longest]
    lengths = draw(st.lists(st.sampled_from(edges) | st.integers(0, longest), min_size=1, max_size=5))
    while sum(lengths) > longest and len(lengths) > 1:
        lengths.pop()
    return Case(
        "random",
        dtype=draw(st.sampled_from(dtypes)),
        layout=draw(st.sampled_from(["BNSD", "BSND", "BSH"])),
        paged=paged,
        block_size=draw(st.integers(16 // step, 512 // step)) * step if paged else 0,
        blocks=draw(st.sampled_from(["permuted", "descending"])),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        theta=draw(st.sampled_from(["quantile", "quantile", "quantile", "mixed", "dense", "inf", "nothing"])),
        keep=draw(st.sampled_from([0.01, 0.03, 0.1, 0.3, 0.45, 0.9])),
        scores=draw(st.sampled_from(["plain", "plain", "plain", "steep", "offset"])),
        scale=draw(st.sampled_from([None, None, 0.25, 1.0, -0.5])),
        sink=draw(st.sampled_from([False, False, True])),
        **draw(_keys(lengths, paged=bool(paged))),
        **draw(_compensation()),
    )


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
def _compensation(draw: st.DrawFn) -> dict[str, Any]:
    """A placement with an SDC that goes with it, and VMC where there is mass to give back."""
    if draw(st.sampled_from([False, False, True])):
        return {"placement": "post_softmax", "vmc": draw(st.booleans())}
    sdc = draw(st.sampled_from(["exact", "none", "exp_threshold", "offline"]))
    return {"sdc": sdc, "vmc": sdc != "none" and draw(st.booleans()), "shared_theta": draw(st.booleans())}


def inputs_or_reject(case: Case, path: str = "auto", device: str = "cpu") -> Inputs:
    """The case's tensors, poisoned where ``path`` reads nothing. Without a gap for a threshold it proves nothing."""
    poison = ("outside", "values") if path == "gather" else ("outside",)
    try:
        return make_inputs(case, device, poison=poison)
    except AssertionError as error:
        if "no inputs with a gap" not in str(error):
            raise
        reject()


def largest_score(inputs: Inputs) -> float:
    """About the largest score of any row: what the LSE of the rows comes to."""
    return float(inputs.expected.lse.abs().nan_to_num(posinf=0.0).max())
