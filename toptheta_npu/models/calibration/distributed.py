"""A calibration in all ranks of a torch.distributed process group."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from transformers import PreTrainedModel

from ..._files import checked_path
from ...calibration.part import Part
from ...calibration.shards import merged_parts
from ...calibration.state import CalibrationState
from ...errors import TopThetaValueError
from ...thresholds import ThresholdTable
from .job import CalibrationJob, CalibrationOptions
from .ranks import Message, Ranks
from .texts import Sequences


def calibrate_distributed(
    model: PreTrainedModel,
    sequences: Sequences,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 16,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> ThresholdTable:
    """Run `calibrate` in all ranks of a process group at once: rank r of w runs sequences r, r + w, ...

    Every rank has the whole model and returns the same table. With the estimator "pooled" it is that of `calibrate`
    with as many threads, byte for byte. With "algorithm1" it is that up to rounding. If a rank fails, the others
    raise an error that names it as soon as they have run ``checkpoint_every`` more sequences.

    Args:
        model: as in `calibrate`; the same in all ranks, each on its own device.
        sequences: all sequences of the calibration, in the same order in all ranks.
        checkpoint: as in `calibrate`; rank r adds ``.rank<r>`` to the name. Start again with as many ranks.
        checkpoint_every: sequences between two writings of the state, and between two meetings of the ranks. The
            timeout of the group must allow for so many.
        group: a process group with any backend; None: the default one.
        options: those of `calibrate` from ``k`` to ``provenance``, the same in all ranks.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate`; or there is no process
            group, the ranks were given different things, or another rank failed.

    Example:
        >>> import socket, torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)).eval()
        >>> texts = torch.randint(50, (5, 40))
        >>> store = torch.distributed.HashStore()  # torchrun makes this needless
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> models.calibrate_distributed(model, texts, k=8, layer_k=[0, 16])
        ThresholdTable(post_softmax, algorithm1, k=[8], 2 layers x 2 heads, lengths 9 to 40 (32 knots))
        >>> torch.distributed.destroy_process_group()
    """
    ranks = Ranks(group)
    with ranks.telling():
        path, part = _own_file(checkpoint, ranks), Part(ranks.rank, ranks.count)
        chosen = CalibrationOptions(**options)
        job = CalibrationJob(model, sequences, chosen, part=part, checkpoint=path, every=checkpoint_every)
        _check_same(ranks, job)
        state = _in_step(ranks, job)
    return merged_parts(_all_parts(ranks, state)).table()


def _own_file(checkpoint: str | os.PathLike[str] | None, ranks: Ranks) -> str | None:
    """Name the file of this rank."""
    return None if checkpoint is None else f"{checked_path(checkpoint)}.rank{ranks.rank}"


def _check_same(ranks: Ranks, job: CalibrationJob) -> None:
    """Raise TopThetaValueError, in all ranks, where one was given something else than the first."""
    mine = {**job.state.described(), "fingerprint": job.state.fingerprint, "sequences": job.digest_of_texts()}
    first, *others = (message.about for message in ranks.meet(Message(about=mine)))
    for rank, about in enumerate(others, start=1):
        different = [name for name in first if about.get(name) != first[name]]
        if different:
            named = ", ".join(f"{name}={about.get(name)} (there {first[name]})" for name in different)
            remedy = "pass the same model, sequences and options in all ranks"
            raise TopThetaValueError(f"rank {rank}", "what rank 0 was given", named, remedy)


def _in_step(ranks: Ranks, job: CalibrationJob) -> CalibrationState:
    """Run a part, and meet the other ranks until all have run theirs."""

    def go_on() -> None:
        ranks.meet(Message())

    state = job.run(go_on)
    while not all(message.done for message in ranks.meet(Message(done=True))):
        pass
    return state


def _all_parts(ranks: Ranks, state: CalibrationState) -> list[tuple[str, CalibrationState]]:
    """Give every rank the states of all, with the names of the ranks, in their order."""
    parts: list[tuple[str, CalibrationState]] = []
    error, content = None, state.to_bytes()
    for rank in range(ranks.count):
        received = ranks.from_rank(rank, content if rank == ranks.rank else None)
        try:
            parts.append((f"rank {rank}", CalibrationState.from_bytes(f"rank {rank}", received)))
        except Exception as failure:  # the others still wait for what this rank has
            error = error or failure
    if error is not None:
        raise error
    return parts
