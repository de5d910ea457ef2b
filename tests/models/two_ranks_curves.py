"""One of two ranks that measure error curves together; run as ``python -m tests.models.two_ranks_curves RANK FOLDER``.

Writes for each scene FOLDER/SCENE.RANK: the table's file, or the error.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.models.curves import OPTIONS, TEXTS, model, table
from tests.models.two_ranks import Broken, break_after
from toptheta_npu.errors import TopThetaError
from toptheta_npu.models import calibrate_error_curves_distributed, calibrate_error_curves_shard


def scenes(rank: int, folder: Path) -> dict[str, dict[str, Any]]:
    """The arguments of every scene, in order, as this rank has them; a rank runs two or three of the texts twice."""
    first, kept = rank == 0, {"checkpoint": folder / "state"}
    return {
        "whole": {},
        "one_sequence": {"sequences": TEXTS[:1]},
        "other_options": {"seed": 0 if first else 1},
        "early_failure": {"progress": break_after(1)} if first else {},
        "stopped_in_the_first_pass": kept | ({} if first else {"progress": break_after(2)}),
        "stopped_in_the_second_pass": kept | ({} if first else {"progress": break_after(3)}),
        "resumed": kept,
    }


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    paths = [folder / f"shard.{index}" for index in range(2)]
    finished = calibrate_error_curves_shard(model(), table(), TEXTS, index=rank, paths=paths, **OPTIONS)
    init = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    dist.barrier()
    if not finished:
        assert calibrate_error_curves_shard(model(), table(), TEXTS, index=rank, paths=paths, **OPTIONS)
    for name, arguments in scenes(rank, folder).items():
        texts = arguments.pop("sequences", TEXTS)
        out = folder / f"{name}.{rank}"
        try:
            calibrate_error_curves_distributed(
                model(), table(), texts, **{**OPTIONS, "checkpoint_every": 1, **arguments}
            ).save(out)
        except (TopThetaError, Broken) as error:
            out.write_text(f"{type(error).__name__}: {error}")
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
