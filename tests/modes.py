"""The modes of a call, the pairs and triples of them that a backend takes, and a few calls that have all of these."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from tests.cases import Case

#: A value of each axis in turn.
Modes = tuple[str, ...]
#: Values of some axes, as (axis, value).
Meeting = tuple[tuple[str, str], ...]

AXES: dict[str, tuple[str, ...]] = {
    "placement": ("pre_softmax", "post_softmax", "sampled_softmax"),
    "scales of K": ("none", "channel", "tensor", "token"),
    "scales of V": ("none", "channel", "tensor", "token"),
    "pages": ("none", "4d", "3d"),
    "query tokens": ("one", "several"),
    "sink": ("no", "yes"),
    "dtype": ("float16", "bfloat16", "float32"),
}
#: What no backend takes, and why. Whatever has two such values is refused.
EXCLUDED: dict[str, dict[str, tuple[str, ...]]] = {
    "V is int8 only beside an int8 K": {"scales of K": ("none",), "scales of V": ("channel", "tensor", "token")},
}
#: What the NPU kernel does not take besides.
EXCLUDED_ON_NPU: dict[str, dict[str, tuple[str, ...]]] = {
    "on an NPU, rows have 16 bits": {"dtype": ("float32",)},
    "on an NPU, several query tokens are pre-softmax": {
        "query tokens": ("several",), "placement": ("post_softmax", "sampled_softmax"),
    },
    "on an NPU, keys of a sample do not follow one another, as scales of tokens do": {
        "placement": ("sampled_softmax",), "scales of K": ("token",),
    },
}  # fmt: skip


def excluded(*, for_kernel: bool) -> dict[str, dict[str, tuple[str, ...]]]:
    """The values that may not meet, by the reason."""
    return EXCLUDED | EXCLUDED_ON_NPU if for_kernel else EXCLUDED


def reason_against(meeting: Mapping[str, str], *, for_kernel: bool) -> str | None:
    """Why values do not meet; None where they do."""
    for reason, values in excluded(for_kernel=for_kernel).items():
        if all(meeting.get(axis) in those for axis, those in values.items()):
            return reason
    return None


def modes_of(case: Case) -> Modes:
    """The modes of a case."""
    return (
        case.placement, case.scales_of("key") or "none", case.scales_of("value") or "none", case.paged or "none",
        "several" if case.query_tokens > 1 else "one", "yes" if case.sink else "no", case.dtype,
    )  # fmt: skip


def case_of(modes: Modes, **shape: Any) -> Case:
    """A case with these modes and, besides the shape, a threshold beside a score."""
    placement, key, value, paged, tokens, sink, dtype = modes
    scales: dict[str, Any] = {
        "int8": "both" if value != "none" else "key",
        "scales": key,
        "value_scales": value if value != "none" else "",
    }
    several: dict[str, Any] = {"query_tokens": 3, "query_lengths": (3, 2)}
    return Case(
        "-".join(modes),
        placement=placement,
        paged=paged if paged != "none" else "",
        block_size=16 if paged != "none" else 0,
        sink=sink == "yes",
        dtype=dtype,
        kv_heads=1,
        theta="beside",
        **(scales if key != "none" else {}),
        **(several if tokens == "several" else {}),
        **shape,
    )


def meetings_of(modes: Modes, size: int) -> Iterable[Meeting]:
    """The pairs (``size`` 2) or triples (3) of a call's modes."""
    return itertools.combinations(zip(AXES, modes, strict=True), size)


@cache
def legal_modes(*, for_kernel: bool) -> tuple[Modes, ...]:
    """All modes that a backend takes."""
    return tuple(
        modes for modes in itertools.product(*AXES.values())
        if reason_against(dict(zip(AXES, modes, strict=True)), for_kernel=for_kernel) is None
    )  # fmt: skip


@cache
def legal_meetings(size: int, *, for_kernel: bool) -> frozenset[Meeting]:
    """All pairs or triples that some call has."""
    return frozenset(each for modes in legal_modes(for_kernel=for_kernel) for each in meetings_of(modes, size))


@cache
def covering(size: int, *, for_kernel: bool) -> tuple[Modes, ...]:
    """Few modes that have all pairs or triples between them; those of the triples begin with those of the pairs."""
    found = list(covering(size - 1, for_kernel=for_kernel)) if size > 2 else []
    bits = {meeting: 1 << at for at, meeting in enumerate(sorted(legal_meetings(size, for_kernel=for_kernel)))}
    has = {modes: sum(bits[each] for each in meetings_of(modes, size)) for modes in legal_modes(for_kernel=for_kernel)}
    left = (1 << len(bits)) - 1
    for modes in found:
        left &= ~has[modes]
    while left:
        best = max(has, key=lambda modes: (has[modes] & left).bit_count())
        found.append(best)
        left &= ~has[best]
    return tuple(found)


def table_of(seen: Counter[Meeting], size: int, *, for_kernel: bool) -> str:
    """How many pairs or triples of each group of axes there are, how often the rarest came, and what is left out."""
    lines = [f"{'axes':<66} legal  seen  fewest calls"]
    legal = legal_meetings(size, for_kernel=for_kernel)
    for axes in itertools.combinations(AXES, size):
        those = [each for each in legal if tuple(axis for axis, _ in each) == axes]
        counts = [seen[each] for each in those]
        lines.append(f"{' x '.join(axes):<66} {len(those):5} {sum(map(bool, counts)):5} {min(counts):13}")
    for reason, values in excluded(for_kernel=for_kernel).items():
        lines.append(f"excluded: {values}: {reason}")
    return "\n".join(lines)
