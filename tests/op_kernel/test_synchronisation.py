"""Every flag, barrier and SyncAll of the kernel is needed: without it the host model finds a race or a hang.

The sync calls are taken out one at a time. Without a SetFlag the core hangs that waits for it. A missing WaitFlag has
to show as accesses that nothing orders; that its flag is set twice or never waited for says nothing about them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cases import Case
from tests.helpers import Inputs, make_inputs
from tests.op_kernel.calls import assert_kernel_equals_oracle, call, statistics
from tests.tiers import full

_SOURCES = Path(__file__).resolve().parents[2] / "op_kernel"
_SYNC_CALL = re.compile(r"\b((?:CrossCore)?(?:Set|Wait)Flag|PipeBarrier|SyncAll)[<(]")
_FUNCTION = re.compile(r"\bTOPTHETA_DEVICE\b.*?(\w+)\(")
#: Misuse of flags, whatever the flags are for.
_FLAG_CHECKS = {"WaitWithoutSet", "FlagSetTwice", "FlagNeverWaited"}


@dataclass(frozen=True)
class Probe:
    """A call of the kernel that shows what some of the sync calls are for."""

    case: Case
    options: dict[str, Any]


def _probe(name: str, heads: int, head_dim: int, lengths: tuple[int, ...], cores: int, **more: Any) -> Probe:
    options = {"cube": False} | {option: more.pop(option) for option in ("partial", "path", "cube") if option in more}
    shape: dict[str, Any] = {"heads": heads, "kv_heads": 1, "head_dim": head_dim, "lengths": lengths}
    return Probe(Case(name, **({"dtype": "float16"} | shape | more)), {"cores": cores, **options})


_POST = {"placement": "post_softmax"}
_SAMPLE = {"placement": "sampled_softmax"}
_PAGED = {"paged": "4d", "block_size": 16}
_TOKEN = {"int8": "both", "scales": "token"}
#: Those that need most of the sync calls come first.
_PROBES = (
    _probe("head-blocks-post", 9, 16, (700, 0), 3, theta="mixed", **_POST),
    _probe("paged-two-cores", 1, 16, (5000, 300), 2, **_PAGED),
    _probe("cut-vmc", 2, 80, (700,), 2, dtype="bfloat16", vmc=True, sink=True),
    _probe("head-blocks", 9, 16, (700, 0), 3, theta="mixed"),
    _probe("exp-threshold", 2, 16, (700, 50), 2, sdc="exp_threshold", vmc=True),
    _probe("offline", 2, 16, (700, 50), 2, sdc="offline", vmc=True, theta="mixed"),
    _probe("full-cache", 2, 16, (300,), 2, kv_heads=2, dtype="bfloat16", lengths_as="none"),
    _probe("slices-of-lengths", 1, 16, (20,) * 140, 2),
    _probe("nothing-twice", 1, 16, (1400, 1400), 1, theta="nothing"),
    _probe("nothing-paged", 2, 16, (3000,) * 4, 1, theta="nothing", **_PAGED),
    _probe("nothing-part", 2, 16, (300,), 1, theta="nothing", partial=True),
    _probe("head-blocks-one-core", 9, 16, (300, 300, 40), 1),
    _probe("head-dim-64", 1, 64, (300,), 1, dtype="bfloat16"),
    _probe("list-of-many-tiles", 1, 64, (4000,), 1, theta="dense"),
    _probe("list-of-two-tiles", 2, 64, (4000,), 1, keep=0.4, path="gather"),
    _probe("list-in-two-parts", 1, 64, (1900, 1900), 1, keep=0.06),
    _probe("post-paged", 1, 16, (6000,), 1, **_PAGED, **_POST),
    _probe("post-two-cores", 2, 16, (9000,), 2, **_POST),
    _probe("post-scores-in-workspace", 8, 16, (6000, 300), 1, **_POST),
    _probe("more-parts-than-fit", 4, 480, (28 * 256,), 28, dtype="bfloat16", keep=0.02),
    _probe("int8-cut", 2, 96, (2500,), 2, **_TOKEN, vmc=True),
    _probe("int8-channel", 2, 64, (1900, 300), 1, dtype="bfloat16", int8="both"),
    _probe("int8-nothing-paged", 2, 32, (3000,) * 3, 1, theta="nothing", **_PAGED, **_TOKEN),
    _probe("int8-post", 2, 32, (1500, 300), 1, **_TOKEN, **_POST),
    _probe("int8-key", 3, 64, (4000,), 1, dtype="bfloat16", int8="key", scales="token", keep=0.4, path="gather"),
    _probe("int8-dense", 1, 128, (1200,), 1, **_TOKEN, theta="dense"),
    _probe("cube-many-rounds", 4, 128, (2300, 900), 2, cube=True),
    _probe("cube-many-segments", 3, 16, (300, 40) * 4, 2, cube=True),
    _probe("cube-short-segments", 3, 16, (100,) * 12 + (1500,), 2, cube=True),
    _probe("cube-unequal-cores", 9, 64, (1900, 300), 4, cube=True, theta="mixed"),
    _probe("cube-post", 4, 64, (3000, 100), 2, cube=True, **_POST),
    _probe("cube-pieces-that-nobody-keeps", 2, 64, (1024,), 2, dtype="bfloat16", keep=0.01, cube=True, path="dense"),
    _probe("cube-paged", 4, 16, (3000,) * 3, 2, cube=True, theta="nothing", **_PAGED),
    _probe("cube-int8", 4, 96, (2300, 0, 900), 2, cube=True, int8="both"),
    _probe("cube-int8-rows-as-one", 4, 128, (3900, 1400), 2, cube=True, **_TOKEN),
    _probe("cube-int8-many-heads", 8, 32, (2300, 900), 2, cube=True, dtype="bfloat16", int8="both"),
    _probe("cube-int8-many-segments", 3, 32, (300, 40) * 4, 2, cube=True, **_TOKEN),
    _probe("cube-int8-dense", 4, 64, (3000,), 2, cube=True, theta="dense", **_TOKEN),
    _probe("tokens", 2, 64, (1300, 40), 2, cube=True, query_tokens=3, query_lengths=(3, 1), vmc=True, sink=True,
           shared_theta=True),
    _probe("tokens-cut", 2, 64, (1300,), 4, cube=True, query_tokens=3, theta="mixed", shared_theta=True, sink=True),
    _probe("tokens-of-two-blocks", 4, 32, (900, 300), 4, cube=True, query_tokens=4, query_lengths=(4, 2),
           layout="BSND", dtype="bfloat16"),
    _probe("sampled", 2, 64, (1900, 300), 2, **_SAMPLE),
    _probe("cube-sampled", 4, 64, (1900, 300), 2, cube=True, **_SAMPLE),
    _probe("cube-int8-post", 4, 128, (3900, 100), 2, cube=True, int8="key", scales="token", **_POST),
)  # fmt: skip
_BY_ID = {probe.case.id: probe for probe in _PROBES}

_LAST_WAIT = "takes the last flag away at the end of the kernel, where nothing follows"
_SYNCED_BEFORE = "what it orders is ordered by then, by barriers or flags that every way to it passes"
#: Sync calls whose loss nothing shows, by their place, and why that is so.
WAIVERS = {
    ("value_pipeline.h", "DrainValues", "stream_.Drain();", "WaitFlag<HardEvent::V_MTE2>(kValueEvent);"): _LAST_WAIT,
    ("row_stream.h", "Drain", "for (uint32_t slot = 0; slot < Slots(); slot++) {",
     "WaitFlag<HardEvent::V_MTE2>(slot);"): _LAST_WAIT,
    ("cube_scores.h", "Process", "for (uint32_t left = Least(round, kRingRounds); left > 0; left--) {",
     "AscendC::CrossCoreWaitFlag(PlaceFree(round - left));"): _LAST_WAIT,
    **{("cube_scores.h", "WaitForFreeFlags", f"for (uint32_t {one} = 0; {one} < {all_}; {one}++) {{",
        f"WaitFlag<HardEvent::{event}>({place});"): _LAST_WAIT
       for one, all_, event, place in (("place", "kPlaces", "MTE1_MTE2", "place"),
                                       ("place", "kPlaces", "FIX_M", "place"),
                                       ("half", "kHalves", "M_MTE1", "kHalfEvent + half"))},
    ("score_ring.h", "Finish", "while (round_ < rounds_) {", "AscendC::CrossCoreWaitFlag(kScoresReady);"):
        "takes away the flags of rounds in which this core reads nothing",
    ("partial_exchange.h", "Drain", "",
     "TOPTHETA_DEVICE inline void Drain() { WaitFlag<HardEvent::MTE3_S>(kEvent); }"): _LAST_WAIT,
    ("score_store.h", "Drain", "",
     "TOPTHETA_DEVICE inline void Drain() { WaitFlag<HardEvent::MTE3_V>(kStoreEvent); }"): _LAST_WAIT,
    ("value_gather.h", "AddSingleRow", "MakeSingleWeight();", "WaitFlag<HardEvent::V_MTE2>(event_);"):
        "the flag before it orders all that the vector unit has done; this one is taken away for the next user",
    ("value_gather.h", "Fetch", "if (fetched_ == 0) {", "WaitFlag<HardEvent::V_MTE2>(event_);"):
        "the scalar unit has waited for the count of the list, so for all that read the room before; the flag is one "
        "for all users of the room, and AddSingleRow needs it",
    ("chunk_scores.h", "FillTailsOf", "if (chunk.rows % kLanes > 0) {", "PipeBarrier<PIPE_V>();"):
        "the two instructions write different lanes of the same 32-byte block; no document says that a masked store "
        "leaves the rest of a block alone while another is under way",
    ("chunk_selection.h", "ReadCounts",
     "LocalTensor<int32_t> counts = ub_->ReduceFirst().template ReinterpretCast<int32_t>();",
     "PipeBarrier<PIPE_V>();"): _SYNCED_BEFORE,
    ("incremental_attention_kernel.h", "SetLimits", "}", "WaitFlag<HardEvent::S_V>(kEvent);"): _SYNCED_BEFORE,
    ("partial_exchange.h", "WaitForHeaders", "{", "WaitFlag<HardEvent::MTE2_V>(kHeaderEvent);"):
        "the scalar unit waits for the same copies before it issues the instructions that read them",
    ("compensation.h", "CountStandIn", "if (!tiling_->partial) {", "PipeBarrier<PIPE_V>();"): _SYNCED_BEFORE,
    ("row_output.h", "AddValueMean", "LocalTensor<float> work = ub_->Partials();",
     "PipeBarrier<PIPE_V>();"): _SYNCED_BEFORE,
    ("score_store.h", "Load", "}", "PipeBarrier<PIPE_V>();"): _SYNCED_BEFORE,
    ("unit_parameters.h", "BlocksOf", "LocalTensor<float> blocks = ub_->PerHeadBlocks();",
     "PipeBarrier<PIPE_V>();"): _SYNCED_BEFORE,
}  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A sync call in the sources. ``place`` finds it again when line numbers have changed."""

    file: str
    line: int
    kind: str
    place: tuple[str, str, str, str]  # file, function, the line before that is not a sync call, its own text

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.kind}"


