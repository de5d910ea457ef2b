"""The methods of a comparison in words: ``NAME`` or ``NAME:option=value,option=value``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaTypeError, TopThetaValueError, nearest, shown
from ...thresholds import ThresholdTable
from ..reads import Reads
from .kinds import KINDS
from .method import Method
from .spec import MethodKind, MethodSpec, Reference, Setting

#: The names of the methods.
NAMES = tuple(KINDS)


def parse_method(text: str) -> MethodSpec:
    """Read a method from its name and options, those of `kinds.KINDS`; docs/evaluation.md has them in a table.

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


def make_method(
    spec: MethodSpec, k: int | None = None, table: ThresholdTable | None = None, targets: Sequence[int] | None = None
) -> Method:
    """Make the method of a spec that is not matched to another.

    Args:
        spec: what to make.
        k: where its kind has one.
        table: where its kind needs one.
        targets: the k of each layer, as `ThresholdTable.layer_targets` has it; for Top-k and value-mean, which uses
            those of the first layers.

    Raises:
        TopThetaValueError: an argument is missing, ``table`` does not go with ``spec``, or ``spec`` is matched.

    Example:
        >>> make_method(parse_method("top-k:layer_k=equal"), k=64, targets=[512, 512, 64]).family
        'Top-k + SDC + VMC, equal k'
    """
    if spec.kind.make is None:
        raise TopThetaValueError("spec", "a method that is not matched", spec.text, "use names.matched_method")
    placement = table.placement if spec.kind.needs_table and table is not None else None
    return replace(spec.kind.make(spec, Setting(k, table, targets)), family=spec.label_with(placement))


def matched_method(
    spec: MethodSpec,
    k: int,
    target: Reads,
    model: PreTrainedModel,
    calibration_windows: Tensor,
    layer_targets: Sequence[int],
) -> Method:
    """Make the method of a spec that reads about as much as Top-θ did; `matching` says how well it matches.

    Args:
        spec: one with ``is_matched``.
        k: of the Top-θ run.
        target: what that run read in layers from 2 on.
        model: in evaluation mode.
        calibration_windows: int64 [W, T] tokens, T at least the target's mean number of keys. Only kinds that calibrate
            look at them, in the rows whose numbers of keys lie around that mean.
        layer_targets: the k of each layer, of which those of the first layers are used.

    Returns:
        The method, whose ``settings`` say what was found, what was wanted and what it gives on the calibration text.

    Raises:
        TopThetaValueError: ``spec`` is not matched, or the windows are shorter than the target's rows.

    Example:
        >>> from toptheta_npu.assets import load_tiny_llama
        >>> from toptheta_npu.evaluation import corpus
        >>> model, tokenizer = load_tiny_llama()
        >>> windows = corpus.token_windows(tokenizer, "calibration", 320, 1)
        >>> target = Reads(kept_mean=64, value_rows_mean=120, value_rows_p95=150, value_rows_max=200, keys_mean=256)
        >>> spec = parse_method("pages:page=8")
        >>> method = matched_method(spec, 64, target, model, windows, [64] * model.config.num_hidden_layers)
        >>> reads = method.settings["expected_value_rows"]
        >>> abs(method.key_reads.rows(256, reads) + reads - (256 + 120)) < 16
        True
    """
    if spec.kind.match is None:
        raise TopThetaValueError("spec", "a method that is matched", spec.text, "use names.make_method")
    method = spec.kind.match(spec, Reference(k, target, model, calibration_windows, layer_targets))
    return replace(method, family=spec.label)


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
        got = "both" if "sdc" in given else "vmc=true with its sdc=none"
        remedy = "add sdc=exact" if "sdc" not in given else "use sdc=exact"
        raise TopThetaValueError(where, "no vmc=true with sdc=none, which leaves no mass to give back", got, remedy)
    if "gamma" in given and sdc != "exp_threshold":
        raise TopThetaValueError(where, "gamma only with sdc=exp_threshold", f"it with sdc={sdc}", "leave it out")
    if len(spec.budget) > 1 or (spec.budget and (spec.selection == "union" or spec.options.get("layer_k") == "equal")):
        got = ", ".join(f"{name}={spec.options[name]}" for name in (*spec.budget, "selection", "layer_k")
                        if name in spec.options)  # fmt: skip
        expected = "one target, and it with neither selection=union nor layer_k=equal"
        raise TopThetaValueError(where, expected, got, "leave out the others")
    if spec.selection == "union" and sdc not in ("none", "exact"):
        raise TopThetaValueError(
            where, "sdc=exact or sdc=none with selection=union, since estimates are those of a head's own selection",
            f"sdc={sdc}",
        )  # fmt: skip
