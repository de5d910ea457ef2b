"""A method before it is known for which k, thresholds and model: its kind and its options; and how it is made then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel

from ...errors import TopThetaValueError
from ...thresholds import ThresholdTable
from ..reads import Reads
from .method import UNION_SUFFIX, Compensation, Method, Selection
from .options import COMPENSATIONS, Option


@dataclass(frozen=True)
class Setting:
    """Hold what a method that is not matched to another is made for; what is missing and asked for raises.

    Attributes:
        given_k: elements to keep, or None.
        given_table: thresholds, or None.
        given_targets: the k of each layer, as `ThresholdTable.layer_targets` has it, or None.
    """

    given_k: int | None = None
    given_table: ThresholdTable | None = None
    given_targets: Sequence[int] | None = None

    @property
    def k(self) -> int:
        """The k that was given."""
        return cast("int", _given("k", self.given_k))

    @property
    def table(self) -> ThresholdTable:
        """The thresholds that were given."""
        return cast("ThresholdTable", _given("table", self.given_table))

    @property
    def targets(self) -> Sequence[int]:
        """The k of each layer that was given."""
        return cast("Sequence[int]", _given("targets", self.given_targets))


@dataclass(frozen=True)
class Reference:
    """Hold what a method without a k of its own is matched to.

    Attributes:
        k: of the Top-θ run.
        reads: what that run read in layers from 2 on.
        model: in evaluation mode.
        windows: int64 [W, T] tokens, T at least the mean number of keys of the run.
        layer_targets: the k of each layer, of which those of the first layers are used.
    """

    k: int
    reads: Reads
    model: PreTrainedModel
    windows: Tensor
    layer_targets: Sequence[int]


@dataclass(frozen=True, eq=False)
class MethodKind:
    """An entry of `kinds.KINDS`: one way to attend, with its options.

    Attributes:
        name: in words, as ``--method`` takes it.
        title: for people, without its compensations.
        make: makes the method; None for one that is matched to another.
        match: makes the method that reads about as much as another did, with what it found in ``settings``; else None.
        options: by name, in the order in which they are written.
        has_k, needs_table, calibrates: as in `MethodSpec`.
    """

    name: str
    title: str
    make: Callable[[MethodSpec, Setting], Method] | None = None
    match: Callable[[MethodSpec, Reference], Method] | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    has_k: bool = True
    needs_table: bool = False
    calibrates: bool = False

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
    """A kind of method with the values of its options; see `names.parse_method`.

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
    def needs_table(self) -> bool:
        """Tell whether there is one such method per threshold table."""
        return self.kind.needs_table

    @property
    def has_k(self) -> bool:
        """Tell whether there is one such method per k."""
        return self.kind.has_k

    @property
    def calibrates(self) -> bool:
        """Tell whether the method finds what it is matched by on calibration text."""
        return self.kind.calibrates

    @property
    def is_matched(self) -> bool:
        """Tell whether the method reads as much as Top-θ does at k: `matched_method` makes it."""
        return self.kind.match is not None

    @property
    def compensation(self) -> Compensation:
        """SDC and VMC; neither where the method has no such options."""
        found: dict[str, Any] = {"sdc": "none", "vmc": False, **self.options}
        return Compensation(**{name: found[name] for name in COMPENSATIONS if name in found})

    @property
    def selection(self) -> Selection:
        """Say which keys a head uses."""
        return cast("Selection", self.options.get("selection", "own"))

    @property
    def compensated_by_default(self) -> MethodSpec:
        """The same method with the compensations that its name alone has."""
        defaults = self.kind.defaults()
        others = {name: value for name, value in self.values if name not in COMPENSATIONS}
        return MethodSpec(self.kind, tuple((defaults | others).items()))

    @property
    def text(self) -> str:
        """The shortest text that `names.parse_method` reads as this method.

        Example:
            >>> from toptheta_npu.evaluation.methods.names import parse_method
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
            >>> from toptheta_npu.evaluation.methods.names import parse_method
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
        >>> from toptheta_npu.evaluation.methods.names import parse_method
        >>> make_method(parse_method("top-k:layer_k=equal"), k=64, targets=[512, 512, 64]).family
        'Top-k + SDC + VMC, equal k'
    """
    if spec.kind.make is None:
        raise TopThetaValueError("spec", "a method that is not matched", spec.text, "use spec.matched_method")
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
        >>> from toptheta_npu.evaluation.methods.names import parse_method
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
        raise TopThetaValueError("spec", "a method that is matched", spec.text, "use spec.make_method")
    method = spec.kind.match(spec, Reference(k, target, model, calibration_windows, layer_targets))
    return replace(method, family=spec.label)


def _given(name: str, value: object) -> object:
    if value is None:
        raise TopThetaValueError(name, "a value, which this method needs", "None")
    return value


def _as_word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
