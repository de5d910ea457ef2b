"""What all commands have in common in a shell: errors name its options, and an interrupt is no traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

from ..._configuration import written_in
from ...errors import TopThetaArgumentError, TopThetaBackendError

Error = TypeVar("Error", bound=TopThetaArgumentError)

INTERRUPTED = 130
_NONE = re.compile(r"\ANone\b")
_SETTING = re.compile(r"\b(?P<name>[a-z_]+)=(?P<quote>['\"]?)(?P<value>[\w.+-]+)(?P=quote)")


class Command(TyperCommand):
    """A command that says what is wrong in the words of the shell."""

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
    "workers": "--workers 1", "length": "a smaller --length", "prompt_length": "a smaller --prompt-length",
    "dtype": "--dtype bfloat16", "device": "another --device",
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
    if argument not in _files(context.params):
        argument = written_in(context, name) or (_long(options[name].opts) if name in options else argument)

    def words(text: str) -> str:
        return _SETTING.sub(lambda setting: _option(options, setting) or setting[0], text)

    expected, got = words(error.expected), error.got
    if name in options:
        expected, got = (_NONE.sub("nothing", text) for text in (expected, got))
    return type(error)(argument, expected, got, error.remedy and words(error.remedy))


def _files(values: Mapping[str, Any]) -> set[str]:
    """Collect the names of files from all that was given."""
    lists = (value if isinstance(value, (list, tuple)) else [value] for value in values.values())
    return {str(each) for values in lists for each in values if isinstance(each, Path)}


def _long(names: list[str]) -> str:
    return next(name for name in names if name.startswith("--"))


def _option(options: Mapping[str, Any], setting: re.Match[str]) -> str | None:
    """Find the option that says the same as ``name=value``; None where there is none."""
    found = options.get(setting["name"])
    if found is None:
        return None
    if not found.is_flag:
        return f"{_long(found.opts)} {setting['value']}"
    names = {"True": found.opts, "False": found.secondary_opts}.get(setting["value"])
    return _long(names) if names else None
