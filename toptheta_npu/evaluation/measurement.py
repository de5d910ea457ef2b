"""A task measures a method: the score of every sample, and the rows that attention read for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from transformers import PreTrainedModel

from ..errors import TopThetaValueError
from ..models.hook.architecture import num_layers
from .methods.method import DENSER_LAYERS, Method
from .reads import LayerReads, Reads


@dataclass(frozen=True)
class Measurement:
    """One method on one task.

    Attributes:
        metric: name of the score: ``"nats per token"``, ``"accuracy"``, or a metric of lm-eval.
        higher_is_better: False for losses.
        scores: one score per window, prompt or document. All methods have the same samples in the same order, so two
            methods can be compared sample by sample.
        reads: reads of the layers from 2 on.
        reads_all: reads of all layers.
        layers: reads of each layer.
        details: further results of the task by name, in JSON types.
    """

    metric: str
    higher_is_better: bool
    scores: tuple[float, ...]
    reads: Reads
    reads_all: Reads
    layers: tuple[LayerReads, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


def perplexity(nats: float) -> float:
    """Compute the perplexity of a loss in nats; infinite if a float cannot hold it.

    Example:
        >>> perplexity(0.0), perplexity(1000.0)
        (1.0, inf)
    """
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


class Task(Protocol):
    """Samples on which methods are compared."""

    @property
    def name(self) -> str:
        """The name that `toptheta evaluate --tasks` takes."""

    @property
    def samples(self) -> int:
        """The number of scores in a measurement."""

    def measure(
        self, method: Method, model: PreTrainedModel, progress: Callable[[int], None] = lambda done: None
    ) -> Measurement:
        """Measure all samples under a method, one sample at a time.

        Args:
            method: method to measure.
            model: model of the task.
            progress: called with the number of finished samples; an exception from it ends the measurement.
        """


def check_layers(model: PreTrainedModel) -> None:
    """Raise TopThetaValueError unless the model has a layer from 2 on."""
    layers = num_layers(model)
    if layers <= DENSER_LAYERS:
        remedy = (
            "reads are counted from the third layer on, since the first two keep more by every method: take a deeper "
            "model"
        )
        raise TopThetaValueError("model", f"more than {DENSER_LAYERS} layers", str(layers), remedy)
