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
from ..common.table_file import check_output

if TYPE_CHECKING:
    from ...thresholds import ThresholdTable
    from .options import Options

#: What a source is, by its form.
_SOURCES = {"theta": "a threshold table", "th": "a th.txt file"}
#: The forms and the ends of the file names that stand for them.
_SUFFIXES = {"sdc": ("sdc.txt",), "th": (".txt",), "theta": (".theta", ".safetensors")}
#: Options that tell what a th.txt does not.
_ORIGIN = ("placement", "estimator", "alpha")
_NO_MODEL = "a table belongs to one model: give the folder with its config.json and weights"


def convert_thresholds(options: Options) -> None:
    """Write the thresholds of one file in another form.

    Raises:
        TopThetaArgumentError: the files or the options do not go together.
    """
    from ...thresholds import ThresholdTable
    from ...thresholds.summary import in_words

    source, output = options.source, options.output
    if output is None:
        raise TopThetaValueError("--output", "the file to write", "none", "add -o FILE")
    read_as = _form("--from", options.source_form, source, tuple(_SOURCES))
    write_as = _form("--to", options.output_form, output, tuple(_SUFFIXES))
    if status(source, _SOURCES[read_as]) is None:
        raise file_error(source, _SOURCES[read_as], "no such file", "correct the path")
    check_output(output, options.force)
    origin = {name: value for name in _ORIGIN if (value := getattr(options, name)) is not None}
    _check_options(options, read_as, write_as, origin)
    if read_as == "theta":
        table = ThresholdTable.load(source)
    else:
        provenance = {"converted from": source.name}
        table = ThresholdTable.from_text(source, fingerprint="", provenance=provenance, **origin)
        if options.fingerprint_of is not None:
            table = _of_model(table, source, options.fingerprint_of)
    if options.sdc is not None:
        table = _with_mass(table, source, options.sdc)
    written = _write(table, source, output, write_as, options.k)
    console = printing.console()
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


def _check_options(options: Options, read_as: str, write_as: str, origin: dict[str, Any]) -> None:
    """Refuse an option that these forms have no use for, or that they lack."""
    source, output = options.source, options.output
    needs: dict[str, str] = {}
    if read_as == "theta":
        other = f"a th.txt to read, and {source} is a table, which says so itself"
        needs = dict.fromkeys((*origin, *(["fingerprint_of"] if options.fingerprint_of else [])), other)
    elif options.fingerprint_of is None and write_as == "theta":
        raise TopThetaValueError("--fingerprint-of", "the folder of a model", "none", _NO_MODEL)
    if options.sdc is not None and write_as == "th":
        needs["sdc"] = f"a table or a sdc.txt to write, and {output} has no discarded mass"
    if options.k is not None and write_as == "theta":
        needs["k"] = f"a th.txt or sdc.txt to write, and {output} is a table, which keeps all its k"
    for name, other in needs.items():
        raise TopThetaCombinationError("--" + name.replace("_", "-"), "needs", other, "leave it out")
    if "placement" in origin:
        check_choice("--placement", origin["placement"], PLACEMENTS)


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
    ks: list[int] = table.k.tolist()
    if form == "theta":
        table.save(output)
        return ks
    if k is None and len(ks) > 1:
        raise TopThetaValueError("--k", f"one k from {ks[0]} to {ks[-1]}", "none", f"add --k: {output} holds one")
    k = ks[0] if k is None else k
    if form == "th":
        table.export_text(output, k)
    else:
        if table.discarded_mass is None:
            remedy = "add that of a sdc.txt with --sdc, or calibrate it: toptheta_npu.models.calibrate_discarded_mass"
            raise TopThetaValueError(str(source), "a table with a discarded mass", "one without it", remedy)
        table.export_sdc_text(output, k)
    return [k]