def _sites_of(path: Path) -> Iterator[Site]:
    lines = path.read_text().splitlines()
    function = before = ""
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0].strip()
        if found := _FUNCTION.search(code):
            function = found[1]
        calls = _SYNC_CALL.findall(code)
        for kind in calls:
            yield Site(path.name, number, kind, (path.name, function, before, code))
        before = before if calls else code


SITES = tuple(site for path in sorted(_SOURCES.iterdir()) for site in _sites_of(path))


@cache
def inputs_of(name: str) -> Inputs:
    return make_inputs(_BY_ID[name].case, for_kernel=True)


@cache
def executed_by(name: str) -> frozenset[str]:
    """Names of the sync calls that the unchanged kernel makes; its findings and results are checked on the way."""
    probe = _BY_ID[name]
    result = call(inputs_of(name).arguments, trace=False, **probe.options)
    result.run.require_clean()
    if not probe.options.get("partial"):
        assert_kernel_equals_oracle(inputs_of(name), statistics(result))
    return frozenset(site.name for site in result.run.sync_sites)


def is_missed(name: str, site: Site) -> bool:
    """Whether a run without this sync call shows what it is for."""
    run = call(inputs_of(name).arguments, trace=False, suppress=[site.name], **_BY_ID[name].options).run
    return bool(set(run.checks) - (_FLAG_CHECKS if site.kind.endswith("WaitFlag") else set()))


