"""Random keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...fallback.prefill import RowChunk, Selector
from ...models.hook.architecture import num_heads, num_key_value_heads
from .control import control
from .method import KEYS_OF_VALUES, Compensation, Method
from .options import COMPENSATED
from .spec import MethodKind, MethodSpec, Reference
from .top_k import select_top_k


def select_random_k(k: int, seed: int = 0) -> Selector:
    """Keep k keys drawn at random, anew for every row, head and call of the rule; a row of at most k keys is dense."""
    generator = torch.Generator().manual_seed(seed)

    def select(chunk: RowChunk) -> Tensor:
        draw = torch.rand(chunk.scores.shape, generator=generator, dtype=torch.float32, device="cpu")
        draw = draw.to(chunk.scores.device)
        return select_top_k(k)(chunk._replace(scores=draw.where(chunk.visible, -torch.inf)))

    return select


def random_k(
    k: int, rows: int, group: int, targets: Sequence[int], length: int, *, compensated: bool | Compensation = True
) -> Method:
    """Attend to random keys, so many that a ``group`` of heads reads about ``rows`` V rows in rows of ``length``."""
    # the union of `group` draws of j out of n has n (1 - (1 - j/n)^group) elements
    draws = round(length * (1 - (1 - min(rows / length, 1.0)) ** (1 / group)))

    def drawn_anew() -> Method:
        return control("random-k", k, targets, select_random_k(max(draws, 1)), compensated, KEYS_OF_VALUES)

    # so that a model that enters it twice attends to the same keys
    return replace(drawn_anew(), enter=lambda model: drawn_anew().enter(model))


def _match(spec: MethodSpec, to: Reference) -> Method:
    """Draw so many keys that a group of heads which draw apart reads the V rows on average, in rows of mean length."""
    rows = max(1, round(to.reads.value_rows_mean))
    group = num_heads(to.model) // num_key_value_heads(to.model)
    length = round(to.reads.keys_mean)
    method = random_k(to.k, rows, group, to.layer_targets, length, compensated=spec.compensation)
    return replace(method, settings={"expected_value_rows": rows})


KIND = MethodKind("random-k", "random-k", match=_match, options=COMPENSATED)
