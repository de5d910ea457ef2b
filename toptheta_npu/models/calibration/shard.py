"""A calibration in several processes that share nothing but a disk."""

from __future__ import annotations

import os
from typing import Any

from transformers import PreTrainedModel

from ...calibration.shard import Shard
from .job import CalibrationJob, CalibrationOptions
from .texts import Sequences


def calibrate_shard(
    model: PreTrainedModel,
    sequences: Sequences,
    *,
    index: int,
    count: int,
    path: str | os.PathLike[str],
    checkpoint_every: int = 16,
    **options: Any,
) -> None:
    """Run sequences ``index``, ``index + count``, ... of a calibration and keep what they give in a file.

    Each of ``count`` processes runs one shard, on any machine and in any order. `merge_shards` then makes the table.
    All of them are given all sequences, which every process reads and checks.

    Args:
        model: as in `calibrate`; the same in all shards.
        sequences: all sequences of the calibration, in the same order in all shards.
        index: which shard, 0 to ``count - 1``.
        count: how many there are; a shard may have no sequence.
        path: the file. If it is there already, the work goes on after the last sequence in it.
        checkpoint_every: sequences between two writings of the file.
        options: those of `calibrate` from ``k`` to ``provenance``, the same in all shards.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: as `calibrate`; or ``index`` and
            ``count`` are no shard.

    Example:
        >>> import tempfile, torch, toptheta_npu.models as models
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(
        ...     hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)).eval()
        >>> texts, folder = torch.randint(50, (5, 40)), tempfile.mkdtemp()
        >>> paths = [f"{folder}/shard-{index}" for index in range(2)]
        >>> for index, path in enumerate(paths):  # in two processes
        ...     models.calibrate_shard(model, texts, index=index, count=2, path=path, k=8, layer_k=[0, 16])
        >>> models.merge_shards(paths)
        ThresholdTable(post_softmax, algorithm1, k=[8], 2 layers x 2 heads, lengths 9 to 40 (32 knots))
    """
    shard, chosen = Shard(index, count), CalibrationOptions(**options)
    CalibrationJob(model, sequences, chosen, shard=shard, checkpoint=path, every=checkpoint_every).run()
