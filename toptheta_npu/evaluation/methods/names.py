"""The methods of a comparison in words: ``NAME`` or ``NAME:option=value,option=value``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..._checks import SDC_MODES, Sdc
from ...errors import TopThetaTypeError, TopThetaValueError, nearest, shown
from ...fallback.baselines import Keep
from ...thresholds import ThresholdTable
from . import kinds
from .kinds import Compensation, Method, Selection

#: Which k a method has in the first layers: that of the threshold table, or the same as in all others.
LayerK = Literal["equal", "table"]

_EXACT_OR_NONE = ("none", "exact")


@dataclass(frozen=True)
class _Kind:
    """What a method is called by people, and its options with their defaults."""

    title: str
    options: Mapping[str, Any]
    sdc: Sequence[str] = _EXACT_OR_NONE
    needs_table: bool = False
    is_matched: bool = False

    @property
    def has_k(self) -> bool:
        return self.needs_table or self.is_matched or "layer_k" in self.options


_COMPENSATED = {"sdc": "exact", "vmc": True}
_AS_PUBLISHED = {"sdc": "none", "vmc": False}

_KINDS = {
    "dense": _Kind("dense", {}),
    "top-theta": _Kind("Top-θ", {**_COMPENSATED, "gamma": 0.05, "selection": "own"}, SDC_MODES, needs_table=True),
    "top-theta-capped": _Kind("Top-θ", {**_COMPENSATED, "keep": "recent"}, needs_table=True),
    "top-k": _Kind("Top-k", {**_COMPENSATED, "selection": "own", "layer_k": "table"}),
    "last-k": _Kind("last-k", _AS_PUBLISHED, is_matched=True),
    "random-k": _Kind("random-k", _COMPENSATED, is_matched=True),
    "blasst": _Kind("BLASST", {**_AS_PUBLISHED, "selection": "own", "tile": 128}, is_matched=True),
    "pages": _Kind(kinds.PAGES, {**_AS_PUBLISHED, "selection": "own", "page": 16}, is_matched=True),
    "value-mean": _Kind("V mean only", {}),
}

#: The names of the methods.
NAMES = tuple(_KINDS)


@dataclass(frozen=True)
class MethodSpec:
    """A method by name with its options, before it is known for which k, table and model; see `parse_method`.

    An option that the method does not have is None.

    Attributes:
        name: one of `NAMES`.
        sdc, vmc, gamma: the compensations, as in `sparsify`; gamma is for ``sdc="exp_threshold"`` only.
        selection: as in `kinds.top_theta`.
        layer_k: Top-k only.
        page, tile: how many keys `kinds.pages` and `kinds.blasst` keep or leave at once.
        keep: as in `kinds.top_theta_capped`.
    """

    name: str
    sdc: Sdc | None = None
    vmc: bool | None = None
    gamma: float | None = None
    selection: Selection | None = None
    layer_k: LayerK | None = None
    page: int | None = None
    tile: int | None = None
    keep: Keep | None = None

    @property
    def needs_table(self) -> bool:
        """Whether there is one such method per threshold table."""
        return _KINDS[self.name].needs_table

    @property
    def has_k(self) -> bool:
        """Whether there is one such method per k."""
        return _KINDS[self.name].has_k

    @property
    def is_matched(self) -> bool:
        """Whether the method reads as much as Top-θ does at k: `matching.matched_method` makes it."""
        return _KINDS[self.name].is_matched

    @property
    def calibrates(self) -> bool:
        """Whether the method finds what it is matched by on calibration text."""
        return self.tile is not None or self.page is not None

    @property
    def text(self) -> str:
        """The shortest text that `parse_method` reads as this method.

        Example:
            >>> parse_method("top-theta: vmc=false, sdc=none").text
            'top-theta:sdc=none'
        """
        options = ",".join(f"{name}={_as_word(value)}" for name, value in self._changed().items())
        return f"{self.name}:{options}" if options else self.name

    @property
    def label(self) -> str:
        """The name for people, without a threshold table's placement."""
        return self.label_with(None)

    @property
    def compensation(self) -> Compensation:
        """SDC and VMC; neither where the method has no such options."""
        default = Compensation()
        return Compensation(self.sdc or "none", bool(self.vmc), default.gamma if self.gamma is None else self.gamma)

    def label_with(self, placement: str | None) -> str:
        """The name for people, with thresholds of this placement.

        Example:
            >>> spec = parse_method("top-theta")
            >>> spec.label, spec.label_with("post_softmax")
            ('Top-θ + SDC + VMC', 'Top-θ post + VMC')
        """
        changed, placed = self._changed(), self.needs_table and placement is not None
        where = f" {str(placement).split('_')[0]}" if placed else ""
        suffix = "" if self.sdc is None else self.compensation.suffix(placement if placed else None)
        parts = [_KINDS[self.name].title + where + suffix]
        if "gamma" in changed:
            parts.append(f"gamma {self.gamma:g}")
        if self.keep is not None:
            parts.append(f"{self.keep} k")
        if "layer_k" in changed:
            parts.append("equal k")
        parts += [f"{name}s of {changed[name]}" for name in ("page", "tile") if name in changed]
        return ", ".join(parts) + (kinds.UNION_SUFFIX if self.selection == "union" else "")

    def _changed(self) -> dict[str, Any]:
        """The options that differ from the defaults, in the order of the fields."""
        defaults = _defaults(self.name, self.sdc)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return {name: value for name, value in given.items() if name in defaults and value != defaults[name]}


