"""Thresholds for the layers of an engine: maps names to layers, and selects the heads of this rank."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._checks import PrefillMode, Sdc, check_modes
from ..cpu.repeated import LayerDecode, RepeatedRows
from ..errors import TopThetaNotImplementedError, TopThetaValueError
from ..thresholds import ThresholdsAtK, ThresholdTable
from ..thresholds.fingerprint import differences
from ..thresholds.uniform import UniformLookup
from .layouts import Antiquant, Pages
from .metrics import Counters
from .page_sums import NewRows, PageSums
from .settings import Settings


@dataclass(frozen=True)
class Geometry:
    """The geometry of the model, as a rank sees it.

    Attributes:
        num_layers: number of layers of the whole model.
        num_heads: query heads of a layer, all ranks together.
        rank_heads: query heads of this rank.
        rank: rank of this process among the ranks that share a layer.
        folder: folder with the model's weights; None if the engine got them in another way.
    """

    num_layers: int
    num_heads: int
    rank_heads: int
    rank: int
    folder: Path | None

    @property
    def heads(self) -> slice:
        """The query heads of this rank.

        Raises:
            TopThetaValueError: the ranks do not share the heads evenly.
        """
        first = self.rank * self.rank_heads
        if self.num_heads % self.rank_heads or not 0 <= first < self.num_heads:
            raise TopThetaValueError(
                "num_heads", f"{self.num_heads} heads in equal shares", f"{self.rank_heads} on rank {self.rank}",
                "choose a number of ranks that divides them",
            )  # fmt: skip
        return slice(first, first + self.rank_heads)


class LayerGroup:
    """Layers that see the same steps, one after the other, and share one look-up per step.

    Args:
        thresholds: of this rank's heads, on its device.
        layers: their indices in the whole model, in the order in which they run.
        offline: they use the table's estimate of the discarded mass.
        counters: what their rows keep; None: nobody wants to know.

    Attributes:
        theta: of all layers of the model, [L, places, Hq].
        discarded_mass: the same, or None.
        numbers: of the layers in their order, by their indices.
        repeated: the decode calls that were made on a CPU, for other rows.
    """

    def __init__(
        self, thresholds: ThresholdsAtK, layers: Sequence[int], *, offline: bool = False,
        counters: Counters | None = None,
    ) -> None:  # fmt: skip
        self.thresholds = thresholds
        self.first, self.last = layers[0], layers[-1]
        self.numbers = {layer: number for number, layer in enumerate(layers)}
        self.counters = counters
        self.repeated: dict[LayerRule, LayerDecode] = {}
        mass = thresholds.discarded_mass if offline else None
        self.theta = _in_one(thresholds.theta)
        self.discarded_mass = None if mass is None else _in_one(mass)

    def look_up(self, lengths: Tensor) -> DecodedRows:
        """Look up where thresholds of the rows of a step are, of ``lengths`` [S] keys."""
        return DecodedRows(self, lengths, self.thresholds.places(lengths))


@dataclass(eq=False)
class DecodedRows:
    """The decoding rows of a step, as the layers of a group see them.

    Attributes:
        group: of the layers.
        lengths: int [S], their keys.
        places: int64 [S], of their thresholds in the tables.
        repeated: what calls that repeat say alike of the rows; None: none of them has run.
    """

    group: LayerGroup
    lengths: Tensor
    places: Tensor
    repeated: RepeatedRows | None = field(default=None, init=False)
    _looked_up: tuple[Tensor, Tensor | None] | None = field(default=None, init=False)
    _counts: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False)

    @property
    def theta(self) -> Tensor:
        """The thresholds of all layers of the model, float32 [L, S, Hq]."""
        return self._all_layers[0]

    @property
    def discarded_mass(self) -> Tensor | None:
        """The same of the table's estimate of the discarded mass; None: it is not used."""
        return self._all_layers[1]

    def repeat(self, call: LayerDecode, new: NewRows) -> RepeatedRows | None:
        """Make what calls that repeat say alike of the rows; None: they cannot run now."""
        rows = call.rows(
            new.packed, self.lengths.contiguous(), new.decoding_table, self.places.contiguous(), len(self.group.numbers)
        )
        if rows is not None:
            for number, counts in enumerate(self._counts):
                rows.kept[number], rows.value_rows[number] = counts
        self.repeated = rows
        return rows

    def count(self, layer: int, kept: Tensor, value_rows: Tensor) -> None:
        """Note what a layer has counted, int32 [S, Hq] and [S, Hkv], that no repeated call has written."""
        if self.repeated is None:
            self._counts.append((kept, value_rows))
        else:
            number = self.group.numbers[layer]
            self.repeated.kept[number], self.repeated.value_rows[number] = kept, value_rows

    def counts(self) -> tuple[Tensor, Tensor]:
        """Get what all layers have counted: [layers, S, Hq] and [layers, S, Hkv]."""
        if self.repeated is not None:
            return self.repeated.kept, self.repeated.value_rows
        kept, value_rows = zip(*self._counts, strict=True)
        return torch.stack(kept), torch.stack(value_rows)

    @property
    def _all_layers(self) -> tuple[Tensor, Tensor | None]:
        if self._looked_up is None:
            theta, mass = self.group.theta, self.group.discarded_mass
            self._looked_up = (
                theta.index_select(1, self.places), None if mass is None else mass.index_select(1, self.places)
            )  # fmt: skip
        return self._looked_up


