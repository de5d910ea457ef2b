"""Makes the requests of a task, and refuses those that a model has no room to answer."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

from ....errors import TopThetaValueError
from .lookup import first_line

_SETTING = "include the task in a YAML file of yours with another {} in its generation_kwargs"


def build_requests(task: Any, name: str, limit: int | None) -> None:
    """Make the requests of a task of lm-eval for its first ``limit`` documents.

    Raises:
        TopThetaValueError: lm-eval makes none of a document, such as one with a field that is missing.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            task.build_all_requests(limit=limit, rank=0, world_size=1)
    except Exception as error:
        expected = f"a prompt and answers in every document of {name}"
        remedy = "mend such documents, or leave them out with process_docs in the task's file"
        raise TopThetaValueError("task", expected, first_line(error), remedy) from error


def most_tokens(prompt: int, settings: Mapping[str, Any]) -> int:
    """Count the tokens of a prompt and of the longest answer that the settings of a generation allow."""
    return int(settings.get("max_length") or prompt + _answer_tokens(settings))


def check_room(prompt: int, settings: Mapping[str, Any], context: int) -> None:
    """Check that the settings of a generation leave room for an answer, and for a prompt beside it.

    Args:
        prompt: its tokens.
        settings: as lm-eval has them.
        context: tokens of the model's.

    Raises:
        TopThetaValueError: they do not.
    """
    answer, total = _answer_tokens(settings), settings.get("max_length")
    if not 1 <= answer < context:
        expected = f"answers of 1 to {context - 1} tokens, which leave room for a prompt in the model's {context}"
        raise TopThetaValueError("task", expected, f"max_gen_toks of {answer}", _SETTING.format("max_gen_toks"))
    kept = min(prompt, context - answer)  # lm-eval cuts the beginning off a longer one
    if total is not None and not kept < int(total) <= context:
        expected = f"more than {kept} tokens, those of the prompt, and at most {context}, the model's context"
        raise TopThetaValueError("task", expected, f"max_length of {total}", _SETTING.format("max_length"))


def _answer_tokens(settings: Mapping[str, Any]) -> int:
    from lm_eval.models.utils import normalize_gen_kwargs

    return int(normalize_gen_kwargs(dict(settings))["max_gen_toks"])
