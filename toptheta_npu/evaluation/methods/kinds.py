"""All methods: by name in `KINDS`, and made from words by `make_method`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...errors import TopThetaCombinationError, TopThetaTypeError, TopThetaValueError, nearest, shown
from ...thresholds import ThresholdTable
from .dense import KIND as DENSE
from .last_k import KIND as LAST_K
from .method import Method
from .quest import KIND as PAGES
from .spec import MethodKind, MethodSpec
from .tau import KIND as TAU
from .top_k import KIND as TOP_K
from .top_theta import CAPPED
from .top_theta import KIND as TOP_THETA

#: Every method that ``toptheta evaluate`` knows, in the order of the pages.
KINDS: dict[str, MethodKind] = {kind.name: kind for kind in (DENSE, TOP_THETA, CAPPED, TAU, TOP_K, LAST_K, PAGES)}


def make_method(
    text: str, k: int | None = None, table: ThresholdTable | None = None, targets: Sequence[int] | None = None
) -> Method:
    """Make the method that `parse_method` reads, as `MethodSpec.make`.

    Example:
        >>> make_method("top-k:layer_k=equal", k=64, targets=[512, 512, 64]).family
        'Top-k + SDC + VMC, equal k'
    """
    return parse_method(text).make(k, table, targets)


def parse_method(text: str) -> MethodSpec:
    """Read a method, ``NAME`` or ``NAME:option=value,option=value``; docs/evaluation.md has the options in a table.

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
    kind = KINDS.get(name.strip())
    if kind is None:
        raise TopThetaValueError("method", "the name of a method", shown(name.strip()), nearest(name.strip(), KINDS))
    given: dict[str, Any] = {}
    for part in rest.split(",") if colon else ():
        option, value = _option(kind, part)
        if option in given:
            raise TopThetaValueError(f"method {kind.name}", f"{option} once", "it twice", "remove one of them")
        given[option] = value
    values = kind.defaults(given.get("sdc")) | given
    spec = MethodSpec(kind, tuple((option, values[option]) for option in kind.options if option in values))
    _check_together(spec, given)
    return spec


def _option(kind: MethodKind, part: str) -> tuple[str, Any]:
    """Read name and value of one option."""
    where = f"method {kind.name}"
    option, _, word = (piece.strip() for piece in part.partition("="))
    if not word:
        raise TopThetaValueError(where, "an option as name=value", shown(part.strip()), f"such as {kind.name}:sdc=none")
    if option not in kind.options:
        remedy = f"it has {', '.join(kind.options) or 'none'}"
        raise TopThetaValueError(where, "an option that it has", shown(option), remedy)
    return option, kind.options[option].read(f"{where}: {option}", word)


def _check_together(spec: MethodSpec, given: Collection[str]) -> None:
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
