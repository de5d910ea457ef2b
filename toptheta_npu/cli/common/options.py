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
        help="A causal transformers model: its folder, or its name on the Hub. Default: the embedded one.",
    ),
]
DtypeName = Annotated[str | None, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16.")]
DeviceName = Annotated[
    str | None, typer.Option(help="cpu, cuda, npu, or auto to spread the layers. Default: the best there is.")
]
#: What --kv-cache takes.
INT8 = "int8"
KV_CACHES = ("auto", INT8)
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]


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

    option = typer.Option(help="These options in a YAML file; the command line wins.", is_eager=True, callback=read)
    return inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, option]
    )


def _typed(context: typer.Context) -> frozenset[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")
