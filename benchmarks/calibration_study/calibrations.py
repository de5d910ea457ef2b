"""Many calibrations from few passes of the model: several calibrators watch one run, and tables are made on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from transformers import PreTrainedModel

from toptheta_npu.calibration import Calibrator
from toptheta_npu.models import calibrate, model_fingerprint
from toptheta_npu.models.calibration.observe import observe_model
from toptheta_npu.models.calibration.texts import CalibrationTexts
from toptheta_npu.models.hook.attention import AttentionCall
from toptheta_npu.thresholds import Estimator, Placement, ThresholdTable

PLACEMENTS: tuple[Placement, ...] = ("pre_softmax", "post_softmax")
ROW_FRACTION = 0.25
KS = (32, 64, 128)
#: Rows of windows of 1024 tokens would be dense in the first layers under the default of 512.
LAYER_K = (256, 256, 0, 0, 0, 0)


@dataclass(frozen=True)
class Watcher:
    """One calibration: how its thresholds are estimated."""

    estimator: Estimator
    placement: Placement
    ks: tuple[int, ...] = KS
    alpha: float = 0.1
    quantile: float | None = None


@dataclass(frozen=True)
class Pass:
    """One run of the model over the first windows of a text. Tables are made after ``sizes`` windows."""

    text: Literal["python", "prose"]
    length: int
    sizes: tuple[int, ...]
    watchers: tuple[Watcher, ...]


@dataclass(frozen=True)
class TableKey:
    """Which calibration a table comes from."""

    text: str
    length: int
    windows: int
    watcher: Watcher
    top_k: bool = False


def run_pass(
    model: PreTrainedModel, wanted: Pass, windows: Tensor, progress: Callable[[], None]
) -> dict[TableKey, ThresholdTable]:
    """Make the tables of one pass. Layers pass on their dense output."""
    longest, tables = wanted.sizes[-1], {}
    calibrators = {watcher: _calibrator(model, wanted.length, watcher) for watcher in wanted.watchers}
    texts = CalibrationTexts(model, windows[:longest], None, 0, min(KS))
    fingerprint = model_fingerprint(model)

    def after(done: int) -> None:
        progress()
        if done in wanted.sizes:
            for watcher, calibrator in calibrators.items():
                key = TableKey(wanted.text, wanted.length, done, watcher)
                tables[key] = calibrator.finish(fingerprint=fingerprint, provenance={})

    rows = next(iter(calibrators.values())).rows_to_observe
    observe_model(model, texts, rows, _Watchers(calibrators.values()), lambda layer: AttentionCall.dense, after)
    return tables


def with_top_k(
    model: PreTrainedModel, windows: Tensor, placement: Placement, k: int, progress: Callable[[], None]
) -> Mapping[TableKey, ThresholdTable]:
    """Calibrate by Algorithm 1 as in the paper. Every layer passes on what it computes from its k largest scores."""
    table = calibrate(
        model, windows, k=k, placement=placement, layer_k=LAYER_K, row_fraction=ROW_FRACTION,
        progress=lambda _: progress(),
    )  # fmt: skip
    watcher = Watcher("algorithm1", placement, (k,))
    return {TableKey("python", windows.shape[1], len(windows), watcher, top_k=True): table}


class _Watchers:
    """Several calibrators as one."""

    def __init__(self, calibrators: Iterable[Calibrator]) -> None:
        self._calibrators = list(calibrators)

    def look(self, layer: int, scores: Tensor, lengths: Tensor, *known: Tensor | None) -> list[Any]:
        """Collect what each calibrator finds."""
        return [calibrator.look(layer, scores, lengths, *known) for calibrator in self._calibrators]

    def add(self, seen: list[Any]) -> None:
        """Add to each calibrator what it found."""
        for calibrator, each in zip(self._calibrators, seen, strict=True):
            calibrator.add(each)


def _calibrator(model: PreTrainedModel, longest: int, watcher: Watcher) -> Calibrator:
    return Calibrator(
        model.config.num_hidden_layers, model.config.num_attention_heads, k=watcher.ks, longest=longest,
        placement=watcher.placement, estimator=watcher.estimator, alpha=watcher.alpha, layer_k=LAYER_K,
        row_fraction=ROW_FRACTION, quantile=watcher.quantile,
    )  # fmt: skip
