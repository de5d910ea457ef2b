"""The mean V row in place of attention: no V row is read."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...fallback.prefill import select_and_attend
from ...models.hook.attention import AttentionCall
from ...models.sparse.statistics import Recorder
from .control import after_top_k
from .dense import select_all
from .method import KeyReads, Method
from .spec import MethodKind


def value_mean_only(targets: Sequence[int]) -> Method:
    """Put the mean V row in place of attention, after Top-k in the first layers."""
    return Method(
        "V mean only", None, lambda model: after_top_k(model, targets, _ValueMeanRule), key_reads=KeyReads(0.0, 0.0)
    )


class _ValueMeanRule:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def attend(self, call: AttentionCall) -> Tensor:
        # with scale 0 all scores are equal, and the softmax is the mean
        prompt = call.prompt | {"scale_value": 0.0}
        out, stats = select_and_attend(call.query, select=select_all(), **prompt)
        self._recorder.record(call, stats.kept * 0, stats.value_rows * 0, stats.empty)
        return out


KIND = MethodKind("value-mean", "V mean only", make=lambda spec, setting: value_mean_only(setting.targets), has_k=False)
