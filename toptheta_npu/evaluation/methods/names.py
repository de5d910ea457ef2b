"""The methods of a comparison in words: ``NAME`` or ``NAME:option=value,option=value``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import TopThetaCombinationError, TopThetaTypeError, TopThetaValueError, nearest, shown
from .kinds import KINDS
from .spec import MethodKind, MethodSpec

#: The names of the methods.
NAMES = tuple(KINDS)


def parse_method(text: str) -> MethodSpec:
    """Read a method from its name and options, those of `kinds.KINDS`; docs/evaluation.md has them in a table.

    sdc is none or exact, of top-theta also exp_threshold (with gamma, 0.05) or offline; vmc is true or false, and
    false with sdc=none; selection is own or union.

    Raises:
        TopThetaTypeError: ``text`` is not a str.
        TopThetaValueError: an unknown name or option, an option twice, a wrong value, or options that do not go
            together.

    Example:
        >>> parse_method("pages:page=32").label
        'pages (Quest), pages of 32'
        >>> parse_method("top-theta").options["sdc"]
        'exact'
    """
    if not isinstance(text, str):
        raise TopThetaTypeError("method", "a text such as top-theta:sdc=none", shown(text))
    name, colon, rest = text.strip().partition(":")
    name = name.strip()
    if name not in KINDS:
        raise TopThetaValueError("method", "the name of a method", shown(name), nearest(name, KINDS))
    kind = KINDS[name]
    given: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        option, value = _option(kind, part)
        if option in given:
            raise TopThetaValueError(f"method {name}", f"{option} once", "it twice", "remove one of them")
        given[option] = value
    values = kind.defaults(given.get("sdc")) | given
    spec = MethodSpec(kind, tuple((option, values[option]) for option in kind.options if option in values))
    _check_together(spec, given)
    return spec


def _option(kind: MethodKind, part: str) -> tuple[str, Any]:
    """Read name and value of one option."""
    where = f"method {kind.name}"
    option, equals, word = (piece.strip() for piece in part.partition("="))
    if not equals or not word:
        raise TopThetaValueError(where, "an option as name=value", shown(part.strip()), f"such as {kind.name}:sdc=none")
    if option not in kind.options:
        known = {name for each in KINDS.values() for name in each.options}
        remedy = f"it has {', '.join(kind.options) or 'none'}" if option in known else nearest(option, known)
        raise TopThetaValueError(where, "an option that it has", shown(option), remedy)
    return option, kind.options[option].read(f"{where}: {option}", word)


def _check_together(spec: MethodSpec, given: Mapping[str, Any]) -> None:
    where, sdc = f"method {spec.name}", spec.options.get("sdc")
    if spec.options.get("vmc") and sdc == "none":
        other = "sdc=none, which leaves no mass to give back"
        raise TopThetaCombinationError(f"{where}: vmc=true", "excludes", other, "use sdc=exact")
    if "gamma" in given and sdc != "exp_threshold":
        remedy = f"leave it out with sdc={sdc}"
        raise TopThetaCombinationError(f"{where}: gamma", "needs", "sdc=exp_threshold", remedy)
    if spec.selection == "union" and sdc not in ("none", "exact"):
        remedy = f"sdc={sdc} estimates what a head's own selection discards"
        raise TopThetaCombinationError(f"{where}: selection=union", "needs", "sdc=exact or sdc=none", remedy)
