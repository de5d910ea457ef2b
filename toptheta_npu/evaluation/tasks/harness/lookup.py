"""Finds tasks of lm-eval by name: the local ones, those of lm-eval, and those of your folders."""

from __future__ import annotations

import difflib
import logging
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import TopThetaError, TopThetaValueError, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: The YAML files of the tasks that need no download.
LOCAL_TASKS = Path(__file__).parent / "tasks"
#: What `find_task` expects.
KNOWN_TASK = "a task of lm-eval"


def find_task(name: str, include_path: Sequence[str | Path] = ()) -> Any:
    """Find the entry of one task in lm-eval's index.

    Args:
        name: of the task.
        include_path: folders with further YAML files.

    Raises:
        ModuleNotFoundError: lm-eval is missing.
        TopThetaValueError: there is no such task, or several go by this name.
    """
    from lm_eval.tasks import TaskManager

    _hush()
    known = TaskManager(include_path=[LOCAL_TASKS, *include_path], include_defaults=False).task_index
    if name not in known:
        known = {**_tasks_of_lm_eval(), **known}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        remedy = f"did you mean {' or '.join(close)}?" if close else "lm-eval ls tasks shows them"
        raise TopThetaValueError("task", KNOWN_TASK, repr(name), remedy)
    entry = known[name]
    if entry.kind.name in ("GROUP", "TAG"):
        members = sorted(entry.tags) or [each for each in entry.cfg["task"] if isinstance(each, str)]
        remedy = f"name one of them, such as {', '.join(members[:5])}"
        raise TopThetaValueError("task", "one task", f"{name!r}, which stands for several", remedy)
    return entry


def check_code(entry: Any, confirmed: bool) -> None:
    """Raise TopThetaValueError for a task that runs code of the model without leave to do so."""
    if (entry.cfg or {}).get("unsafe_code") and not confirmed:
        expected = f"True for {entry.name}, which runs the code that the model writes, on this machine"
        raise TopThetaValueError("confirm_run_unsafe_code", expected, "False", "do so in a sandbox only")


def load_task(entry: Any, tokenizer: PreTrainedTokenizerBase, metadata: Mapping[str, Any]) -> Any:
    """Load the task with its documents.

    Args:
        entry: of `find_task`.
        tokenizer: for tasks that make prompts of a given length.
        metadata: what the task makes of itself; it takes precedence over that of the YAML file.

    Raises:
        TopThetaValueError: it cannot be loaded.
    """
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as folder:
        # tasks know a tokenizer by its path only
        tokenizer.save_pretrained(folder)
        manager = TaskManager(
            include_path=entry.yaml_path.parent, include_defaults=False, metadata={"tokenizer": folder, **metadata}
        )
        try:
            return manager.load(entry.name)["tasks"][entry.name]
        except TopThetaError:
            raise
        # whatever keeps the task away: a module, the network, a repository that is gone, a definition that is wrong
        except Exception as error:
            config = entry.cfg or {}
            parts = [part for part in (config.get("dataset_path"), config.get("dataset_name")) if part]
            raise TopThetaValueError(
                "task", f"a task {entry.name} that can be loaded" + (f" ({', '.join(parts)})" if parts else ""),
                first_line(error),
                f"install what it needs, see {entry.yaml_path}, or load it once where there is a network; the folder "
                "HF_HOME holds its documents then",
            ) from error  # fmt: skip


def first_line(error: Exception) -> str:
    """Shorten an error of lm-eval to one line of a message."""
    return shortened(f"{type(error).__name__}: {error}".splitlines()[0])


def _hush() -> None:
    """Silence lm-eval's warnings of what is meant, such as a model that is loaded already; errors are still shown."""
    logger = logging.getLogger("lm_eval")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)


@cache
def _tasks_of_lm_eval() -> Mapping[str, Any]:
    """Index what lm-eval itself brings; reading its thousands of files takes seconds."""
    from lm_eval.tasks import TaskManager

    index: Mapping[str, Any] = TaskManager().task_index
    return index
