"""The work of ``toptheta calibrate``: interrupted and resumed, in shards, or in the ranks of torchrun."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from ..._files import check_writable
from ...calibration.part import OWN_STATE
from ...errors import TopThetaCombinationError, TopThetaValueError, shown
from ..common.table_file import check_output
from .options import Options

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ...calibration.part import Part
    from ...thresholds import ThresholdTable

_BACKENDS = {"cuda": "nccl", "npu": "hccl"}


def parse_shard(text: str) -> Part:
    """Read the part that a text such as "0/4" names.

    Raises:
        TopThetaValueError: no such part.

    Example:
        >>> parse_shard("0/4")
        Part(index=0, count=4)
    """
    from ...calibration.part import Part

    pair = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    if pair is None or int(pair[1]) >= int(pair[2]):
        raise TopThetaValueError("--shards", "INDEX/COUNT, with INDEX from 0 to COUNT - 1", shown(text), "such as 0/4")
    return Part(int(pair[1]), int(pair[2]))


def shard_file(output: Path, part: Part) -> Path:
    """Name the file for a shard of the calibration of ``output``; its state is there too.

    Example:
        >>> from toptheta_npu.calibration.part import Part
        >>> str(shard_file(Path("model.theta"), Part(0, 4)))
        'model.theta.shard-0-of-4'
    """
    return output.with_name(f"{output.name}.shard-{part.index}-of-{part.count}")


def state_file(output: Path) -> Path:
    """Name the file for the state of the calibration of ``output``."""
    return output.with_name(f"{output.name}.partial")


@contextmanager
def resumable(state: Path) -> Iterator[None]:
    """Say of what is wrong with the file of a state that ``--restart`` mends it."""
    try:
        yield
    except TopThetaValueError as error:
        # an error of the disk is not mended so
        if error.argument != str(state) or isinstance(error.__cause__, OSError):
            raise
        remedy = "add --restart to replace it and begin anew, or name another output with -o"
        if error.expected == OWN_STATE:
            remedy = f"give the options and texts that it was made with, {remedy}"
        raise TopThetaValueError(error.argument, error.expected, error.got, remedy) from error


def noted(progress: Callable[[int], None], note: Callable[[], None]) -> Callable[[int], None]:
    """Wrap ``progress`` so that its first call comes after a call of ``note``."""
    notes = [note]

    def call(done: int) -> None:
        if notes:
            notes.pop()()
        progress(done)

    return call


class Ranks:
    """The processes of torchrun that calibrate together; without torchrun, this one alone."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1")) if dist.is_torchelastic_launched() else 1
        self.rank = int(os.environ.get("RANK", "0")) if self.count > 1 else 0

    @property
    def first(self) -> bool:
        """Whether this is the one that prints and writes."""
        return self.rank == 0

    @contextmanager
    def together(self, device: str) -> Iterator[None]:
        """Form a process group of all ranks, each with a device of its own."""
        if self.count == 1:
            yield
            return
        if device in _BACKENDS:
            accelerator: Any = getattr(torch, device)
            accelerator.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(_BACKENDS.get(device, "gloo"))
        try:
            yield
        finally:
            dist.destroy_process_group()

    def calibrate(self, model: PreTrainedModel, state: Path, every: int, options: Mapping[str, Any]) -> ThresholdTable:
        """Calibrate the table, the same in all ranks."""
        from ...models import calibrate, calibrate_distributed

        function = calibrate if self.count == 1 else calibrate_distributed
        return function(model, checkpoint=state, checkpoint_every=every, **options)

    def find_scales(
        self, model: PreTrainedModel, table: ThresholdTable, windows: list[Tensor], progress: Callable[[int], None]
    ) -> ThresholdTable:
        """Extend ``table`` by scales of an int8 cache, the same in all ranks. ``windows`` are those of this rank."""
        from ...models.calibration.cache_scales import largest_scales, with_scales

        own = largest_scales(model, table, windows, progress=progress)
        if self.count == 1:
            return with_scales(table, *own)
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, own)
        keys, values = (torch.stack(scales).amax(0) for scales in zip(*found, strict=True))
        return with_scales(table, keys, values)

    def after_the_first(self, saved: bool) -> None:
        """Wait for the first rank, which says whether the table is saved.

        Raises:
            TopThetaValueError: it is not.
        """
        if self.count == 1:
            return
        answer = [saved]
        dist.broadcast_object_list(answer, src=0)
        if not answer[0]:
            raise TopThetaValueError("rank 0", "the table saved", "an error there", "see what that rank says")

    def own_state(self, state: Path) -> Path:
        """Name the file in which this rank keeps its state."""
        return state if self.count == 1 else state.with_name(f"{state.name}.rank{self.rank}")


def checked_part(output: Path, force: bool, shards: str | None, ranks: Ranks) -> Part | None:
    """Check where the work goes, and which part of it this is; None: all of it."""
    if shards is None:
        check_output(output, force)
        state = state_file(output)
        # a longer name than that of the table may be too long
        check_writable(ranks.own_state(state), "--output")
        return None
    if ranks.count > 1:
        other = "torchrun, whose ranks share the windows"
        raise TopThetaCombinationError("--shards", "excludes", other, "leave one of them out")
    part = parse_shard(shards)
    check_writable(shard_file(output, part), "--output")
    return part


def resuming(restart: bool, state: Path, console: Console, progress: Callable[[int], None]) -> Callable[[int], None]:
    """Go back to the start where that is wished; else let ``progress`` say that it does not, once the state fits."""
    if restart:
        state.unlink(missing_ok=True)
    if not state.exists():
        return progress
    note = f"note: going on from {escape(str(state))}; --restart begins anew."
    return noted(progress, lambda: console.print(note))


def own_windows(windows: int, part: Part | None, ranks: Ranks) -> int:
    """Tell how many of the windows are run here."""
    index, count = (ranks.rank, ranks.count) if part is None else (part.index, part.count)
    return len(range(index, windows, count))


def run_shard(network: PreTrainedModel, part: Part, options: Options, arguments: Mapping[str, Any]) -> None:
    """Calibrate one part, into its file."""
    from ...models import calibrate_shard

    calibrate_shard(
        network, index=part.index, count=part.count, path=shard_file(options.output, part),
        checkpoint_every=options.checkpoint_every, **arguments,
    )  # fmt: skip


def keep(table: ThresholdTable, output: Path, ranks: Ranks, state: Path) -> None:
    """Save the table in one of the ranks; the states are then not needed any more."""
    saved = False
    try:
        if ranks.first:
            _save(table, output)
            saved = True
    finally:
        ranks.after_the_first(saved)
    ranks.own_state(state).unlink(missing_ok=True)


def _save(table: ThresholdTable, output: Path) -> None:
    """Save the table; where that fails, it is not lost but saved elsewhere."""
    try:
        table.save(output)
    except TopThetaValueError as error:
        reason = getattr(error.__cause__, "strerror", None) or str(error)
        remedy = "free some space and run the same command again: what it found is kept"
        with suppress(OSError, TopThetaValueError):
            rescue = Path(tempfile.mkdtemp(prefix="toptheta-")) / "thresholds.theta"
            table.save(rescue)
            remedy = f"the table is not lost: it is in {rescue}, move it from there"
        expected, got = "a place where the table can be written", f"{reason} at {output}"
        raise TopThetaValueError("--output", expected, got, remedy) from error
