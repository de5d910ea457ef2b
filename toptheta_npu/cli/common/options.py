"""Commands whose options are the fields of a dataclass: declared once, for the shell, for YAML and for Python."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import typer

from ..._configuration import fields_of, use_as_defaults

T = TypeVar("T")

#: Fields that several commands have.
ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Folder or Hub name of a transformers language model. Default: the embedded model.",
    ),
]
DtypeName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Dtype to load the model in: auto (as stored), float32, bfloat16 or float16. Default: auto; float32 for "
        "the embedded model.",
    ),
]
DeviceName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Device to run on: cpu, cuda, npu, or auto to spread the layers. Default: cuda or npu if present, "
        "else cpu.",
    ),
]
TextPaths = Annotated[
    list[Path],
    typer.Option("--text", metavar="PATH", help="Text file, .jsonl file, or folder of them, to read. Repeatable."),
]
TextField = Annotated[str, typer.Option("--field", metavar="NAME", help="Field that holds the text in .jsonl files.")]
Tau = Annotated[
    list[float],
    typer.Option(
        "--tau", metavar="FLOAT",
        help="Smallest probability to keep, such as 0.0005; 0 reads all of V. Needs no table. Repeatable.",
    ),
]  # fmt: skip
#: What --kv-cache takes.
INT8 = "int8"
KV_CACHES = ("auto", INT8)
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code from the model's folder or Hub page.")
]


def command(
    options: type[T], run: Callable[[T], None], *, config: bool = False, exclude: Collection[str] = ()
) -> Callable[..., None]:
    """Make the command of ``run``: a function for typer with a parameter per annotated field of ``options``.

    Args:
        options: a dataclass; fields are annotated with ``typer.Option`` or ``typer.Argument``. A field ``typed`` gets
            the names of those that the command line has; other fields without are for Python alone.
        run: the work, whose docstring is the command's help.
        config: it has ``--config``, which takes options from a YAML file.
        exclude: options that only the command line has.
    """
    fields = {each.name: each for each in dataclasses.fields(options)}  # type: ignore[arg-type]
    hints = {name: hint for name, hint in get_type_hints(options, include_extras=True).items()
             if get_origin(hint) is Annotated}  # fmt: skip
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(fields[name]), annotation=hint)
        for name, hint in hints.items()
    ]
    if config:
        wanted = hints.keys() - set(exclude)
        parameters.append(_config({name: hint for name, hint in fields_of(options).items() if name in wanted}))

    def call(context: typer.Context, **given: Any) -> None:
        typed = {"typed": _typed(context)} if "typed" in fields else {}
        run(options(**{name: value for name, value in given.items() if name in hints}, **typed))

    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    call.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in (context, *parameters)}
    call.__name__, call.__doc__ = run.__name__, run.__doc__
    return call


def _default(option: dataclasses.Field[Any]) -> Any:
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return inspect.Parameter.empty if option.default is dataclasses.MISSING else option.default


def _config(fields: Mapping[str, Any]) -> inspect.Parameter:
    def read(context: typer.Context, value: Path | None) -> Path | None:
        if value is not None:
            use_as_defaults(context, value, fields)
        return value

    option = typer.Option(
        metavar="FILE", help="YAML file with these options. The command line wins.", is_eager=True, callback=read
    )
    return inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, option]
    )


def _typed(context: typer.Context) -> frozenset[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")