def parse_method(text: str) -> MethodSpec:
    """A method from its name and options.

    ====================  =============================================================================
    dense                 every element
    top-theta             thresholds: sdc, vmc, gamma, selection
    top-theta-capped      of them at most k elements: keep=recent or first_and_last, sdc, vmc
    top-k                 the k largest elements: layer_k=table or equal, sdc, vmc, selection
    last-k                the most recent keys: sdc, vmc
    random-k              random keys: sdc, vmc
    blasst                tiles not far below the running maximum: tile (128), sdc, vmc, selection
    pages                 pages by the bounds of their scores: page (16), sdc, vmc, selection
    value-mean            the mean V row instead of attention
    ====================  =============================================================================

    sdc is none or exact, of top-theta also exp_threshold (with gamma, 0.05) or offline; vmc is true or false, and
    false with sdc=none; selection is own or union. Top-θ, Top-k and random-k have exact SDC and VMC unless the options
    say otherwise, the others neither.

    Raises:
        TopThetaTypeError: ``text`` is not a str.
        TopThetaValueError: an unknown name or option, an option twice, a wrong value, or options that do not go
            together.

    Example:
        >>> parse_method("blasst:tile=64").label
        'BLASST, tiles of 64'
        >>> parse_method("top-theta").sdc
        'exact'
    """
    if not isinstance(text, str):
        raise TopThetaTypeError("method", "a text such as top-theta:sdc=none", shown(text))
    name, colon, rest = text.strip().partition(":")
    name = name.strip()
    if name not in _KINDS:
        raise TopThetaValueError("method", "the name of a method", shown(name), nearest(name, _KINDS))
    given: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        option, value = _option(name, part)
        if option in given:
            raise TopThetaValueError(f"method {name}", f"{option} once", "it twice", "remove one of them")
        given[option] = value
    spec = MethodSpec(name, **{**_defaults(name, given.get("sdc")), **given})
    _check_together(spec, given)
    return spec


def make_method(
    spec: MethodSpec, k: int | None = None, table: ThresholdTable | None = None, targets: Sequence[int] | None = None
) -> Method:
    """The method of a spec that is not matched to another.

    Args:
        spec: what to make.
        k: where ``spec.has_k``.
        table: where ``spec.needs_table``.
        targets: the k of each layer, as `ThresholdTable.layer_targets` has it; for Top-k and value-mean, which uses
            those of the first layers.

    Raises:
        TopThetaValueError: an argument is missing, ``table`` does not go with ``spec``, or ``spec`` is matched.

    Example:
        >>> make_method(parse_method("top-k:layer_k=equal"), k=64, targets=[512, 512, 64]).family
        'Top-k + SDC + VMC, equal k'
    """
    if spec.is_matched:
        raise TopThetaValueError("spec", "a method that is not matched", spec.text, "use matching.matched_method")
    options: dict[str, Any] = {"compensated": spec.compensation}
    if spec.selection is not None:
        options["selection"] = spec.selection
    if spec.name == "dense":
        method = kinds.dense()
    elif spec.name == "value-mean":
        method = kinds.value_mean_only(_given("targets", targets))
    elif spec.name == "top-k":
        wanted, per_layer = _given("k", k), _given("targets", targets)
        method = kinds.top_k(wanted, [wanted] * len(per_layer) if spec.layer_k == "equal" else per_layer, **options)
    elif spec.keep is not None:
        method = kinds.top_theta_capped(_given("table", table), _given("k", k), spec.keep, **options)
    else:
        method = kinds.top_theta(_given("table", table), _given("k", k), **options)
    placement = table.placement if spec.needs_table and table is not None else None
    return dataclasses.replace(method, family=spec.label_with(placement))


