"""Merges the shards of one calibration."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import NamedTuple

from safetensors import safe_open

from .._files import checked_path, file_error
from ..errors import TopThetaTypeError, TopThetaValueError, shortened, shown
from ..thresholds import ThresholdTable
from .shard import Shard
from .state import KIND, CalibrationState

_REMEDY = "give every shard of one calibration, each once"


class MergedShard(NamedTuple):
    """Describe a shard that counts: its name, which it is, and how many sequences and tokens it saw."""

    name: str
    shard: Shard
    sequences: int
    tokens: int


class ShardMerger:
    """Add up the shards of one calibration; each is looked at before it counts.

    Attributes:
        shards: those that were added.

    Example:
        >>> from toptheta_npu.calibration import Calibrator
        >>> from toptheta_npu.calibration.shard import WholeSet
        >>> calibrator = Calibrator(1, 2, k=[8], longest=64, layer_k=[0])
        >>> state = CalibrationState(calibrator=calibrator, fingerprint="demo", dtype="float32", run={}, provenance={},
        ...                          whole=WholeSet("", 0))
        >>> merger = ShardMerger()
        >>> merger.add("first", state)
        >>> merger.shards
        [MergedShard(name='first', shard=Shard(index=0, count=1), sequences=0, tokens=0)]
    """

    def __init__(self) -> None:
        self.shards: list[MergedShard] = []
        self._merged: CalibrationState | None = None
        self._provenance: dict[str, list[str]] = {}

    def add(self, name: object, state: CalibrationState) -> None:
        """Add the shard ``state``, which is the merger's own from then on; ``name`` is for the error messages.

        Raises:
            TopThetaValueError: it is not finished, there already, or of another calibration.
        """
        if not state.finished:
            got = f"one that stopped after {len(state.seen)} of its sequences"
            raise file_error(name, "a finished shard", got, "run it again with the same path: it goes on from there")
        if self._merged is not None:
            self._check(name, state, self._merged)
        tokens = sum(each.tokens for each in state.seen)
        self.shards.append(MergedShard(str(name), state.shard, len(state.seen), tokens))
        for key, text in state.provenance.items():
            texts = self._provenance.setdefault(key, [])
            texts += [text] * (text not in texts)
        if self._merged is None:
            self._merged = state
        else:
            self._merged.calibrator.merge(state.calibrator)
            self._merged.seen += state.seen

    def merged(self) -> CalibrationState:
        """Give the sum of all shards.

        Raises:
            TopThetaValueError: a shard is missing.
        """
        if self._merged is None:
            raise TopThetaValueError("shards", "one or more", "none", "give each of them once")
        count, there = self._merged.shard.count, {each.shard.index for each in self.shards}
        missing = [str(index) for index in range(count) if index not in there]
        if missing:
            got = shortened(f"all but {', '.join(missing)}")
            raise TopThetaValueError("shards", f"every shard from 0 to {count - 1}", got, _REMEDY)
        self._merged.provenance = {key: "; ".join(texts) for key, texts in self._provenance.items()}
        return self._merged

    def _check(self, name: object, state: CalibrationState, first: CalibrationState) -> None:
        different = first.differences(state, "there")
        if state.shard.count != first.shard.count:
            different.append(f"count={state.shard.count} (there {first.shard.count})")
        elif state.whole != first.whole:
            different.append("other sequences")
        if different:
            got = f"one with {', '.join(different)}"
            raise file_error(name, f"a shard of the same calibration as {self.shards[0].name}", got, _REMEDY)
        for other in self.shards:
            if other.shard == state.shard:
                got = f"shard {state.shard.index} again, which {other.name} is"
                raise file_error(name, f"another shard of the {state.shard.count}", got, _REMEDY)


def merge_shards(paths: Sequence[str | os.PathLike[str]]) -> ThresholdTable:
    """Make the table of a calibration whose shards lie in files, in any order.

    With the estimator "pooled" it is that of a single process, byte for byte; with "algorithm1" up to rounding. Of
    the provenance, texts in which the shards differ stand side by side.

    Args:
        paths: one file per shard, as ``toptheta_npu.models.calibrate_shard`` writes them.

    Returns:
        A table for ``sparsify``.

    Raises:
        TopThetaTypeError: not a list of paths.
        TopThetaValueError: a file cannot be read, is no finished shard, or of another calibration; or a shard is
            missing or there twice. The message names the file.

    Example:
        >>> merge_shards([])
        Traceback (most recent call last):
        toptheta_npu.errors.TopThetaValueError: shards: expected one or more, got none; give each of them once
    """
    return merged_files(paths).merged().table()


def merged_files(paths: Sequence[str | os.PathLike[str]]) -> ShardMerger:
    """Add up the shards in files by their indices, so that the order of ``paths`` does not matter.

    Raises:
        TopThetaTypeError, TopThetaValueError: as `merge_shards`, but for missing shards.
    """
    if not isinstance(paths, (list, tuple)):
        raise TopThetaTypeError("paths", "a list of the shards' files", shown(paths))
    merger = ShardMerger()
    for path in sorted(paths, key=_index_in):
        merger.add(path, CalibrationState.load(path))
    return merger


def _index_in(path: str | os.PathLike[str]) -> int:
    """Read what a file says of its index alone. What cannot be read comes first, to be refused."""
    if not checked_path(path).is_file():
        return -1
    try:
        with safe_open(str(path), framework="pt") as file:
            return int(json.loads(file.metadata()[KIND.key])["index"])
    # whatever is wrong with it, loading says so in words
    except Exception:
        return -1
