"""One of two ranks that calibrate together; run as ``python -m tests.models.two_ranks RANK FOLDER``.

Goes through all scenes in one process group, so that a failed one must leave the ranks in step. Writes for each
FOLDER/SCENE.RANK: the table's file, or the error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.calibration.parts import ESTIMATORS, of_estimator
from tests.models.tiny import K, new_model, tokens
from toptheta_npu.errors import TopThetaError
from toptheta_npu.models import calibrate_distributed, calibrate_shard

OPTIONS: dict[str, Any] = {"k": K, "layer_k": [0, 0], "row_fraction": 0.5, "checkpoint_every": 2}
TEXTS = tokens(7, 40, seed=1)
MODEL = new_model()


class Broken(Exception):
    """What a rank fails of."""


def break_after(count: int) -> Callable[[int], None]:
    def progress(done: int) -> None:
        if done == count:
            raise Broken(f"after {count} sequences")

    return progress


def die(done: int) -> None:
    os._exit(3)


def scenes(rank: int, folder: Path) -> dict[str, dict[str, Any]]:
    """The arguments of every scene, in order, as this rank has them."""
    first, kept = rank == 0, {"checkpoint": folder / "state"}
    return {
        **{estimator: of_estimator(estimator) for estimator in ESTIMATORS},
        "decode": {"estimator": "pooled", "decode_tokens": 2},
        "stream": {"estimator": "pooled", "sequences": iter(TEXTS), "longest": 40},
        "one_sequence": {"estimator": "pooled", "sequences": TEXTS[:1]},
        "bad_tokens": {"sequences": TEXTS if first else TEXTS + 90},
        "bad_option": {"k": K if first else 0},
        "unknown_option": {} if first else {"unknown": 1},
        "other_options": {"seed": 0 if first else 1},
        "other_texts": {"sequences": TEXTS if first else TEXTS.flip(0)},
        "other_streams": {"sequences": iter(TEXTS if first else TEXTS.flip(0)), "longest": 40},
        "late_failure": {} if first else {"progress": break_after(3)},
        "early_failure": {"progress": break_after(1)} if first else {},
        "both_fail": {"progress": break_after(1)},
        "stopped": {"estimator": "pooled", **kept} | ({} if first else {"progress": break_after(3)}),
        "resumed": {"estimator": "pooled", **kept},
        "dead": {} if first else {"progress": die},
    }


def play(rank: int, folder: Path, name: str, arguments: dict[str, Any]) -> None:
    sequences = arguments.pop("sequences", TEXTS)
    out = folder / f"{name}.{rank}"
    try:
        calibrate_distributed(MODEL, sequences, **{**OPTIONS, **arguments}).save(out)
    except (TopThetaError, TypeError, Broken) as error:
        out.write_text(f"{type(error).__name__}: {error}")


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    for estimator in ESTIMATORS:
        path = folder / f"shard.{estimator}.{rank}"
        calibrate_shard(MODEL, TEXTS, index=rank, count=2, path=path, **OPTIONS, **of_estimator(estimator))
    init = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    for name, arguments in scenes(rank, folder).items():
        play(rank, folder, name, arguments)
    # the threads of a group whose other rank is gone may abort an orderly end
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
