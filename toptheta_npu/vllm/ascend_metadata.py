"""vllm-ascend's metadata of a step, cut down to some of its sequences."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .steps import Step


def of_sequences(metadata: Any, step: Step, chosen: Tensor, tokens: Tensor) -> Any:
    """Cut the metadata down to some sequences [P] with several new tokens, on the CPU, and these tokens of theirs."""
    counts = step.query_start_loc.diff()[chosen]
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    return dataclasses.replace(
        metadata,
        num_actual_tokens=len(tokens),
        num_decode_tokens=0,
        num_prefills=len(chosen),
        num_decodes=0,
        seq_lens=metadata.seq_lens[chosen],
        seq_lens_cpu=metadata.seq_lens_cpu[chosen],
        seq_lens_list=metadata.seq_lens_cpu[chosen].tolist(),
        actual_seq_lengths_q=starts[1:].tolist(),
        query_start_loc=starts.to(metadata.query_start_loc.device),
        max_query_len=int(counts.max()),
        block_tables=metadata.block_tables[chosen.to(metadata.block_tables.device)],
        slot_mapping=metadata.slot_mapping[tokens],
    )
