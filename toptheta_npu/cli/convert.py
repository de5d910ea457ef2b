"""``toptheta convert``: between tables and the files of the paper's authors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .._checks import PLACEMENTS, check_choice
from .._files import check_writable
from ..errors import TopThetaValueError

if TYPE_CHECKING:
    from ..thresholds import ThresholdTable
from .layer_k import read_layer_k

#: The forms and the ends of the file names that stand for them.
_SUFFIXES = {"sdc": ("sdc.txt",), "th": (".txt",), "csv": (".csv", ".csv.gz"), "theta": (".theta", ".safetensors")}
_NO_MODEL = "a table belongs to one model: give the folder with its config.json and weights"


def convert(
    source: Annotated[Path, typer.Argument(help="The file to read.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    source_form: Annotated[
        str | None, typer.Option("--from", help="theta, th or csv. Default: by the name: .theta, .txt, .csv.gz.")
    ] = None,
    output_form: Annotated[
        str | None, typer.Option("--to", help="theta, th, sdc or csv. Default: by the name; sdc.txt for sdc.")
    ] = None,
    sdc: Annotated[Path | None, typer.Option(help="Add the discarded mass of this sdc.txt.")] = None,
    k: Annotated[
        int | None, typer.Option("--k", help="Of a csv to read; of a table of several k, the one to write.")
    ] = None,
    layer_k: Annotated[
        str | None, typer.Option(help="Least k of the layers of a csv: 0:512,1:512, or one number per layer.")
    ] = None,
    fingerprint_of: Annotated[
        Path | None, typer.Option(help="Folder of the model that th.txt or csv thresholds belong to.")
    ] = None,
    placement: Annotated[str | None, typer.Option(help="Of th.txt or csv thresholds. Default: pre_softmax.")] = None,
    estimator: Annotated[str | None, typer.Option(help="Of th.txt or csv thresholds. Default: algorithm1.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Of th.txt or csv thresholds, the standard deviations added. Default: 0.1.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
) -> None:
    """Convert thresholds: a table to th.txt, sdc.txt or csv.gz of the paper's authors, or back.

    th.txt and csv hold one k and do not say which model they are of; csv does not say the k either.
    """
    read_as = _form("--from", source_form, source, ("theta", "th", "csv"))
    write_as = _form("--to", output_form, output, tuple(_SUFFIXES))
    if output.exists() and not force:
        raise TopThetaValueError("--output", "a new file", f"{output}, which exists", "give --force to replace it")
    check_writable(output, "--output")
    if sdc is not None and write_as in ("th", "csv"):
        raise TopThetaValueError("--sdc", "a table or a sdc.txt to write", str(output), "it has no discarded mass")
    about = {"placement": placement, "estimator": estimator, "alpha": alpha}
    origin = {name: value for name, value in about.items() if value is not None}
    if read_as == "theta":
        table = _load(source, layer_k=layer_k, fingerprint_of=fingerprint_of, **origin)
    else:
        fingerprint = _fingerprint(fingerprint_of, write_as)
        table = _read(source, read_as, k, layer_k, fingerprint, origin)
        if fingerprint_of is not None:
            _check_geometry(table, source, fingerprint_of)
    if sdc is not None:
        table = table.with_sdc_text(sdc)
    written = _write(table, output, write_as, None if read_as == "csv" else k)
    Console(highlight=False, soft_wrap=True).print(f"{output} written: {written}{table!r}", markup=False)


def _form(option: str, form: str | None, path: Path, choices: tuple[str, ...]) -> str:
    if form is not None:
        check_choice(option, form, choices)
        return form
    for known in choices:
        if path.name.endswith(_SUFFIXES[known]) and (known != "th" or not path.name.endswith(_SUFFIXES["sdc"])):
            return known
    ends = ", ".join(suffix for known in choices for suffix in _SUFFIXES[known])
    raise TopThetaValueError(option, f"one of {', '.join(choices)}", f"none, for {path}", f"or name the file {ends}")


def _load(source: Path, **of_imports: Any) -> ThresholdTable:
    from ..thresholds import ThresholdTable

    for name, value in of_imports.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise TopThetaValueError(option, "a th.txt or csv to read", str(source), "a table says so itself")
    return ThresholdTable.load(source)


def _fingerprint(folder: Path | None, write_as: str) -> str:
    if folder is None:
        if write_as == "theta":
            raise TopThetaValueError("--fingerprint-of", "the folder of a model", "none", _NO_MODEL)
        return ""
    from ..models import folder_fingerprint

    return folder_fingerprint(folder)


def _check_geometry(table: ThresholdTable, source: Path, folder: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).get_text_config()
    have, wanted = (config.num_hidden_layers, config.num_attention_heads), (table.num_layers, table.num_heads)
    if have != wanted:
        raise TopThetaValueError(
            "--fingerprint-of", "a model of {} layers x {} heads, as {} has".format(*wanted, source),
            "{} x {}".format(*have), "name the model that was calibrated",
        )  # fmt: skip


def _read(
    source: Path, form: str, k: int | None, layer_k: str | None, fingerprint: str, origin: dict[str, Any]
) -> ThresholdTable:
    from ..thresholds import ThresholdTable

    if "placement" in origin:
        check_choice("--placement", origin["placement"], PLACEMENTS)
    provenance = {"converted from": source.name}
    if form == "th":
        for option, given in (("--layer-k", layer_k), ("--k", k)):
            if given is not None:
                raise TopThetaValueError(option, "a csv to read", str(source), "a th.txt says its k itself")
        return ThresholdTable.from_text(source, fingerprint=fingerprint, provenance=provenance, **origin)
    if k is None:
        raise TopThetaValueError("--k", "the k of the csv file", "none", "it is not in the file")
    least = None if layer_k is None else read_layer_k(layer_k)
    return ThresholdTable.from_csv(source, k=k, layer_k=least, fingerprint=fingerprint, provenance=provenance, **origin)


def _write(table: ThresholdTable, output: Path, form: str, k: int | None) -> str:
    """Writes the file, and says what of the table it is."""
    if form == "theta":
        if k is not None:
            raise TopThetaValueError("--k", "th.txt, sdc.txt or csv to write", str(output), "a table keeps all its k")
        table.save(output)
        return ""
    ks: list[int] = table.k.tolist()
    if k is None and len(ks) > 1:
        raise TopThetaValueError("--k", f"one k from {ks[0]} to {ks[-1]}", "none", f"{output} holds one")
    k = ks[0] if k is None else k
    if form == "th":
        table.export_text(output, k)
    elif form == "csv":
        table.export_csv(output, k)
    else:
        table.export_sdc_text(output, k)
    return f"k={k} of "
