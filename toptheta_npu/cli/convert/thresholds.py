"""Between tables of thresholds and the files of the paper's authors."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._checks import PLACEMENTS, check_choice
from ..._files import file_error, status
from ...errors import TopThetaCombinationError, TopThetaValueError
from ..common import printing
from ..common.layer_k import read_layer_k
from ..common.table_file import check_output

if TYPE_CHECKING:
    from ...thresholds import ThresholdTable
    from .options import Options

#: What a source is, by its form.
_SOURCES = {"theta": "a threshold table", "th": "a th.txt file", "csv": "a csv file"}
#: The forms and the ends of the file names that stand for them.
_SUFFIXES = {"sdc": ("sdc.txt",), "th": (".txt",), "csv": (".csv", ".csv.gz"), "theta": (".theta", ".safetensors")}
#: Options that tell what th.txt and csv do not.
_ORIGIN = ("placement", "estimator", "alpha")
_NO_MODEL = "a table belongs to one model: give the folder with its config.json and weights"


def convert_thresholds(options: Options) -> None:
    """Write the thresholds of one file in another form.

    Raises:
        TopThetaArgumentError: the files or the options do not go together.
    """
    from ...thresholds.summary import in_words

    source, output, sdc, k = options.source, options.output, options.sdc, options.k
    if output is None:
        raise TopThetaValueError("--output", "the file to write", "none", "add -o FILE")
    read_as = _form("--from", options.source_form, source, tuple(_SOURCES))
    write_as = _form("--to", options.output_form, output, tuple(_SUFFIXES))
    if status(source, _SOURCES[read_as]) is None:
        raise file_error(source, _SOURCES[read_as], "no such file", "correct the path")
    check_output(output, options.force)
    if sdc is not None and write_as in ("th", "csv"):
        other = f"a table or a sdc.txt to write, and {output} has no discarded mass"
        raise TopThetaCombinationError("--sdc", "needs", other, "leave it out, or write another file")
    origin = {name: value for name in _ORIGIN if (value := getattr(options, name)) is not None}
    console = printing.console()
    if read_as == "theta":
        table = _load(source, layer_k=options.layer_k, fingerprint_of=options.fingerprint_of, **origin)
    else:
        if options.fingerprint_of is None and write_as == "theta":
            raise TopThetaValueError("--fingerprint-of", "the folder of a model", "none", _NO_MODEL)
        table = _read(source, read_as, k, options.layer_k, origin)
        if options.fingerprint_of is not None:
            table = _of_model(table, source, options.fingerprint_of)
    if sdc is not None:
        table = _with_mass(table, source, sdc)
    written = _write(table, source, output, write_as, None if read_as == "csv" else k)
    console.print(f"{output} written: {in_words(table, written)}.", markup=False)
    if assumed := [] if read_as == "theta" else _assumed(table, origin):
        console.print(f"Assumed, since {source} does not say: {', '.join(assumed)}.", markup=False)


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
    from ...thresholds import ThresholdTable

    for name, value in of_imports.items():
        if value is not None:
            other = f"a th.txt or csv to read, and {source} is a table, which says so itself"
            raise TopThetaCombinationError("--" + name.replace("_", "-"), "needs", other, "leave it out")
    return ThresholdTable.load(source)


def _of_model(table: ThresholdTable, source: Path, folder: Path) -> ThresholdTable:
    """Give the table the fingerprint of the model in ``folder``."""
    from transformers import AutoConfig

    from ...models.fingerprint.model import folder_fingerprint

    fingerprint = folder_fingerprint(folder)
    config = AutoConfig.from_pretrained(folder).get_text_config()
    have, wanted = (config.num_hidden_layers, config.num_attention_heads), (table.num_layers, table.num_heads)
    if have != wanted:
        raise TopThetaValueError(
            "--fingerprint-of", "a model of {} layers x {} heads, as {} has".format(*wanted, source),
            "{} x {}".format(*have), "name the model that was calibrated",
        )  # fmt: skip
    return replace(table, fingerprint=fingerprint)


def _read(source: Path, form: str, k: int | None, layer_k: str | None, origin: dict[str, Any]) -> ThresholdTable:
    """Read the thresholds of a th.txt or csv, of no model yet."""
    from ...thresholds import ThresholdTable

    if "placement" in origin:
        check_choice("--placement", origin["placement"], PLACEMENTS)
    provenance = {"converted from": source.name}
    if form == "th":
        for option, given in (("--layer-k", layer_k), ("--k", k)):
            if given is not None:
                other = f"a csv to read, and {source} is a th.txt, which says its k itself"
                raise TopThetaCombinationError(option, "needs", other, "leave it out")
        return ThresholdTable.from_text(source, fingerprint="", provenance=provenance, **origin)
    if k is None:
        raise TopThetaValueError("--k", "the k of the csv file", "none", "it is not in the file")
    least = None if layer_k is None else read_layer_k(layer_k)
    return ThresholdTable.from_csv(source, k=k, layer_k=least, fingerprint="", provenance=provenance, **origin)


def _assumed(table: ThresholdTable, origin: dict[str, Any]) -> list[str]:
    """List what neither the file nor an option says of its thresholds, as options that say so."""
    names = ["placement", "estimator", *(["alpha"] if table.estimator == "algorithm1" else [])]
    return [f"--{name} {getattr(table, name)}" for name in names if name not in origin]


def _with_mass(table: ThresholdTable, source: Path, sdc: Path) -> ThresholdTable:
    if len(table.k) > 1:
        ks = ", ".join(map(str, table.k.tolist()))
        remedy = f"make one of one k first: toptheta convert {shlex.quote(str(source))} --k {int(table.k[0])} -o th.txt"
        raise TopThetaValueError("--sdc", "a table of one k, as a sdc.txt is of one", f"{source} with k = {ks}", remedy)
    return table.with_sdc_text(sdc)


def _write(table: ThresholdTable, source: Path, output: Path, form: str, k: int | None) -> list[int]:
    """Write the file, and tell which k are in it."""
    if form == "theta":
        if k is not None:
            other = f"a th.txt, sdc.txt or csv to write, and {output} is a table, which keeps all its k"
            raise TopThetaCombinationError("--k", "needs", other, "leave it out")
        table.save(output)
        return table.k.tolist()
    ks: list[int] = table.k.tolist()
    if k is None and len(ks) > 1:
        raise TopThetaValueError("--k", f"one k from {ks[0]} to {ks[-1]}", "none", f"{output} holds one")
    k = ks[0] if k is None else k
    if form == "th":
        table.export_text(output, k)
    elif form == "csv":
        table.export_csv(output, k)
    else:
        if table.discarded_mass is None:
            remedy = "add that of a sdc.txt with --sdc, or calibrate it: toptheta_npu.models.calibrate_discarded_mass"
            raise TopThetaValueError(str(source), "a table with a discarded mass", "one without it", remedy)
        table.export_sdc_text(output, k)
    return [k]
