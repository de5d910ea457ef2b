"""What all commands have in common in a shell: errors name its options, and an interrupt is no traceback."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from ..._configuration import written_in
from ...errors import Setting, TopThetaArgumentError, TopThetaBackendError, TopThetaValueError

Error = TypeVar("Error", bound=TopThetaArgumentError)

INTERRUPTED = 130
#: Options that do not mean what arguments of the library with their names do: a number of windows, cold or hot.
_OF_THE_SHELL_ALONE = frozenset({"cache", "sequences"})


#: An argument in the help, with a type behind it.
_ARGUMENT = re.compile(r"^([^-].*) <.*>$")


class Command(TyperCommand):
    """A command that says what is wrong in the words of the shell, and takes no empty value for any."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "" in args or any(arg.endswith("=") for arg in args):
            self._check_not_empty(ctx, list(args))
        return super().parse_args(ctx, args)

    def _check_not_empty(self, context: Any, args: list[str]) -> None:
        """Refuse an empty path, which would be the current folder, and other empty texts: a variable was not set."""
        given = self.make_parser(context).parse_args(args=args)[0]
        for parameter in self.params:
            values = given.get(parameter.name)
            if "" in (values if isinstance(values, (list, tuple)) else [values]):
                name = _long(parameter.opts) if parameter.opts[0].startswith("-") else _shown(parameter)
                remedy = "give one; in a script, look whether the variable is set"
                raise TopThetaValueError(name, "a value", "an empty one", remedy)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the help of all parameters, of arguments without the names that Python has for their types."""
        write = formatter.write_dl
        formatter.write_dl = lambda rows, *rest: write([(_ARGUMENT.sub(r"\1", row[0]), row[1]) for row in rows], *rest)
        super().format_options(ctx, formatter)
        formatter.write_dl = write

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TopThetaArgumentError as error:
            raise in_shell_words(error, ctx).with_traceback(error.__traceback__) from error.__cause__
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            raise _out_of_memory(error, self) from error
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted.")
            raise typer.Exit(INTERRUPTED) from None


class Group(TyperGroup):
    """The commands, each under its heading in the help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        headings: dict[str, list[Any]] = {}
        for command in self.commands.values():
            headings.setdefault(getattr(command, "rich_help_panel", "Commands"), []).append(command)
        # typer leaves three times the space between two columns, too
        widest = max(map(len, self.commands))
        limit = formatter.width - 6 - widest
        for heading, commands in headings.items():
            with formatter.section(heading):
                # names are as wide under every heading
                formatter.write_dl([(each.name.ljust(widest), each.get_short_help_str(limit)) for each in commands])


@contextmanager
def interruptible(console: Console, state: Path) -> Iterator[None]:
    """Say at an interrupt from the keyboard how to go on from ``state``, and exit."""
    try:
        yield
    except KeyboardInterrupt:
        if state.exists():
            console.print(f"interrupted: the same command goes on from {escape(str(state))}.", soft_wrap=True)
        else:
            console.print("interrupted: nothing was kept.")
        raise typer.Exit(INTERRUPTED) from None


#: What makes the work of a command smaller, where it has such an option.
_SMALLER = {
    "length": "a smaller --length", "prompt_length": "a smaller --prompt-length", "dtype": "--dtype bfloat16",
    "other_dtype": "--no-other-dtype", "device": "another --device",
}  # fmt: skip


def _is_out_of_memory(error: BaseException) -> bool:
    # the CPU's allocator has no type of error of its own
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def _out_of_memory(error: BaseException, command: TyperCommand) -> TopThetaBackendError:
    said = str(error).split("DefaultCPUAllocator: ")[-1].split("\n")[0]
    said = ". ".join(said.split(". ")[:2]).rstrip(".") or "none left"
    options = {parameter.name for parameter in command.params}
    remedies = [text for name, text in _SMALLER.items() if name in options]
    return TopThetaBackendError("memory", "enough for this command", said, f"try {', or '.join(remedies) or 'less'}")


def in_shell_words(error: Error, context: Any) -> Error:
    """Put options in place of the library's arguments in ``error``: ``--row-fraction`` for ``row_fraction``.

    Where a value came from a file of settings, name its line.

    Args:
        error: of anything that the command called.
        context: of the command.
    """
    options = {parameter.name: parameter for parameter in context.command.params if parameter.opts[0].startswith("-")}
    argument, name = error.argument, error.argument.removeprefix("--").replace("-", "_").lower()
    # a file may have the name of an option
    if argument not in _files(context.params) and argument not in _OF_THE_SHELL_ALONE:
        argument = written_in(context, name) or (_long(options[name].opts) if name in options else argument)
    return error.retold(argument, lambda setting: _option(options, setting))


def _files(values: Mapping[str, Any]) -> set[str]:
    """Collect the names of files from all that was given."""
    lists = (value if isinstance(value, (list, tuple)) else [value] for value in values.values())
    return {str(each) for values in lists for each in values if isinstance(each, Path)}


def _long(names: list[str]) -> str:
    return next(name for name in names if name.startswith("--"))


def _shown(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).removesuffix("...")


def _option(options: Mapping[str, Any], setting: Setting) -> str:
    """Write ``setting`` as the option that says the same, where the command has one."""
    found = options.get(setting.name)
    if found is None:
        return str(setting)
    if not found.is_flag:
        return shlex.join([_long(found.opts), str(setting.value)])
    return _long(found.opts if setting.value else found.secondary_opts)
