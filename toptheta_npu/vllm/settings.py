"""The settings of the plug-in, read and checked only here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from .._checks import PrefillMode, Sdc, check_modes
from .._configuration import fields_of, fitted
from ..errors import TopThetaCombinationError, TopThetaTypeError, TopThetaValueError, nearest, shown
from ..thresholds import LookupForm, Placement
from ..thresholds.kinds import Lse
from ..thresholds.targets import DEFAULT_K
from ..thresholds.uniform import check_tau

#: The key of the plug-in in vLLM's ``--additional-config``.
SECTION = "top_theta"
_EXAMPLE = f'{{"{SECTION}": {{"tau": 0.0005}}}}'
#: Keys of a row from which on thresholds are as fast as vLLM's own kernel, by platform, as `benchmarks.serving` finds
#: it. Nothing was measured on others.
BREAK_EVEN = {"cpu": 1024}
#: Settings that only a table can use, with the value that leaves each out.
_OF_TABLE: Mapping[str, object] = {"k": None, "max_length": None, "lookup": "tabulated"}


@dataclass(frozen=True)
class Settings:
    """The settings of one engine.

    Attributes:
        table: file of thresholds, calibrated for the served model.
        tau: one probability instead of a table; keys with a probability of at most tau are dropped, as in
            `toptheta_npu.sparsify`. 0 drops none.
        lse: how to compute the denominator of the probability, as in `toptheta_npu.sparsify`. With "sampled" a step
            needs one pass over its scores.
        k: elements to keep per row; None means 128.
        dense_below: rows of fewer keys are dense. None: the row length from which thresholds are as fast as dense
            attention on the engine's platform, see `BREAK_EVEN`. On a CPU, vLLM's own kernel runs a step that has only
            such rows.
        sdc, sdc_gamma: estimate of the discarded mass, as in `toptheta_npu.sparsify`.
        vmc: whether to give the discarded mass back as the mean V row, from cumulative sums beside the cache. As in
            `toptheta_npu.sparsify`, ``sdc="none"`` excludes it.
        prefill: how to run prompts: ``"dense"`` in vLLM's own kernel, ``"thresholded"`` with the rule of a decode step.
        dense_layers: layers that stay dense even if the table has thresholds for them.
        max_length, lookup: as in ``ThresholdTable.at``.
        check_weights: whether to compare the table also with the weights in the model's folder. False compares it only
            with the model's configuration.
        metrics: whether to count the kept elements.
        log_interval: seconds between two lines of counts in the log.
        untried_versions: whether to run untried versions of vLLM, too.
    """

    table: Path | None = None
    tau: float | None = None
    lse: Lse = "exact"
    k: int | None = None
    dense_below: int | None = None
    sdc: Sdc = "exact"
    sdc_gamma: float = 0.05
    vmc: bool = True
    prefill: PrefillMode = "dense"
    dense_layers: tuple[int, ...] = ()
    max_length: int | None = None
    lookup: LookupForm = "tabulated"
    check_weights: bool = True
    metrics: bool = True
    log_interval: float = 60.0
    untried_versions: bool = False

    def __post_init__(self) -> None:
        if self.tau is not None:
            self._check_tau(self.tau)
            if not self.tau:  # where nothing is discarded, nothing is given back
                object.__setattr__(self, "vmc", False)
        elif self.table is None:
            raise TopThetaValueError(
                "tau", "a probability, or table in its place, since Top-Theta is configured", "neither",
                f"such as {_EXAMPLE}; without {SECTION!r}, vLLM stays as it is",
            )  # fmt: skip
        elif self.k is None:
            object.__setattr__(self, "k", DEFAULT_K)
        if self.tau is None and self.lse != "exact":
            raise TopThetaCombinationError(f"lse={self.lse!r}", "needs", "tau", "leave it out with a table")
        object.__setattr__(self, "dense_layers", tuple(sorted(set(self.dense_layers))))
        for layer in self.dense_layers:
            if layer < 0:
                raise TopThetaValueError("dense_layers", "indices of layers from 0 on", str(layer))
        if not self.log_interval > 0:
            raise TopThetaValueError("log_interval", "seconds above 0", shown(self.log_interval))
        # an estimate from the table is checked with the table
        if self.sdc != "offline":
            placement: Placement = "pre_softmax" if self.tau is None else "post_softmax"
            check_modes(placement, self.sdc, self.sdc_gamma, None, "vmc" if self.vmc else None)

    def _check_tau(self, tau: float) -> None:
        check_tau(tau)
        others = {"table": self.table} | {
            name: value for name, unset in _OF_TABLE.items() if (value := getattr(self, name)) != unset
        }
        for name, value in others.items():
            if value is not None:
                raise TopThetaCombinationError("tau", "excludes", name, "leave one of them out")
        if self.sdc == "offline":
            raise TopThetaCombinationError("sdc='offline'", "needs", "a table", "use sdc='exact', or name a table")

    def dense_below_on(self, platform: str) -> int:
        """Return ``dense_below`` on a platform, as torch names its devices."""
        return BREAK_EVEN.get(platform, 0) if self.dense_below is None else self.dense_below

    @property
    def rule(self) -> str:
        """The rule that selects a row's keys, in words."""
        return f"tau={self.tau:g}" if self.tau is not None else f"the thresholds of {self.table}, k={self.k}"


