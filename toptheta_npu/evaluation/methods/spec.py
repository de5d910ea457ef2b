"""A method before it is known for which k, thresholds and model: its kind and its options; and how it is made then."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, get_args

from ...errors import TopThetaValueError, shown
from ...thresholds import ThresholdTable
from .method import UNION_SUFFIX, Compensation, Method, Selection

#: The options that are compensations; a label says them as one suffix, but for gamma.
_COMPENSATIONS = ("sdc", "vmc", "gamma")


@dataclass(frozen=True)
class Option:
    """One option of a method: one of several words, true or false, a whole number from 1 on, or a number from 0 on.

    Attributes:
        default: its value where nothing is said; its type says what values there are.
        choices: the words.
        label: what a label says of a value, with ``{}`` for it; empty for an option that a label says otherwise.
        always: whether a label says so of the default, too.
    """

    default: Any
    choices: Sequence[str] = ()
    label: str = ""
    always: bool = False

    def read(self, where: str, word: str) -> Any:
        """Give the value of a word, or raise a TopThetaValueError about ``where``."""
        choices = ("true", "false") if isinstance(self.default, bool) else self.choices
        if choices:
            if word not in choices:
                raise TopThetaValueError(where, f"one of {', '.join(choices)}", shown(word))
            return word == "true" if isinstance(self.default, bool) else word
        whole = isinstance(self.default, int)
        try:
            value = int(word) if whole else float(word)
        except ValueError:
            value = math.nan
        if not (1 if whole else 0) <= value < math.inf:
            expected = "a whole number from 1 on" if whole else "a number >= 0"
            raise TopThetaValueError(where, expected, shown(word))
        return value

    def words(self, value: Any) -> str:
        """Give what a label says of ``value``."""
        return self.label.format(value) if self.always or value != self.default else ""


#: Exact SDC and VMC unless the options say otherwise.
COMPENSATED: Mapping[str, Option] = {"sdc": Option("exact", ("none", "exact")), "vmc": Option(True)}
SELECTION = Option("own", get_args(Selection))


class Setting(NamedTuple):
    """Hold what a method is made for; one that has no use for a part of it does not look at it.

    Attributes:
        k: elements to keep.
        table: thresholds.
        targets: the k of each layer, as `ThresholdTable.layer_targets` has it.
        family: its name for people.
    """

    k: int
    table: ThresholdTable
    targets: Sequence[int]
    family: str


@dataclass(frozen=True, eq=False)
class MethodKind:
    """An entry of `kinds.KINDS`: one way to attend, with its options.

    Attributes:
        name: in words, as ``--method`` takes it.
        title: for people, without its compensations.
        make: makes the method.
        options: by name, in the order in which they are written.
        has_k: whether there is one such method per k.
        needs_table: whether there is one per threshold table.
    """

    name: str
    title: str
    make: Callable[[MethodSpec, Setting], Method]
    options: Mapping[str, Option] = field(default_factory=dict)
    has_k: bool = True
    needs_table: bool = False

    def defaults(self, sdc: str | None = None) -> dict[str, Any]:
        """Give the values of the options; without SDC there is no mass for VMC to give back."""
        values = {name: option.default for name, option in self.options.items()}
        sdc = values.get("sdc") if sdc is None else sdc
        if sdc == "none":
            values["vmc"] = False
        if sdc != "exp_threshold":
            values.pop("gamma", None)
        return values


@dataclass(frozen=True)
class MethodSpec:
    """A kind of method with the values of its options; see `kinds.parse_method`.

    Attributes:
        kind: what it is.
        values: name and value of every option, in the order of the kind.
    """

    kind: MethodKind
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The name of its kind."""
        return self.kind.name

    @property
    def options(self) -> dict[str, Any]:
        """The values of its options by name."""
        return dict(self.values)

    @property
    def compensation(self) -> Compensation:
        """SDC and VMC; neither where the method has no such options."""
        found: dict[str, Any] = {"sdc": "none", "vmc": False, **self.options}
        return Compensation(**{name: found[name] for name in _COMPENSATIONS if name in found})

    @property
    def selection(self) -> Selection:
        """Say which keys a head uses."""
        return cast("Selection", self.options.get("selection", "own"))

    @property
    def text(self) -> str:
        """The shortest text that `kinds.parse_method` reads as this method.

        Example:
            >>> from toptheta_npu.evaluation.methods.kinds import parse_method
            >>> parse_method("top-theta: vmc=false, sdc=none").text
            'top-theta:sdc=none'
        """
        defaults = self.kind.defaults(self.options.get("sdc"))
        changed = [f"{name}={_as_word(value)}" for name, value in self.values if value != defaults[name]]
        return f"{self.name}:{','.join(changed)}" if changed else self.name

    @property
    def label(self) -> str:
        """The name for people, without a threshold table's placement."""
        return self.label_with(None)

    def label_with(self, placement: str | None) -> str:
        """Give the name for people, with thresholds of this placement.

        Example:
            >>> from toptheta_npu.evaluation.methods.kinds import parse_method
            >>> spec = parse_method("top-theta")
            >>> spec.label, spec.label_with("post_softmax")
            ('Top-θ + SDC + VMC', 'Top-θ post + VMC')
        """
        placed = placement if self.kind.needs_table else None
        where = f" {placed.split('_')[0]}" if placed else ""
        suffix = self.compensation.suffix(placed) if "sdc" in self.options else ""
        words = [self.kind.options[name].words(value) for name, value in self.values]
        parts = [self.kind.title + where + suffix, *filter(None, words)]
        return ", ".join(parts) + (UNION_SUFFIX if self.selection == "union" else "")

    def make(
        self, k: int | None = None, table: ThresholdTable | None = None, targets: Sequence[int] | None = None
    ) -> Method:
        """Make the method.

        Args:
            k: where its kind has one.
            table: where its kind needs one.
            targets: the k of each layer, as `ThresholdTable.layer_targets` has it, of a kind with a k and without a
                table; last-k and pages use those of the first layers.

        Raises:
            TopThetaValueError: an argument is missing, or ``table`` does not go with the method.
        """
        for name, value, needed in (
            ("k", k, self.kind.has_k), ("table", table, self.kind.needs_table),
            ("targets", targets, self.kind.has_k and not self.kind.needs_table),
        ):  # fmt: skip
            if needed and value is None:
                raise TopThetaValueError(name, f"a value, which {self.name} needs", "None")
        family = self.label_with(None if table is None else table.placement)
        given: tuple[Any, Any, Any] = k, table, targets
        return self.kind.make(self, Setting(*given, family))


def _as_word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
