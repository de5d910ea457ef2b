"""What the ranks of a process group tell each other during a calibration: bytes, and whether all are well.

Nothing is pickled. Every rank takes part in every exchange, a failed one too: so nobody waits for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import TopThetaError, TopThetaValueError, shortened

#: Bytes that go over the group at once.
_PIECE = 2**28


class Message(NamedTuple):
    """What a rank tells the others.

    Attributes:
        done: its work is finished.
        error: what it failed of; None where it did not.
        about: anything that JSON can hold.
    """

    done: bool = False
    error: str | None = None
    about: Any = None


class Ranks:
    """The ranks of a process group.

    Attributes:
        rank, count: of this process, and how many there are.

    Raises:
        TopThetaValueError: there is no process group, or this process is not in it.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise TopThetaValueError(
                "torch.distributed", "an initialised process group", "none",
                "start with torchrun and call torch.distributed.init_process_group, or use calibrate",
            )  # fmt: skip
        self._group = group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise TopThetaValueError("group", "a group with this process in it", "another")
        self._device = _device_of(group)
        self._over = False

    def meet(self, message: Message) -> list[Message]:
        """Exchange messages with all ranks. Return them in the order of the ranks.

        Raises:
            TopThetaValueError: another rank failed, or is gone; the message names it.
        """
        if self._over:
            return []
        content = json.dumps(message).encode()
        with self._all_there():
            sizes = self._gathered(torch.tensor([len(content)], dtype=torch.int64, device="cpu"))
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
            padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            parts = self._gathered(padded)
        answers = [
            Message(*json.loads(part[: int(size)].numpy().tobytes())) for part, size in zip(parts, sizes, strict=True)
        ]
        self._over = any(answer.error is not None for answer in answers)
        for rank, answer in enumerate(answers):
            if answer.error is not None and rank != self.rank:
                remedy = "mend that, and start all ranks again"
                raise TopThetaValueError(f"rank {rank}", "its share of the calibration", answer.error, remedy)
        return answers

    def fail(self, error: Exception) -> None:
        """Tell the others why this rank gives up. Do nothing where they know, or one of them gave up before."""
        try:
            self.meet(Message(error=shortened(f"{type(error).__name__}: {error}")))
        except TopThetaError:
            return

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the others of an error within the context."""
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise

    def from_rank(self, rank: int, content: bytes | None) -> bytes:
        """Broadcast what ``rank`` holds as ``content``. Return it in every rank.

        Raises:
            TopThetaValueError: a rank is gone.
        """
        source = rank if self._group is None else dist.get_global_rank(self._group, rank)
        with self._all_there():
            size = torch.tensor([0 if content is None else len(content)], dtype=torch.int64, device=self._device)
            dist.broadcast(size, source, group=self._group)
            received = bytearray(int(size)) if content is None else bytearray(content)
            whole = torch.frombuffer(received, dtype=torch.uint8)
            for piece in whole.split(_PIECE):
                on_device = piece.to(self._device)
                dist.broadcast(on_device, source, group=self._group)
                piece.copy_(on_device)
        return bytes(received)

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        mine = tensor.to(self._device)
        parts = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(parts, mine, group=self._group)
        return [part.cpu() for part in parts]

    @contextmanager
    def _all_there(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self._over = True
            reason = shortened(str(error).split("\n")[0])
            raise TopThetaValueError(
                "group", "every rank until the end of the calibration", f"one that is gone or late ({reason})",
                "look at what the other ranks wrote; if they are only slow, lower checkpoint_every or raise the "
                "timeout of init_process_group",
            ) from error  # fmt: skip


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Find where the group wants tensors: the CPU if it takes them, else this process's device of the other kind."""
    kinds = [each.split(":")[0] for each in str(dist.get_backend_config(group)).split(",")]
    return torch.device("cpu" if "cpu" in kinds else kinds[0])
