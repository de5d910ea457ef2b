"""The interface of a method: a context in which a model uses it, and the K rows that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from ..._checks import Sdc
from ...models import Recording
from ...models.hook.attach import dense_prompts

#: The first layers attend more evenly and keep more elements (paper section "Thresholding Different Layers").
DENSER_LAYERS = 2

#: Which keys a query head uses: those that it selects itself, or those that any head of its KV group selects.
Selection = Literal["own", "union"]

#: What a method's name says of ``selection="union"``.
UNION_SUFFIX = ", group union"

_SDC_NAMES = {"none": "", "exact": " + SDC", "exp_threshold": " + exp-threshold SDC", "offline": " + offline SDC"}


class KeyReads(NamedTuple):
    """Say how many K rows a method reads to choose: so many per key, and per V row that it then reads."""

    per_key: float = 1.0
    per_value_row: float = 0.0

    def rows(self, keys: float, value_rows: float) -> float:
        """Give the K rows, from the mean number of keys and of V rows."""
        return self.per_key * keys + self.per_value_row * value_rows


#: A method that scores every key.
EVERY_KEY = KeyReads()
#: A method that knows its keys beforehand.
KEYS_OF_VALUES = KeyReads(per_key=0.0, per_value_row=1.0)


@dataclass(frozen=True)
class Compensation:
    """SDC, VMC, and the factor of ``sdc="exp_threshold"``, as in `sparsify`."""

    sdc: Sdc = "exact"
    vmc: bool = True
    gamma: float = 0.05

    def suffix(self, placement: str | None) -> str:
        """Give what a method's name says of it; after the softmax the denominator is exact by construction.

        Example:
            >>> Compensation().suffix("pre_softmax"), Compensation().suffix("post_softmax")
            (' + SDC + VMC', ' + VMC')
        """
        return ("" if placement == "post_softmax" else _SDC_NAMES[self.sdc]) + (" + VMC" if self.vmc else "")


@dataclass(frozen=True)
class Method:
    """A method of attention.

    Attributes:
        family: name for people; it groups the points of one curve.
        k: requested number of elements; None if the method has no k.
        enter: returns the context in which a model uses the method.
        key_reads: the K rows that the method reads.
        cache_of: makes the cache to read from the dense cache of a text; None: the method reads the dense cache.
    """

    family: str
    k: int | None
    enter: Callable[[PreTrainedModel], AbstractContextManager[Recording]]
    key_reads: KeyReads = EVERY_KEY
    cache_of: Callable[[DynamicCache], Cache] | None = None

    @contextmanager
    def enter_decoding(self, model: PreTrainedModel) -> Iterator[Recording]:
        """Enter the method for the decode steps of a generation; calls with several new tokens are dense."""
        with self.enter(model) as recording, dense_prompts(model):
            yield recording
