"""The HTTP server: many clients at once, its metrics, and a worker that is killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.serving.engines import TABLE, generated, prompts, wrong_tokens
from tests.markdown import ROOT, commands
from tests.vllm.schedules import undisturbed, wrong_in
from tests.vllm.server import Server, metric, serve, settings

CLIENTS = 16
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serve(folder, *settings(table=TABLE, k=64), environment=with_counts(folder)) as running:
        yield running


def with_counts(folder: Path) -> dict[str, str]:
    """The environment in which the page of metrics has the counts of the worker's process."""
    counts = folder / "counts"
    counts.mkdir()
    return {"PROMETHEUS_MULTIPROC_DIR": str(counts)}


def test_sixteen_clients_at_once_get_what_sparsify_generates(server: Server) -> None:
    asked = prompts(*(100 + 61 * index for index in range(CLIENTS)), seed=5)
    with ThreadPoolExecutor(CLIENTS) as clients:
        found = list(clients.map(lambda ids: server.complete(ids, NEW_TOKENS), asked))
    for answer, ids in zip(found, asked, strict=True):
        assert wrong_in(undisturbed(ids, answer), k=64) == ([], [])


def test_the_page_of_metrics_tells_what_was_kept_while_the_server_runs(server: Server) -> None:
    (ids,) = prompts(600, seed=6)
    before = metric(server, "toptheta_decode_tokens_total")
    server.complete(ids, 40)
    assert metric(server, "toptheta_decode_tokens_total") >= before + 39  # the first one comes from the prompt
    assert 0 < metric(server, "toptheta_kept_total") < metric(server, "toptheta_elements_total")
    assert metric(server, "toptheta_prompt_tokens_total") > 0
    assert 0.3 < metric(server, "toptheta_sparse_kept_total") / metric(server, "toptheta_sparse_aims_total") < 3
    assert "# HELP toptheta_kept_total Scores of these rows above their thresholds." in server.get("/metrics")


# the last one: it ends the server
def test_a_killed_worker_fails_its_requests_and_the_server(server: Server) -> None:
    (ids,) = prompts(1500, seed=7)
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(server.complete, ids, 500)
        os.kill(server.worker(), signal.SIGKILL)
        with pytest.raises((urllib.error.URLError, OSError, ValueError)):
            asked.result(timeout=120)
    server.process.wait(60)
    assert "EngineDeadError" in server.log.read_text()


@pytest.mark.parametrize(("page", "rule"), [("README.md", "tau"), ("docs/serving.md", "table")])
def test_a_server_after_that_starts_anew_by_an_option_of_a_page(tmp_path: Path, page: str, rule: str) -> None:
    starts = [each.text for each in commands(ROOT / page) if each.text.startswith("vllm serve")]
    (command,) = (text for text in starts if f'"{rule}"' in text)
    _, _, _, option, value = shlex.split(command)
    value = value.replace("model.theta", str(TABLE))
    aim = {name: given for name, given in json.loads(value)["top_theta"].items() if name != "table"}
    (ids,) = prompts(1500, seed=8)  # long enough not to be decoded densely
    with serve(tmp_path, option, value, environment=with_counts(tmp_path)) as again:
        assert not wrong_tokens(again.complete(ids, 8), generated(ids, 8, **aim))
        assert metric(again, "toptheta_decode_tokens_total") >= 7
        assert 0 < metric(again, "toptheta_kept_total") < metric(again, "toptheta_elements_total")
