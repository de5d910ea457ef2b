"""What the study fixes before it measures: texts, splits, thresholds, and the methods of every part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers

from toptheta_npu.thresholds import Placement

#: Documents: the shortest that counts, in characters, and where its window begins, behind its heading.
MIN_CHARACTERS, FIRST_CHARACTER = 45_000, 2_000
#: Draws the order in which the documents of a text are dealt to the splits.
SEED = 0
#: Documents of each split of the text that thresholds come from; no document is in two of them. Nothing reads the spare
#: ones: they keep the documents behind them what they were.
SPLITS: Mapping[str, int] = {"thresholds": 12, "spare": 10, "check": 10, "evaluation": 36}
#: The same of texts that no threshold comes from.
FOREIGN_SPLITS: Mapping[str, int] = {"check": 10, "evaluation": 16}
#: Tokens at the end of every window that are predicted by a method.
POSITIONS = 512

#: k of the thresholds; the first two layers have at least 512.
KS = (8, 16, 32, 64, 128, 256, 512, 1024)
FIRST_LAYERS_K = 512
#: Share of the rows that thresholds are made of.
THRESHOLD_ROWS = 1 / 4

#: k of all heads alike; those between the thresholds' own are interpolated, as `sparsify` does it.
EQUAL_KS = (64, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True)
class Arm:
    """A method that is measured.

    Attributes:
        method: as ``toptheta evaluate --method`` takes it.
        k: elements to keep, where it has such a number.
    """

    method: str
    k: int | None = None

    @property
    def name(self) -> str:
        """The name in files and tables, such as "top-theta, k=64"."""
        return self.method + (f", k={self.k}" if self.k else "")


def label(arm: Arm) -> str:
    """Name an arm for people.

    Example:
        >>> label(Arm("top-theta", 64)), label(Arm("tau:tau=0.0003"))
        ('Top-θ, k = 64', 'tau=0.0003')
    """
    name, _, options = arm.method.partition(":")
    title = {"top-theta": "Top-θ", "top-k": "Top-k", "pages": "pages (Quest)"}.get(name, name)
    if name == "tau":
        return options.replace(",", ", ")
    extra = f", {options.replace(',', ', ')}" if options else ""
    return title + (f", k = {arm.k}" if arm.k else "") + extra


@dataclass(frozen=True)
class Part:
    """Windows of one text and length under some methods, with one kind of thresholds: a file of results."""

    text: str
    length: int
    windows: int
    arms: tuple[Arm, ...]
    positions: int = POSITIONS
    placement: Placement = "pre_softmax"
    calibrated: bool = True

    @property
    def name(self) -> str:
        """The name of its file."""
        kind = "_post" if self.placement == "post_softmax" else "" if self.calibrated else "_tau"
        return f"perplexity_{self.length}_{self.text}{kind}"


def equal(ks: tuple[int, ...]) -> tuple[Arm, ...]:
    """List Top-θ and Top-k with an equal k in all heads."""
    return tuple(Arm(name, k) for name in ("top-theta", "top-k") for k in ks)


DENSE = Arm("dense")
#: The k with which methods of others, after two layers of Top-k, read the bytes of tau=0.0003 in the split "check".
OTHERS = (Arm("last-k", 2076), Arm("pages", 1376))
HEADLINE = Part(
    "prose", 4096, SPLITS["evaluation"],
    (DENSE, *equal(EQUAL_KS), *OTHERS),
)  # fmt: skip
#: SDC and VMC in other ways, in the windows of the headline.
COMPENSATIONS = replace(
    HEADLINE,
    arms=(DENSE, *(Arm(f"top-theta{options}", 128) for options in (
        "", ":sdc=exp_threshold", ":sdc=none", ":vmc=false", ":sdc=exp_threshold,vmc=false"))),
)  # fmt: skip
#: What is measured at other lengths, on other texts, and with other thresholds.
FEWER_ARMS = (DENSE, *equal((128, 256, 512)))
LONGER = replace(HEADLINE, length=8192, arms=FEWER_ARMS)
POST = replace(
    HEADLINE, placement="post_softmax", arms=tuple(arm for arm in FEWER_ARMS if not arm.method.startswith("top-k"))
)
#: One probability for all heads, without calibration: by the row's LSE, and by what a sample of its keys knows of it.
TAU = replace(
    HEADLINE, calibrated=False,
    arms=(DENSE, *(Arm(f"tau:tau={tau:g}") for tau in (0.001, 0.0005, 0.0003, 0.00025, 0.00015)),
          *(Arm(f"tau:tau={tau:g},lse=sampled") for tau in (0.001, 0.0005))),
)  # fmt: skip

TAU_ELSEWHERE = tuple(
    replace(TAU, text=text, length=length, windows=FOREIGN_SPLITS["evaluation"],
            arms=(DENSE, *(Arm(f"tau:tau={tau:g}") for tau in (0.001, 0.0005, 0.00025))))
    for text, length in (("python", 4096), ("jargon", 4096), ("prose", 8192))
)  # fmt: skip
#: Gemma 3 270M, of whose 18 layers three see all tokens: one probability; exact Top-k, and thresholds for one k, before
#: the softmax and after it.
_GEMMA_KS = (64, 128, 256)
GEMMA_TAU = replace(
    TAU, windows=24,
    arms=(DENSE, *(Arm(f"tau:tau={tau:g}") for tau in (0.002, 0.001, 0.0005, 0.00025))),
)  # fmt: skip
GEMMA_PRE = replace(HEADLINE, windows=24, arms=(DENSE, *equal(_GEMMA_KS)))
GEMMA_POST = replace(POST, windows=24, arms=(DENSE, *(Arm("top-theta", k) for k in _GEMMA_KS)))


#: Of those that look for answers, not at perplexity.
_SHARES = tuple(Arm(f"tau:tau={tau:g}") for tau in (0.001, 0.0005))


@dataclass(frozen=True)
class Asked:
    """Questions: of two kinds, each at several lengths and depths, ``seeds`` of them."""

    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    seeds: int
    arms: tuple[Arm, ...]


QUESTIONS = Asked(
    (1000, 2000, 4000, 8000), (0.0, 0.25, 0.5, 0.75, 1.0), 4,
    (DENSE, *_SHARES),
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        parts: in the order in which they run.
        splits, foreign_splits: documents of each, as `SPLITS` and `FOREIGN_SPLITS`.
        ks: of the thresholds.
        first_layers_k: the least k of the first two layers.
        least_characters: of a document.
    """

    parts: tuple[Part, ...]
    splits: Mapping[str, int] = field(default_factory=lambda: SPLITS)
    foreign_splits: Mapping[str, int] = field(default_factory=lambda: FOREIGN_SPLITS)
    ks: tuple[int, ...] = KS
    first_layers_k: int = FIRST_LAYERS_K
    least_characters: int = MIN_CHARACTERS

    def splits_of(self, text: str) -> Mapping[str, int]:
        """Give the splits of a text."""
        return self.splits if text == self.parts[0].text else self.foreign_splits


SCALES = {
    "headline": Scale((HEADLINE,)),
    "full": Scale((HEADLINE, LONGER, COMPENSATIONS, POST, TAU, *TAU_ELSEWHERE)),
    "gemma": Scale((GEMMA_TAU, GEMMA_PRE, GEMMA_POST)),
}


def environment() -> dict[str, str]:
    """Name the versions on which figures depend."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def thresholds_settings(scale: Scale) -> dict[str, Any]:
    """Give what thresholds are made by."""
    return {
        "k": list(scale.ks), "first_layers_k": scale.first_layers_k, "estimator": "pooled",
        "row_fraction": THRESHOLD_ROWS, "documents": dict(scale.splits),
    }  # fmt: skip