@dataclass(frozen=True, eq=False)
class LayerRule:
    """How the rows of one layer are computed.

    Attributes:
        layer: its index in the whole model.
        group: the layers with the same steps.
        num_key_value_heads: of this rank.
        scale: factor of q·k.
        sdc, sdc_gamma, prefill: as in the settings.
        vmc: give the discarded mass back as the mean V row.
        antiquant: the scales of its cache, once there is one; None: it is not int8.
        page_sums: the V sums of its cache, once there is one; only with ``vmc``.
    """

    layer: int
    group: LayerGroup
    num_key_value_heads: int
    scale: float
    sdc: Sdc = "exact"
    sdc_gamma: float = 0.05
    prefill: PrefillMode = "dense"
    vmc: bool = False
    antiquant: Antiquant | None = None
    page_sums: PageSums | None = None

    def options(self, lengths: Tensor) -> dict[str, Any]:
        """Return the thresholds [..., Hq] for rows of ``lengths`` [...] keys, with the options that go with them."""
        offline, thresholds = self.sdc == "offline", self.group.thresholds
        return {
            "threshold": thresholds.rows(self.layer, lengths),
            "discarded_mass": thresholds.discarded_mass_rows(self.layer, lengths) if offline else None,
            "placement": thresholds.placement,
            "sdc": self.sdc,
            "sdc_gamma": self.sdc_gamma,
        }

    def with_pages(self, pages: Pages) -> LayerRule:
        """Return the rule for its cache, with V sums if it needs any; itself if it has one."""
        if self.page_sums is not None or not (self.vmc or pages.antiquant):
            return self
        sums, scale = None, pages.antiquant and pages.antiquant.value_antiquant_scale
        if self.vmc:
            blocks, heads, block_size, head_dim = pages.values.shape
            sums = PageSums(blocks, block_size, heads, head_dim, pages.values.device, scale=scale)
        return dataclasses.replace(self, antiquant=pages.antiquant, page_sums=sums)


def _in_one(tables: Sequence[Tensor]) -> Tensor:
    """Join the layers' tables: [L, ...]. Those that lie one after the other, as `of_heads` makes them, are viewed."""
    first, size = tables[0], tables[0].numel()
    places = [table.data_ptr() - first.data_ptr() for table in tables]
    if places == [index * size * first.element_size() for index in range(len(tables))] and first.is_contiguous():
        return first.as_strided((len(tables), *first.shape), (size, *first.stride()))
    return torch.stack(list(tables))


def layer_index(name: str) -> int:
    """Read a layer's index in the whole model from its name in an engine, on any rank.

    Raises:
        TopThetaNotImplementedError: the name does not hold one number.

    Example:
        >>> layer_index("model.layers.17.self_attn.attn")
        17
    """
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    if len(numbers) != 1:
        raise TopThetaNotImplementedError(
            "model", "attention layers with one index in their names", repr(name), "use a decoder-only model"
        )
    return numbers[0]


