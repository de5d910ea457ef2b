"""One of three ranks that hold sequences together; run as ``python -m tests.context_parallel.one_rank RANK FOLDER``.

Goes through all scenes in the group of all three and in that of the first two, and writes what it got to FOLDER/RANK.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.context_parallel.scenes import SCENES, inputs_of, share
from toptheta_npu.context_parallel import context_parallel_attention, context_parallel_attention_with_stats
from toptheta_npu.errors import TopThetaError

#: How long a rank waits for the others; the one that is gone makes all others wait so long once.
SECONDS = 60
RANKS = 3
Group = dist.ProcessGroup | None
_OTHERS = (
    "all_reduce", "all_gather_into_tensor", "all_gather_object", "broadcast", "send", "recv", "isend", "irecv",
    "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter",
    "barrier",
)  # fmt: skip
SENT: list[int] = []


def count_what_is_sent() -> None:
    """Every byte that this process hands to a collective goes to `SENT`; other collectives than the one are refused."""
    original = dist.all_gather

    def counting(received: list[Tensor], sent: Tensor, **options: Any) -> Any:
        SENT.append(sent.numel() * sent.element_size())
        return original(received, sent, **options)

    dist.all_gather = counting
    for name in _OTHERS:
        setattr(dist, name, _refuse(name))


def _refuse(name: str) -> Callable[..., None]:
    def call(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"torch.distributed.{name} was called")

    return call


@contextmanager
def sent() -> Iterator[list[int]]:
    """The sizes of the collectives in the context."""
    SENT.clear()
    sizes: list[int] = []
    yield sizes
    sizes.extend(SENT)


def play_steps(rank: int, ranks: int, group: Group) -> dict[str, Any]:
    """Each step twice: before the first the ranks may have to agree on its kind, the second sends its results alone."""
    results = {}
    for name, scene in SCENES.items():
        arguments = share(inputs_of(scene), scene, rank, ranks) | {"group": group}
        first = context_parallel_attention_with_stats(**arguments)
        with sent() as sizes:
            again = context_parallel_attention_with_stats(**arguments)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True)), name
        results[name] = {"result": first, "sent": sizes}
    return results


def errors(rank: int) -> dict[str, dict[str, Any]]:
    """Arguments in which something is wrong, as this rank has them."""
    first = rank == 0
    query, cache = torch.ones(2, 4, 1, 16), torch.ones(2, 2, 8, 16)
    good = {"query": query, "key": cache, "value": cache, "threshold": torch.zeros(4)}
    total = torch.ones(2, 2, 16)
    return {
        "other batch": good if first else {**good, "query": query[:1], "key": cache[:1], "value": cache[:1]},
        "other dtype": good if first else {**good, **{name: good[name].half() for name in ("query", "key", "value")}},
        "other sdc": good if first else {**good, "sdc": "none"},
        "other gamma": {**good, "sdc": "exp_threshold", "sdc_gamma": 0.05 if first else 0.1},
        "VMC in one": {**good, "value_sum": total} if first else good,
        "no thresholds": {**good, "threshold": None},
        "good": good,
    }


def play_errors(rank: int, group: Group) -> dict[str, str]:
    results = {}
    for name, arguments in errors(rank).items():
        try:
            context_parallel_attention(**arguments, group=group)
            results[name] = "no error"
        except TopThetaError as error:
            results[name] = f"{type(error).__name__}: {error}"
    return results


def play_gone(rank: int) -> str:
    """The last rank is gone, the others go on to the next step."""
    if rank == RANKS - 1:
        return "gone"
    try:
        context_parallel_attention(**errors(rank)["good"])
        return "no error"
    except TopThetaError as error:
        return f"{type(error).__name__}: {error}"


def play(rank: int, ranks: int, group: Group) -> dict[str, Any]:
    """All scenes in one group."""
    return {
        "steps": play_steps(rank, ranks, group),
        "errors": play_errors(rank, group),
    }


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    init = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=RANKS, timeout=timedelta(seconds=SECONDS))
    pair = dist.new_group([0, 1])
    count_what_is_sent()
    results: dict[int, Any] = {3: play(rank, 3, None)}
    if rank < 2:
        results[2] = play(rank, 2, pair)
    results[3]["gone"] = play_gone(rank)
    torch.save(results, folder / str(rank))
    # the threads of a group whose other ranks are gone may abort an orderly end
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