def is_configured(additional_config: object) -> bool:
    """Tell whether the user asks for Top-Theta at all. The settings may still be wrong.

    Raises:
        TopThetaValueError: as `read_settings`, of the key.
    """
    return _section(additional_config) is not None


def read_settings(additional_config: object) -> Settings | None:
    """Read the settings of an engine from vLLM's ``additional_config``; None if it has no ``top_theta`` key.

    Raises:
        TopThetaTypeError, TopThetaValueError: a name is not a setting, a value does not fit, both table and tau are
            missing, or the key is written in another way.

    Example:
        >>> settings = read_settings({"top_theta": {"table": "model.theta", "k": 64}})
        >>> settings.k, settings.vmc, settings.sdc
        (64, True, 'exact')
        >>> read_settings({"enable_cpu_binding": True}) is None
        True
    """
    section = _section(additional_config)
    if section is None:
        return None
    where = f"additional_config[{SECTION!r}]"
    if not isinstance(section, Mapping):
        raise TopThetaTypeError(where, "a mapping of settings", shown(section), f"such as {_EXAMPLE}")
    if not section:
        raise TopThetaValueError(where, "settings", "an empty mapping", "set tau, or leave it out")
    values = {name: _fitted(f"{where}[{str(name)!r}]", str(name), value) for name, value in section.items()}
    return Settings(**{name: value for name, value in values.items() if value is not None})


def _section(additional_config: object) -> object:
    if not isinstance(additional_config, Mapping):
        return None
    for key in additional_config:
        # keys of other plug-ins do not matter here, but nobody else has this one
        if key != SECTION and re.sub("[^a-z]", "", str(key).lower()) == SECTION.replace("_", ""):
            raise TopThetaValueError("additional_config", f"the key {SECTION!r}", repr(key), "write it so")
    return additional_config.get(SECTION)


@cache
def _fields() -> dict[str, Any]:
    hints = fields_of(Settings)
    return {
        each.name: list[int] if get_origin(hints[each.name]) is tuple else hints[each.name] for each in fields(Settings)
    }


def _fitted(where: str, name: str, value: object) -> Any:
    hints = _fields()
    if name not in hints:
        raise TopThetaValueError(where, "the name of a setting", "another", nearest(name, hints))
    try:
        return None if value is None else fitted(value, hints[name])
    except ValueError as mismatch:
        raise TopThetaTypeError(where, str(mismatch), shown(value)) from mismatch