def load_thresholds(settings: Settings, geometry: Geometry, device: torch.device | str = "cpu") -> ThresholdsAtK:
    """Load the thresholds of this rank's heads onto its device.

    Raises:
        TopThetaTypeError, TopThetaValueError, TopThetaNotImplementedError: the file cannot be read, belongs to another
            model, or lacks something that the settings ask for.
    """
    _check_layers(settings, geometry)
    below = settings.dense_below_on(torch.device(device).type)
    if settings.tau is not None:
        lookup = UniformLookup(settings.tau, geometry.num_layers, geometry.num_heads, settings.lse)
        return of_heads(lookup.anywhere(below, device), geometry.heads)
    assert settings.table is not None
    assert settings.k is not None  # since the settings were checked
    table = ThresholdTable.load(settings.table)
    check_table(table, settings, geometry)
    at_k = table.at(
        settings.k, dense_below=below, device=device, max_length=settings.max_length, lookup=settings.lookup,
    )  # fmt: skip
    mass = None if at_k.discarded_mass is None else at_k.discarded_mass[0]
    if settings.sdc == "offline" and mass is None:
        raise TopThetaValueError(
            "sdc", "'none', 'exact' or 'exp_threshold' with a table without discarded mass", "'offline'",
            "add it with calibrate_discarded_mass",
        )  # fmt: skip
    offline = mass if settings.sdc == "offline" else None
    check_modes(table.placement, settings.sdc, settings.sdc_gamma, offline, "vmc" if settings.vmc else None)
    return of_heads(at_k, geometry.heads)


def of_heads(at_k: ThresholdsAtK, heads: slice) -> ThresholdsAtK:
    """Select the thresholds of some of the query heads, in every layer."""
    # in one tensor each, from which a step looks up all layers at once
    theta = torch.stack([rows[:, heads] for rows in at_k.theta]).unbind()
    mass = at_k.discarded_mass and torch.stack([rows[:, heads] for rows in at_k.discarded_mass]).unbind()
    return dataclasses.replace(at_k, theta=theta, discarded_mass=mass)


def check_table(table: ThresholdTable, settings: Settings, geometry: Geometry) -> None:
    """Raise a typed error unless ``table`` was calibrated for the served model.

    Raises:
        TopThetaValueError: it was not.
        TopThetaNotImplementedError: the engine gives no way to find out.
    """
    have, want = (table.num_layers, table.num_heads), (geometry.num_layers, geometry.num_heads)
    if have != want:
        raise TopThetaValueError(
            str(settings.table), "thresholds of {} layers x {} heads, as the model has".format(*want),
            "{} x {}".format(*have), "calibrate this model, or name its own table",
        )  # fmt: skip
    if settings.check_weights:
        _check_weights(table, settings, geometry.folder)


def _check_layers(settings: Settings, geometry: Geometry) -> None:
    """Raise TopThetaValueError if the settings name layers that the model does not have, or all that it has."""
    beyond = [layer for layer in settings.dense_layers if layer >= geometry.num_layers]
    if beyond:
        raise TopThetaValueError("dense_layers", f"0 to {geometry.num_layers - 1}", str(beyond[0]))
    if len(settings.dense_layers) == geometry.num_layers:
        raise TopThetaValueError("dense_layers", "some layer left out", "all", "leave Top-Theta out")


def _check_weights(table: ThresholdTable, settings: Settings, folder: Path | None) -> None:
    remedy = "set check_weights=false to compare numbers of layers and heads alone"
    if folder is None or not any(folder.glob("*.safetensors")):
        raise TopThetaNotImplementedError(
            "check_weights", "a model from a folder with *.safetensors", str(folder) if folder else "another source",
            remedy,
        )  # fmt: skip
    from ..models.fingerprint.model import folder_fingerprint

    found = folder_fingerprint(folder)
    different = differences(found, table.fingerprint)
    if different:
        raise TopThetaValueError(
            str(settings.table), f"thresholds of the model that is served, {found}",
            f"those of {table.fingerprint}, which differs in {' and '.join(different)}",
            "calibrate this model, or name its own table",
        )  # fmt: skip


def model_folder(model: str, revision: str | None = None) -> Path | None:
    """Find the folder of a model's weights: ``model`` itself or its place in the hub's cache. None if unknown."""
    if os.path.isdir(model):
        return Path(model)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # whatever the hub's client raises: the caller says that there is no folder
        return None
