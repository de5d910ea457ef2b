"""Exchanges tensors between the ranks of a process group: packed in one buffer, gathered by all ranks at once.

The only collective is the all-gather of equal int32 buffers, which gloo, hccl and nccl all have. It does not add
anything up, so every rank sees the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from .._checks import ROW_PLACEMENTS, check_choice
from ..errors import TopThetaTypeError, TopThetaValueError, shortened

#: Bytes in which a rank describes its call.
_FACTS_BYTES = 1024
_WORD = 4


class Exchange:
    """The ranks that share a sequence.

    Attributes:
        rank, world_size: rank of this process, and number of ranks.

    Raises:
        TopThetaValueError: no process group exists, or this process is not in it.
        TopThetaTypeError: ``group`` is not a process group.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise TopThetaValueError(
                "torch.distributed", "an initialised process group", "none",
                "start with torchrun and call torch.distributed.init_process_group",
            )  # fmt: skip
        chosen: object = dist.group.WORLD if group is None else group
        if chosen == dist.GroupMember.NON_GROUP_MEMBER:  # what new_group gives to processes that are not in the group
            raise TopThetaValueError("group", "a group with this process in it", "another", "call in its members only")
        if not isinstance(chosen, dist.ProcessGroup):
            raise TopThetaTypeError("group", "a torch.distributed.ProcessGroup or None", type(chosen).__name__)
        self._group = chosen
        self.rank, self.world_size = dist.get_rank(self._group), dist.get_world_size(self._group)

    def gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Stack all ranks' ``tensors`` in a new first dimension; one all-gather, bit for bit.

        Args:
            tensors: float32 or int32 on one device, with the same shapes on all ranks.

        Raises:
            TopThetaValueError: a rank is gone or late, or the group has no backend for the device.
        """
        sent = torch.cat([tensor.reshape(-1).view(torch.int32) for tensor in tensors])
        received = sent.new_empty((self.world_size, sent.numel()))
        try:
            dist.all_gather(list(received), sent, group=self._group)
        except RuntimeError as error:
            reason = shortened(str(error).split("\n")[0])
            raise TopThetaValueError(
                "group", f"every rank in this call, over a backend for tensors on {sent.device.type}",
                f"one that is gone, late or in another call, or no such backend ({reason})",
                "look at what the other ranks wrote",
            ) from error  # fmt: skip
        columns = received.split([tensor.numel() for tensor in tensors], dim=1)
        return [
            column.view(tensor.dtype).reshape(self.world_size, *tensor.shape)
            for column, tensor in zip(columns, tensors, strict=True)
        ]

    def agree(self, facts: Mapping[str, object], device: torch.device) -> None:
        """Compare ``facts`` with the facts of the other ranks, unless this rank has compared them before.

        Calls of one kind exchange them once, before they send anything whose size depends on them.

        Raises:
            TopThetaValueError: on all ranks, if one has other facts than rank 0; as `gather`.
        """
        content = json.dumps(facts).encode().ljust(_FACTS_BYTES)
        agreed = _AGREED.setdefault(self._group, set())
        if content in agreed or torch.compiler.is_compiling():
            return
        (gathered,) = self.gather([torch.frombuffer(bytearray(content), dtype=torch.int32).to(device)])
        first, *others = (json.loads(row.numpy().tobytes()) for row in gathered.cpu())
        for rank, theirs in enumerate(others, start=1):
            different = [name for name in first if theirs[name] != first[name]]
            if different:
                expected, got = (", ".join(f"{name}={side[name]}" for name in different) for side in (first, theirs))
                raise TopThetaValueError(
                    f"rank {rank}", f"{expected}, as in rank 0", got, "call with the same arguments in all ranks"
                )
        agreed.add(content)


#: The facts that the ranks of each group have agreed on.
_AGREED: WeakKeyDictionary[dist.ProcessGroup, set[bytes]] = WeakKeyDictionary()


def exchanged_bytes(
    batch: int,
    num_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    *,
    placement: str = "pre_softmax",
    vmc: bool = False,
    query_tokens: int = 1,
) -> int:
    """Compute the bytes that each rank sends per layer and step.

    In an all-gather, each of w ranks receives w - 1 times as many. The length of the sequence does not matter.

    Args:
        batch, num_heads, num_key_value_heads, head_dim: B, Hq, Hkv and D of the step.
        placement: placement of the threshold; with probabilities the ranks first exchange the LSE of each row.
        vmc: whether the ranks also exchange a sum of V rows.
        query_tokens: Sq of the step.

    Raises:
        TopThetaValueError: an unknown placement.

    Example:
        >>> exchanged_bytes(1, 32, 8, 128)  # of LLaMA-3-8B: 16 KiB of outputs, 16 bytes per row, a length
        16900
        >>> exchanged_bytes(1, 32, 8, 128, vmc=True)
        20996
    """
    check_choice("placement", placement, ROW_PLACEMENTS)
    tokens = batch * query_tokens
    rows = tokens * num_heads
    words = rows * (head_dim + 4) + tokens  # out; m, R, E and kept; n
    if vmc:
        words += tokens * num_key_value_heads * head_dim
    if placement != "pre_softmax":
        words += rows
    return _WORD * words
