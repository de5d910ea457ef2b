"""What ``toptheta calibrate`` is asked for, and what follows from it for a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..._checks import PLACEMENTS, check_choice, check_int
from ..._configuration import as_yaml
from ...calibration.settings import CalibrationSettings, default_layer_k
from ...errors import TopThetaCombinationError, TopThetaValueError
from ...thresholds.kinds import ESTIMATORS
from ..common.layer_k import layer_k_of
from ..common.model import Candidate, default_dtype, look_at
from ..common.options import (
    KV_CACHES,
    DeviceName,
    DtypeName,
    ModelName,
    TextField,
    TextPaths,
    TrustRemoteCode,
)

if TYPE_CHECKING:
    from ...thresholds import Estimator, Placement

#: The three k of a table when none is asked for, where the windows are long enough.
DEFAULT_K = (64, 128, 256)
#: Windows are not longer by default: scores of longer ones take long, and thresholds level off.
DEFAULT_LENGTH = 4096
#: The embedded model is calibrated in a minute or two on two cores.
_EMBEDDED_LENGTH, _EMBEDDED_SEQUENCES, _SEQUENCES = 2048, 16, 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as they were given; None: not at all."""

    model: ModelName = None
    text: TextPaths = dataclasses.field(default_factory=list)
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the thresholds.")] = (
        Path("thresholds.theta")
    )
    force: Annotated[bool, typer.Option("--force", help="Replace an existing table.")] = False
    evaluation: Annotated[
        list[Path],
        typer.Option(
            metavar="PATH", help="Text to check the thresholds on, as --text. Default: a tenth of the windows."
        ),
    ] = dataclasses.field(default_factory=list)
    field: TextField = "text"
    length: Annotated[
        int | None,
        typer.Option(
            metavar="INT",
            help="Tokens in a window of text. Default: the model's positions, up to 4096; 2048 for the embedded model.",
        ),
    ] = None
    sequences: Annotated[
        int | None,
        typer.Option(
            metavar="INT",
            help="Windows of text to calibrate on; 0 takes all. Default: 64; 16 for the embedded model.",
        ),
    ] = None
    k: Annotated[
        list[int],
        typer.Option("--k", metavar="INT", help="Elements to keep per row. Repeatable. Default: 64, 128 and 256."),
    ] = dataclasses.field(default_factory=list)
    layer_k: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Least k of layers: 0:512,1:512, one number per layer, or one for all. Default: 512 in the first two.",
        ),
    ] = None
    placement: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What to compare: post_softmax (probabilities) or pre_softmax (scores, faster)."
        ),
    ] = "post_softmax"
    estimator: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="How to choose thresholds: pooled (keeps k on average) or algorithm1 (the paper's)."
        ),
    ] = "pooled"
    alpha: Annotated[float, typer.Option(metavar="FLOAT", help="Standard deviations to add, with algorithm1.")] = 0.1
    row_fraction: Annotated[float, typer.Option(metavar="FLOAT", help="Share of the rows to look at.")] = 0.25
    top_k_at_calibration: Annotated[
        bool | None,
        typer.Option(
            "--top-k-at-calibration/--dense-at-calibration",
            help="What later layers see: top-k or dense. Default: top-k with one k and algorithm1, else dense.",
        ),
    ] = None
    kv_cache: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="KV cache to calibrate for: auto, or int8, which adds a scale per channel (one more pass).",
        ),
    ] = "auto"
    seed: Annotated[int, typer.Option(metavar="INT", help="Seed of the row sample.")] = 0
    dtype: DtypeName = None
    device: DeviceName = None
    restart: Annotated[bool, typer.Option("--restart", help="Discard what an interrupted run has done.")] = False
    trust_remote_code: TrustRemoteCode = False


@dataclass(frozen=True)
class Plan:
    """The settings of one calibration.

    Attributes:
        sequences: windows to calibrate on; None: all that there are.
        settings: of the calibration.
    """

    k: list[int]
    layer_k: list[int]
    length: int
    sequences: int | None
    top_k_at_calibration: bool
    settings: CalibrationSettings


def prepared(options: Options) -> tuple[Candidate, Plan]:
    """Look at the model, and settle what is calibrated how."""
    candidate = look_at(options.model, options.trust_remote_code)
    embedded = options.model is None
    length, sequences = (_EMBEDDED_LENGTH, _EMBEDDED_SEQUENCES) if embedded else (DEFAULT_LENGTH, _SEQUENCES)
    return candidate, make_plan(options, candidate, length, sequences)


