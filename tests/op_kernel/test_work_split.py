"""The split of rows over cores, as the kernel compiles it: nothing lost, nothing twice, nobody with more to do."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emulator.cann import build_library
from tests.tiers import only

_HERE = Path(__file__).resolve().parent
_GRANULE, _FINE_GRANULE = 128, 32
_MINIMUM_GRANULES = 2
_MIN_FINE_GRANULES = 5  # 129 rows are two granules, the share of one core
_MAX_ROWS = 262144
_FIELDS = ("batch", "kv_head", "head_block", "row_begin", "row_end", "unit_rows", "first_core", "last_core")


class Segment(ctypes.Structure):
    """toptheta::Segment."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in _FIELDS)

    @property
    def unit(self) -> tuple[int, int, int]:
        return self.batch, self.kv_head, self.head_block

    def granules(self, rows: int) -> range:
        return range(self.row_begin // rows, -(-self.row_end // rows))


@dataclass(frozen=True)
class Work:
    rows: tuple[int, ...]
    kv_heads: int = 1
    head_blocks: int = 1

    @property
    def units(self) -> int:
        return len(self.rows) * self.kv_heads * self.head_blocks

    def unit_granules(self, granule: int = _GRANULE) -> list[int]:
        return [-(-rows // granule) for rows in self.rows]

    def granules(self, granule: int = _GRANULE) -> int:
        return sum(self.unit_granules(granule)) * self.kv_heads * self.head_blocks

    def active_cores(self, cores: int) -> int:
        return min(cores, max(self.granules() // _MINIMUM_GRANULES, 1))

    def granule(self, cores: int) -> int:
        """Rows: few where units of one length have cores of their own."""
        even = len(set(self.rows)) == 1 and self.active_cores(cores) % self.units == 0
        return _FINE_GRANULE if even else _GRANULE

    def flat(self, granule: int) -> Iterator[tuple[tuple[int, int, int], int]]:
        """(unit, granule of the unit) in the order in which cores take them."""
        for batch, granules in enumerate(self.unit_granules(granule)):
            for kv_head in range(self.kv_heads):
                for head_block in range(self.head_blocks):
                    for number in range(granules):
                        yield (batch, kv_head, head_block), number


@cache
def _library() -> ctypes.CDLL:
    source = _HERE / "probes" / "work_split.cpp"
    return ctypes.CDLL(str(build_library("work_split", [source], [_HERE.parents[1] / "op_kernel"])))


@dataclass(frozen=True)
class Total:
    granules: int
    granule_rows: int
    active_cores: int
    uniform: bool


def total_of(work: Work, cores: int) -> Total:
    granules, others = ctypes.c_uint64(), (ctypes.c_uint32 * 3)()
    rows = (ctypes.c_uint32 * len(work.rows))(*work.rows)
    _library().TotalOf(rows, len(rows), work.kv_heads * work.head_blocks, cores, ctypes.byref(granules), others)
    return Total(granules.value, others[0], others[1], bool(others[2]))


def segments_of(work: Work, cores: int, core: int) -> Sequence[Segment]:
    rows = (ctypes.c_uint32 * len(work.rows))(*work.rows)
    arguments = (rows, len(rows), work.kv_heads, work.head_blocks, cores, core)
    segments = (Segment * (len(rows) * work.kv_heads * work.head_blocks))()
    count = _library().SegmentsOf(*arguments, segments, len(segments))
    assert count <= len(segments), "more segments than units"
    return segments[:count]


def split(work: Work, cores: int) -> list[Sequence[Segment]]:
    return [segments_of(work, cores, core) for core in range(cores)]


_rows = st.one_of(
    st.integers(0, 700), st.sampled_from((0, 1, 127, 128, 129, 255, 256, 257)), st.integers(0, 20000),
)  # fmt: skip
_works = st.builds(
    Work,
    st.lists(_rows, min_size=1, max_size=9).map(tuple),
    st.sampled_from((1, 2, 3, 8)),
    st.sampled_from((1, 2, 5)),
)
_cores = st.one_of(st.sampled_from((20, 24, 40, 48)), st.integers(1, 64))


@given(_works, _cores)
@example(Work((0,)), 48)
@example(Work((0, 0, 0), 8), 48)
@example(Work((_MAX_ROWS,)), 48)
@example(Work((_MAX_ROWS, 0, 1), 2), 64)
@example(Work((2048,) * 6, 8), 48)
@example(Work((1,) * 9, 8, 5), 64)
def test_every_granule_is_taken_once_and_in_order(work: Work, cores: int) -> None:
    rows = work.granule(cores)
    segments = [segment for own in split(work, cores) for segment in own]
    assert [(each.unit, granule) for each in segments for granule in each.granules(rows)] == list(work.flat(rows))


@given(_works, _cores)
@example(Work((_MAX_ROWS, 1)), 48)
def test_segments_begin_at_granules_and_end_there_or_with_their_unit(work: Work, cores: int) -> None:
    granule = work.granule(cores)
    for own in split(work, cores):
        for segment in own:
            assert segment.unit_rows == work.rows[segment.batch]
            assert segment.row_begin % granule == 0
            assert segment.row_begin < segment.row_end <= segment.unit_rows
            assert segment.row_end % granule == 0 or segment.row_end == segment.unit_rows


@given(_works, _cores)
@example(Work((_MAX_ROWS,)), 48)
@example(Work((256,) * 3), 64)
@example(Work((0,)), 1)
def test_active_cores_come_first_with_an_even_share_of_at_least_the_minimum(work: Work, cores: int) -> None:
    granule = work.granule(cores)
    shares = [sum(len(segment.granules(granule)) for segment in own) for own in split(work, cores)]
    active = total_of(work, cores).active_cores
    assert active == work.active_cores(cores)
    assert 1 <= active <= cores
    assert not any(shares[active:])
    assert max(shares[:active]) - min(shares[:active]) <= 1
    least = _MINIMUM_GRANULES if granule == _GRANULE else _MIN_FINE_GRANULES
    assert active == 1 or min(shares[:active]) >= least


@given(_rows, st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 3)), st.integers(1, 12))
@example(2048, 8, 1, 6)
def test_cores_of_their_own_share_a_unit_evenly_and_no_other(
    rows: int, kv_heads: int, head_blocks: int, cores_each: int
) -> None:
    work = Work((rows,), kv_heads, head_blocks)
    cores = work.units * cores_each
    if work.active_cores(cores) % work.units:
        return
    for own in split(work, cores):
        assert len(own) <= 1
    lengths = [segment.row_end - segment.row_begin for own in split(work, cores) for segment in own]
    assert not lengths or max(lengths) - min(lengths) < 2 * _FINE_GRANULE


@given(st.one_of(_works, st.builds(lambda rows, count: Work((rows,) * count), _rows, st.integers(1, 48))), _cores)
@example(Work((2048,) * 6, 8), 48)
@example(Work((0,)), 48)
def test_cores_that_do_not_meet_share_no_unit(work: Work, cores: int) -> None:
    rows = (ctypes.c_uint32 * len(work.rows))(*work.rows)
    meet = _library().AnyCutOf(rows, len(rows), work.kv_heads * work.head_blocks, cores)
    cut = [segment for own in split(work, cores) for segment in own if segment.first_core != segment.last_core]
    assert meet or not cut
    even = len(set(work.rows)) == 1 and work.units % work.active_cores(cores) == 0
    assert not (meet and even), "equal units in equal numbers need no meeting"


@given(_works, _cores)
@example(Work((_MAX_ROWS,), 2), 24)
def test_segments_name_the_cores_that_share_their_unit(work: Work, cores: int) -> None:
    sharing: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for core, own in enumerate(split(work, cores)):
        for segment in own:
            sharing[segment.unit].append(core)
    for core, own in enumerate(split(work, cores)):
        for segment in own:
            assert (segment.first_core, segment.last_core) == (sharing[segment.unit][0], sharing[segment.unit][-1])
            assert core in range(segment.first_core, segment.last_core + 1)
            assert sharing[segment.unit] == list(range(segment.first_core, segment.last_core + 1))


@given(_works, _cores)
@example(Work((0, 0)), 48)
@example(Work((129, 255, 256)), 48)
@example(Work((2048,), 8), 48)
@example(Work((_MAX_ROWS,) * 9, 8, 5), 64)
def test_total(work: Work, cores: int) -> None:
    total = total_of(work, cores)
    assert total.granule_rows == work.granule(cores)
    assert total.granules == work.granules(total.granule_rows)
    assert total.uniform == (len(set(work.unit_granules())) == 1)


@pytest.mark.parametrize("cores", only({48}, [1, 20, 48, 64]))
def test_the_largest_batch_of_the_longest_sequences_stays_inside_64_bits(cores: int) -> None:
    work = Work((_MAX_ROWS,) * 65536, 8)
    assert total_of(work, cores).granules == 65536 * 8 * _MAX_ROWS // _GRANULE
    first, last = segments_of(work, cores, 0), segments_of(work, cores, cores - 1)
    assert (first[0].unit, first[0].row_begin) == ((0, 0, 0), 0)
    assert (last[-1].unit, last[-1].row_end) == ((65535, 7, 0), _MAX_ROWS)
