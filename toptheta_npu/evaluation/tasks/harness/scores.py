"""Reads scores of single documents from what lm-eval says of them."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ....errors import TopThetaValueError

#: Metrics that tell most of a task, first of all.
_PRIMARY = (
    "acc_norm", "acc", "exact_match", "pass@1", "rougeL", "rouge_score", "f1", "qa_f1_score", "score", "bleu",
)  # fmt: skip
#: Of these a document has a log-likelihood and a number of words or bytes.
_ROLLING = {
    "word_perplexity": "nats per word", "byte_perplexity": "nats per byte", "bits_per_byte": "nats per byte",
}  # fmt: skip


def scores_of(
    documents: Sequence[Mapping[str, Any]], higher_is_better: Mapping[str, Any]
) -> tuple[str, bool, list[float]]:
    """Choose the metric that tells most of a task, and give its direction and its value for every document.

    Args:
        documents: as lm-eval logs them, with one entry per document and filter; the first filter counts.
        higher_is_better: by metric.

    Raises:
        TopThetaValueError: no metric is a number for each document.

    Example:
        >>> documents = [{"doc_id": i, "filter": "none", "metrics": ["acc", "acc_norm"], "acc": 1.0, "acc_norm": i}
        ...              for i in range(2)]
        >>> scores_of(documents, {"acc": True, "acc_norm": True})
        ('acc_norm', True, [0.0, 1.0])
    """
    documents = of_first_filter(documents)
    names: list[str] = list(documents[0]["metrics"])
    if all(name.isdigit() for name in names):
        # RULER: one metric per length of the prompt, -1 for the lengths that a document does not have
        return "string match", True, [max(float(document[name]) for name in names) for document in documents]
    plain = [name for name in names if all(isinstance(document[name], numbers.Real) for document in documents)]
    if not plain:
        return _per_word(documents, names)
    name = min(plain, key=lambda name: _PRIMARY.index(name) if name in _PRIMARY else len(_PRIMARY))
    if name == "perplexity":  # lm-eval's name for a document's log-likelihood, until it has averaged them
        return "nats per answer", False, [-float(document[name]) for document in documents]
    better = higher_is_better.get(name)
    return name, True if better is None else bool(better), [float(document[name]) for document in documents]


def details_of(name: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Gather what lm-eval says of a task beyond its scores, and what its documents say of themselves."""
    documents = of_first_filter(results["samples"][name])
    metrics = {key: float(value) for key, value in results["results"][name].items() if _is_metric(key, value)}
    details: dict[str, Any] = {
        "metrics": metrics,
        "num_fewshot": results["n-shot"][name],
        "version": results["versions"][name],
        "filter": documents[0]["filter"],
        "lm_eval": version("lm_eval"),
    }
    for key in ("length", "depth"):
        if all(key in document["doc"] for document in documents):
            details[key] = [document["doc"][key] for document in documents]
    if all(_has_margin(document) for document in documents):
        details["margin"] = [_margin(document) for document in documents]
    return details


def of_first_filter(documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Take the documents in their order, without those that are scored once more through another filter."""
    first = documents[0]["filter"]
    chosen = [document for document in documents if document["filter"] == first]
    return sorted(chosen, key=lambda document: int(document["doc_id"]))


def _per_word(documents: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[str, bool, list[float]]:
    name = next((name for name in _ROLLING if name in names), None)
    if name is None:
        remedy = "add one, such as acc or exact_match, to metric_list in the task's file"
        raise TopThetaValueError("task", "a metric that is a number for each document", ", ".join(names), remedy)
    pairs = [document[name] for document in documents]
    return _ROLLING[name], False, [-log_likelihood / count for log_likelihood, count in pairs]


def _is_metric(key: str, value: Any) -> bool:
    return "," in key and "_stderr" not in key and isinstance(value, numbers.Real)


def _has_margin(document: Mapping[str, Any]) -> bool:
    answers = document["filtered_resps"]
    pairs = all(isinstance(answer, (tuple, list)) and len(answer) == 2 for answer in answers)
    return type(document["target"]) is int and pairs and len(answers) > max(1, document["target"])


def _margin(document: Mapping[str, Any]) -> float:
    """Tell how much more likely the right answer is than the most likely other one, in nats."""
    likelihoods = [float(log_likelihood) for log_likelihood, _ in document["filtered_resps"]]
    right = likelihoods.pop(document["target"])
    return right - max(likelihoods)
