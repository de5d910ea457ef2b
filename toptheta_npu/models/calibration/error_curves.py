"""Error curves of a table: what its thresholds lose in every head at every k, and what budgets of all heads lose."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch.distributed as dist
from transformers import PreTrainedModel

from ..._files import checked_path
from ...calibration.error_state import ErrorState, first_pass_of
from ...calibration.part import Part
from ...calibration.shards import merged_parts
from ...errors import TopThetaTypeError, shown
from ...thresholds import ThresholdTable
from .distributed import all_parts, check_same, in_step, own_file
from .error_job import ROW_FRACTION, ErrorJob, ErrorOptions
from .job import Progress
from .ranks import Ranks
from .texts import Sequences


def calibrate_error_curves(
    model: PreTrainedModel,
    table: ThresholdTable,
    sequences: Sequences,
    *,
    lengths: Sequence[int] | None = None,
    sdc: Literal["exact", "none"] = "exact",
    vmc: bool = True,
    row_fraction: float = ROW_FRACTION,
    seed: int = 0,
    longest: int | None = None,
    progress: Progress | None = None,
    provenance: Mapping[str, str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 16,
) -> ThresholdTable:
    """Extend a copy of ``table`` by what its thresholds lose, so that `sparsify` can choose k for every head.

    The model runs twice over sequences that made no thresholds, dense. The first time every head is looked at alone,
    at every k of the table. The second time a dozen budgets, chosen by that, are looked at with all heads of a layer
    together: errors of several heads add up, and V rows that several heads of a group want are read once.

    Args:
        model, longest: as in `calibrate`.
        table: final thresholds of this model.
        sequences: texts that made no thresholds. They must be readable twice.
        lengths: ascending row lengths to measure at; None: a quarter and half of the longest row, and the longest.
        sdc, vmc: the compensations, as they will be at inference.
        row_fraction: share of the rows to look at.
        seed: of their choice.
        progress: called with the number of sequences done, after each; those of both passes count.
        provenance: what the sequences are, to be added to that of the table.
        checkpoint, checkpoint_every: as in `calibrate`; one file serves both passes.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate`; or the table belongs to
            another model.

    Example:
        >>> import torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50,
        ...     initializer_range=0.5)).eval()
        >>> texts = torch.randint(50, (8, 40))
        >>> table = models.calibrate(model, texts[:4], k=[4, 8, 16], layer_k=[0, 0], top_k_at_calibration=False)
        >>> table = models.calibrate_error_curves(model, table, texts[4:], row_fraction=1.0)
        >>> table.budget(target_value_rows=8).head_k.shape
        torch.Size([2, 2])
    """
    options = ErrorOptions(
        lengths=lengths, sdc=sdc, vmc=vmc, row_fraction=row_fraction, seed=seed, longest=longest, progress=progress,
        provenance=provenance,
    )  # fmt: skip
    job = ErrorJob(model, table, sequences, options, part=Part(), checkpoint=checkpoint, every=checkpoint_every)
    return job.run_second(job.run_first()).extended(table)


def calibrate_error_curves_distributed(
    model: PreTrainedModel,
    table: ThresholdTable,
    sequences: Sequences,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 16,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> ThresholdTable:
    """Run `calibrate_error_curves` in all ranks of a process group at once, as `calibrate_distributed` does.

    All ranks return the table of a single process, byte for byte.

    Args:
        model, table, sequences: as in `calibrate_error_curves`; the same in all ranks.
        checkpoint, checkpoint_every, group: as in `calibrate_distributed`.
        options: those of `calibrate_error_curves` from ``lengths`` to ``provenance``, the same in all ranks.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate_error_curves`; or there is no
            process group, the ranks were given different things, or another rank failed.
    """
    ranks = Ranks(group)
    with ranks.telling():
        path, part = own_file(checkpoint, ranks), Part(ranks.rank, ranks.count)
        job = ErrorJob(
            model, table, sequences, ErrorOptions(**options), part=part, checkpoint=path, every=checkpoint_every
        )
        check_same(ranks, job)
        first = in_step(ranks, job.run_first)
    whole = first_pass_of(all_parts(ranks, first))
    with ranks.telling():
        second = in_step(ranks, lambda meanwhile: job.run_second(whole, meanwhile))
    return merged_parts(all_parts(ranks, second)).extended(table)


def calibrate_error_curves_shard(
    model: PreTrainedModel,
    table: ThresholdTable,
    sequences: Sequences,
    *,
    index: int,
    paths: Sequence[str | os.PathLike[str]],
    checkpoint_every: int = 16,
    **options: Any,
) -> bool:
    """Run sequences ``index``, ``index + len(paths)``, ... of a measurement into the file ``paths[index]``.

    Processes that share nothing but a disk run a shard each, in any order. The second pass goes on from what the first
    has found in all shards: so the function ends after the first pass where others have not finished theirs. Call it
    again in every process once they have. Then `merge_error_curves` makes the table.

    Args:
        model, table, sequences: as in `calibrate_error_curves`; the same in all shards.
        index: which shard.
        paths: the files of all shards, in the same order in all processes.
        checkpoint_every: sequences between two writings of the file.
        options: those of `calibrate_error_curves` from ``lengths`` to ``provenance``, the same in all shards.

    Returns:
        Whether this shard is finished; else it has run its first pass and waits for the others.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate_error_curves`; or ``index`` is
            none of a shard, or another file is of another measurement.
    """
    if not isinstance(paths, (list, tuple)):
        raise TopThetaTypeError("paths", "a list of the shards' files", shown(paths))
    part = Part(index, len(paths))
    job = ErrorJob(
        model, table, sequences, ErrorOptions(**options), part=part, checkpoint=paths[index], every=checkpoint_every
    )
    mine = job.run_first()
    parts = [(path, mine if place == index else _finished_first(path)) for place, path in enumerate(paths)]
    there = [(name, state) for name, state in parts if state is not None]
    if mine.first is None and len(there) < len(parts):
        return False
    job.run_second(mine if mine.first is not None else first_pass_of(there))
    return True


def _finished_first(path: str | os.PathLike[str]) -> ErrorState | None:
    """Load the state of a shard; None where it has not finished the first pass."""
    if not checked_path(path).exists():
        return None
    state = ErrorState.load(path)
    return None if state.first is None and state.whole is None else state