def make_plan(options: Options, candidate: Candidate, default_length: int, default_sequences: int) -> Plan:
    """Make and check the settings for a model.

    Raises:
        TopThetaTypeError, TopThetaValueError: they do not fit each other or the model.
    """
    from ...models.hook.architecture import num_heads, num_layers, sliding_layers

    for name, choices in (("placement", PLACEMENTS), ("estimator", ESTIMATORS), ("kv_cache", KV_CACHES)):
        check_choice(f"--{name.replace('_', '-')}", getattr(options, name), choices)
    length = window_length(options.length, candidate.longest, default_length)
    k = sorted(options.k) or default_k(length)
    if k[-1] >= length:
        remedy = "lower it, or raise --length"
        raise TopThetaValueError("--k", f"less than {length}, the keys of the longest row", str(k[-1]), remedy)
    layers = num_layers(candidate.skeleton)
    layer_k = layer_k_for(layers, length) if options.layer_k is None else layer_k_of(options.layer_k, layers)
    if min(layer_k) >= length:
        expected = f"less than {length}, the keys of the longest row, in some layer"
        got, remedy = f"at least {min(layer_k)} in every layer", "lower it in a layer, or raise --length"
        raise TopThetaValueError("--layer-k", expected, got, remedy)
    one_pass = _top_k_at_calibration(options, k)
    settings = CalibrationSettings(
        num_layers=layers, num_heads=num_heads(candidate.skeleton), k=k, longest=length,
        placement=cast("Placement", options.placement), estimator=cast("Estimator", options.estimator),
        alpha=options.alpha, layer_k=layer_k, row_fraction=options.row_fraction,
        seed=options.seed, dense_layers=sliding_layers(candidate.skeleton),
    )  # fmt: skip
    sequences = default_sequences if options.sequences is None else options.sequences
    check_int("--sequences", sequences, 0)
    return Plan(k, layer_k, length, sequences or None, one_pass, settings)


def _top_k_at_calibration(options: Options, k: list[int]) -> bool:
    """Decide what later layers see."""
    wanted = options.top_k_at_calibration
    if wanted and len(k) > 1:
        alone = f"one --k, which decides what later layers see, and k is {', '.join(map(str, k))}"
        remedy = "give one --k, or --dense-at-calibration"
        raise TopThetaCombinationError("--top-k-at-calibration", "needs", alone, remedy)
    return len(k) == 1 and options.estimator == "algorithm1" if wanted is None else wanted


def arguments(options: Options, plan: Plan) -> dict[str, Any]:
    """Collect the settings that all the ways to calibrate take."""
    return {
        "k": plan.k, "placement": options.placement, "estimator": options.estimator, "alpha": options.alpha,
        "layer_k": plan.layer_k, "row_fraction": options.row_fraction,
        "top_k_at_calibration": plan.top_k_at_calibration, "seed": options.seed,
    }  # fmt: skip


def provenance(options: Options, candidate: Candidate, plan: Plan) -> dict[str, str]:
    """Tell the settings in force, as a file for --config says them, and the versions; nothing of this machine."""
    effective = {
        "model": candidate.name if options.model is not None else None, "text": options.text or None,
        "evaluation": options.evaluation or None, "field": options.field,
        "length": plan.length, "sequences": plan.sequences or 0, "k": plan.k,
        "layer_k": ",".join(map(str, plan.layer_k)),
        "placement": options.placement, "estimator": options.estimator, "alpha": options.alpha,
        "row_fraction": options.row_fraction,
        "top_k_at_calibration": plan.top_k_at_calibration, "seed": options.seed,
        "dtype": options.dtype or default_dtype(options.model),
        "trust_remote_code": options.trust_remote_code or None,
    }  # fmt: skip
    versions = {name: version(name) for name in ("toptheta_npu", "transformers")}
    return {"model": candidate.name, "configuration": as_yaml(effective), **versions}


def window_length(length: int | None, longest: int, default: int) -> int:
    """Choose the number of tokens in a window, of which the model takes ``longest``.

    Raises:
        TopThetaTypeError, TopThetaValueError: fewer than 2, or more than the model has positions for.

    Example:
        >>> window_length(None, 2048, 4096)
        2048
    """
    if length is None:
        return min(default, longest)
    check_int("--length", length, 2)
    if length > longest:
        expected = f"at most {longest} tokens, for which the model has positions"
        raise TopThetaValueError("--length", expected, str(length), f"use --length {longest}")
    return length


def default_k(length: int) -> list[int]:
    """Choose those of `DEFAULT_K` that are at most a quarter of a window; else a quarter of a window.

    Example:
        >>> default_k(4096), default_k(512), default_k(100)
        ([64, 128, 256], [64, 128], [25])
    """
    return [k for k in DEFAULT_K if 4 * k <= length] or [max(1, length // 4)]


def layer_k_for(layers: int, length: int) -> list[int]:
    """Choose 512 in the first two layers, as in the paper, but at most a quarter of a window, lest they be dense.

    Example:
        >>> layer_k_for(4, 4096), layer_k_for(4, 256)
        ([512, 512, 0, 0], [64, 64, 0, 0])
    """
    return [min(k, max(1, length // 4)) for k in default_layer_k(layers)]