def _given(name: str, value: Any) -> Any:
    if value is None:
        raise TopThetaValueError(name, "a value, which this method needs", "None")
    return value


def _defaults(name: str, sdc: str | None) -> dict[str, Any]:
    """The options of a method by name; without SDC there is no mass for VMC to give back."""
    defaults = dict(_KINDS[name].options)
    if sdc == "none":
        defaults["vmc"] = False
    if sdc != "exp_threshold":
        defaults.pop("gamma", None)
    return defaults


def _option(method: str, part: str) -> tuple[str, Any]:
    """Name and value of one option."""
    kind, where = _KINDS[method], f"method {method}"
    option, equals, word = (piece.strip() for piece in part.partition("="))
    if not equals or not word:
        raise TopThetaValueError(where, "an option as name=value", shown(part.strip()), f"such as {method}:sdc=none")
    if option not in kind.options:
        known = {name for each in _KINDS.values() for name in each.options}
        remedy = f"it has {', '.join(kind.options) or 'none'}" if option in known else nearest(option, known)
        raise TopThetaValueError(where, "an option that it has", shown(option), remedy)
    return option, _READERS[option](f"{where}: {option}", word, kind)


def _check_together(spec: MethodSpec, given: Mapping[str, Any]) -> None:
    where = f"method {spec.name}"
    if spec.vmc and spec.sdc == "none":
        got = "both" if "sdc" in given else "vmc=true with its sdc=none"
        remedy = "add sdc=exact" if "sdc" not in given else "use sdc=exact"
        raise TopThetaValueError(where, "no vmc=true with sdc=none, which leaves no mass to give back", got, remedy)
    if "gamma" in given and spec.sdc != "exp_threshold":
        raise TopThetaValueError(where, "gamma only with sdc=exp_threshold", f"it with sdc={spec.sdc}", "leave it out")
    if spec.selection == "union" and spec.sdc not in _EXACT_OR_NONE:
        raise TopThetaValueError(
            where, "sdc=exact or sdc=none with selection=union, since estimates are those of a head's own selection",
            f"sdc={spec.sdc}",
        )  # fmt: skip


def _choice(*choices: str) -> Callable[[str, str, _Kind], str]:
    def read(where: str, word: str, _: _Kind) -> str:
        if word not in choices:
            raise TopThetaValueError(where, f"one of {', '.join(choices)}", shown(word))
        return word

    return read


def _sdc(where: str, word: str, kind: _Kind) -> str:
    return _choice(*kind.sdc)(where, word, kind)


def _truth(where: str, word: str, kind: _Kind) -> bool:
    return _choice("true", "false")(where, word, kind) == "true"


def _count(where: str, word: str, _: _Kind) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 10 and int(word) > 0):
        raise TopThetaValueError(where, "a whole number from 1 on", shown(word))
    return int(word)


def _number(where: str, word: str, _: _Kind) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise TopThetaValueError(where, "a number >= 0", shown(word))
    return value


_READERS: dict[str, Callable[[str, str, _Kind], Any]] = {
    "sdc": _sdc,
    "vmc": _truth,
    "gamma": _number,
    "selection": _choice(*get_args(Selection)),
    "layer_k": _choice(*get_args(LayerK)),
    "page": _count,
    "tile": _count,
    "keep": _choice(*get_args(Keep)),
}


def _as_word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