@full
def test_probes_make_every_sync_call_of_the_sources() -> None:
    made = {name for probe in _PROBES for name in executed_by(probe.case.id) if name.split(":")[1] != "0"}
    assert {site.name for site in SITES} == made
    assert len(SITES) == len(made), "two calls of one kind on a line can not be told apart"


def test_every_waiver_means_one_sync_call() -> None:
    places = Counter(site.place for site in SITES)
    assert {place: places[place] for place in WAIVERS} == dict.fromkeys(WAIVERS, 1)


@pytest.mark.parametrize("file", sorted({site.file for site in SITES}))
def test_a_missing_sync_call_is_found(file: str) -> None:
    unnoticed = []
    for site in SITES:
        if site.file == file:
            making = [probe.case.id for probe in _PROBES if site.name in executed_by(probe.case.id)]
            if not any(is_missed(name, site) for name in making):
                unnoticed.append(site.place)
    assert sorted(unnoticed) == sorted(place for place in WAIVERS if place[0] == file)


@pytest.mark.parametrize(
    ("rows", "heads", "placement", "meetings"),
    [
        (40, 1, "pre_softmax", 0),
        (600, 1, "pre_softmax", 1),
        (600, 1, "post_softmax", 2),
        (600, 1, "sampled_softmax", 1),
        (40, 9, "pre_softmax", 1),
        (40, 9, "post_softmax", 1),
        (600, 9, "pre_softmax", 2),
        (600, 9, "post_softmax", 3),
    ],
)
def test_cores_without_work_meet_the_others(rows: int, heads: int, placement: str, meetings: int) -> None:
    """40 rows are one granule, which is never cut; 600 rows are cut, and heads of two blocks add up their rows.

    The cache has room for so many rows that the launch takes all cores.
    """
    case = Case("idle", dtype="float16", heads=heads, kv_heads=1, lengths=(rows,), starts=(96 * 128,),
                placement=placement)  # fmt: skip
    inputs = make_inputs(case)
    result = call(inputs.arguments, cores=48)
    result.run.require_clean()
    assert_kernel_equals_oracle(inputs, statistics(result))
    assert [site.count for site in result.run.sync_sites if site.kind == "SyncAll"] == [48] * meetings
