"""Makes the requests of a task, and refuses those that a model cannot answer."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from traceback import walk_tb
from typing import Any

from ....errors import TopThetaValueError, shown
from .lookup import first_line

_LEAVE_OUT = "mend such documents, or leave them out with process_docs in the task's file"
_SETTING = "include the task in a YAML file of yours with another {} in its generation_kwargs"


def build_requests(task: Any, name: str, limit: int | None) -> None:
    """Make the requests of a task of lm-eval for its first ``limit`` documents.

    Raises:
        TopThetaValueError: a document has a prompt, an answer or a text that is missing, or nothing to score.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
            task.build_all_requests(limit=limit, rank=0, world_size=1)
    # a field that is missing or null fails wherever lm-eval first needs it
    except Exception as error:
        got = first_line(error)
        if (document := _failed_document(error)) is not None:
            got = f"{got} (document {document}, counted from 0)"
        expected = f"a prompt and answers in every document of {name}"
        raise TopThetaValueError("task", expected, got, _LEAVE_OUT) from error
    for document, instances in _by_document(task.instances).items():
        for text in _scored_texts(task, instances):
            if not isinstance(text, str) or not text:
                expected = f"answers and texts that are not empty in every document of {name}"
                got = f"{shown(text)} in document {document}, counted from 0"
                raise TopThetaValueError("task", expected, got, _LEAVE_OUT)


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


def _failed_document(error: Exception) -> int | None:
    """Find which document lm-eval was at."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "build_all_requests"]
    return frames[-1].f_locals.get("doc_id") if frames else None


def _by_document(instances: list[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for instance in instances:
        found.setdefault(instance.doc_id, []).append(instance)
    return found


def _scored_texts(task: Any, instances: list[Any]) -> list[Any]:
    """List the texts of a document whose likelihood is asked for, without what lm-eval puts in front of them."""
    if task.OUTPUT_TYPE == "generate_until":
        return []
    if task.OUTPUT_TYPE == "multiple_choice" and hasattr(task, "doc_to_choice"):
        return list(task.doc_to_choice(instances[0].doc))
    return [instance.args[0 if instance.request_type == "loglikelihood_rolling" else 1] for instance in instances]
