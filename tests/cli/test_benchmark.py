"""``toptheta benchmark`` as a user types it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.command import toptheta
from toptheta_npu.cli.benchmark.command import Options, choose_shapes
from toptheta_npu.timing.measure import ShapeResult

ROOT = Path(__file__).parents[2]
COMMAND = ("-m", "toptheta_npu", "benchmark")
TINY = ["--device", "cpu", "--rounds", "2"]


def run(*arguments: str, program: tuple[str, ...] = COMMAND, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *program, *arguments], capture_output=True, text=True, cwd=folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("benchmark")
    shapes = [f"heads=4/2,n={n},k={k},dtype=float32" for n, k in ((256, 16), (512, 32), (512, 64), (512, 512))]
    options = [word for shape in shapes for word in ("--shape", shape)]
    done = run(*TINY, *options, "--json", str(folder / "results.json"))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_writes_what_it_says(results: tuple[Path, str]) -> None:
    _, text = results
    assert "Speed of a decode step" in text
    assert text.count("p10 to p90") == 2 * 4


def test_json_has_times_and_ratios(results: tuple[Path, str]) -> None:
    stored = json.loads((results[0] / "results.json").read_text())
    assert stored["unit"] == "seconds"
    assert stored["settings"] == {"rounds": 2, "cache": "both"}
    assert {"name", "torch", "threads", "cache_bytes", "operators"} <= set(stored["environment"])
    for result in stored["results"]:
        rows = {row["name"]: row for row in result["rows"]}
        for cache in ("cold", "hot"):
            gains, dense = result["gains"][cache], rows[result["gains"][cache]["best_dense"]]
            assert dense["role"] in ("dense", "own dense")
            times = {name: row["calls"][cache]["median"] for name, row in rows.items() if row["calls"]}
            assert gains["sparse"] == pytest.approx(times[dense["name"]] / times["native top-θ"])
            assert gains["of_floor"]["native top-θ"] > 0
            assert gains["of_floor"]["stream"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--device: expected one of cpu, cuda, npu, host-model, got nothing"),
        (["--device", "tpu"], "--device: expected one of cpu, cuda, npu, host-model, got 'tpu'"),
        ([*TINY, "--shape", "heads=8/2,n=64,k=65"], "error: k in --shape: expected at most n = 64, got 65"),
        (
            [*TINY, "--shape", "heads=8;n=64"],
            "got 'heads=8;n=64'; such as batch=1,heads=32/8,n=8192,k=512,head_dim=128,dtype=bfloat16,block_size=128",
        ),
        ([*TINY, "--k", "4096"], "k: expected at most n = 2048, got 4096"),
        ([*TINY, "--shape", "heads=64,n=1048576,batch=4096"], "shape: expected at most the"),
        ([*TINY, "--cache", "warm"], "--cache: expected one of both, cold, hot"),
        ([*TINY, "--json", "/"], "--json: expected the name of a file, got a folder at /"),
        (
            [*TINY, "--query-tokens", "17"],
            "--query-tokens: expected a number from 1 to 16, got 17; split longer drafts",
        ),
        ([*TINY, "--json", "/no/such/folder/file.json"], "--json: expected a file in an existing folder"),
        (["--device", "npu", "--shape", "heads=8,n=64"], "--device: expected torch_npu"),
        (["--device", "cuda", "--shape", "heads=8,n=64"], "--device: expected a CUDA device that torch can use"),
    ],
)
def test_wrong_use(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    if "npu" in arguments and hasattr(torch, "npu"):
        pytest.skip("there is an NPU")
    assert toptheta("benchmark", *arguments) == 2
    assert message in re.sub(r"\s+", " ", capsys.readouterr().err)


def no_measurement(*_: object, **__: object) -> ShapeResult:
    raise AssertionError("measured before the outputs were tried")


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        (["benchmark", "--device", "cpu"], "--json", "folder"),
        (["benchmark", "--device", "cpu"], "--json", "missing/file.json"),
        (["benchmark-generate", "--device", "cpu"], "--json", "folder"),
        (["benchmark-generate", "--device", "cpu"], "--json", "missing/file.json"),
        (["demo"], "--output", "file"),
        (["demo"], "--output", "taken"),
    ],
)
def test_outputs_are_tried_before_the_work(
    command: list[str], option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "results.jsonl").mkdir(parents=True)
    for module, work in (("timing.measure", "compare"), ("assets", "load_tiny_llama")):
        monkeypatch.setattr(import_module(f"toptheta_npu.{module}"), work, no_measurement)
    assert toptheta(*command, option, value) == 2
    assert re.search(f"error: {option}: expected (a f|the name of a f)", capsys.readouterr().err)


_NUMBERS = st.one_of(
    st.integers(-3, 3), st.integers(), st.integers(1, 10**6), st.sampled_from([2**31, 2**63, 10**400, 64, 256])
)
_WORDS = st.one_of(
    _NUMBERS.map(str), st.sampled_from(["nan", "inf", "-inf", "1e9", "", " ", "0x10", "8/2", "8/0", "--", "float32"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
)  # fmt: skip
_TEXTS = st.one_of(
    st.builds("heads={},n={},k={},batch={},head_dim={},block_size={}".format, *[_WORDS] * 6),
    st.builds("heads={}/{},n={},k={},batch={},head_dim=64".format, *[st.integers(1, 300)] * 5),
    _WORDS,
)
_OPTIONS = dict.fromkeys(
    ("--device", "--k", "--query-tokens", "--cache", "--rounds"), _WORDS
)  # fmt: skip


@settings(max_examples=100)
@given(
    options=st.dictionaries(st.sampled_from(sorted(_OPTIONS)), _WORDS, max_size=2),
    shapes=st.lists(_TEXTS, max_size=2),
)
def test_any_value_is_measured_or_refused_in_words(options: dict[str, str], shapes: list[str]) -> None:
    arguments = [f"{name}={value}" for name, value in ({"--device": "cpu"} | options).items()]
    arguments += [f"--shape={text}" for text in shapes]
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()), redirect_stderr(err):
        patch.setattr("toptheta_npu.timing.measure.compare_one", lambda shape, *_, **__: ShapeResult(shape))
        status = toptheta("benchmark", *arguments)
    assert status in (0, 2), arguments
    assert (status == 0) == (not err.getvalue()), (arguments, err.getvalue())


def test_several_query_tokens_of_every_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    shapes = ("--shape", "heads=4/2,n=128,dtype=float32", "--shape", "heads=4/2,n=96,dtype=float32,query_tokens=2")
    assert toptheta("benchmark", *TINY, *shapes, "--query-tokens", "3", "--cache", "hot", "--json", str(file)) == 0
    shown = capsys.readouterr().out
    for n, k in ((128, 8), (96, 6)):
        assert f"4/2 n={n} k={k} f32, 3 tokens" in shown
    assert shown.count("kept per head and token") == 2
    results = json.loads(file.read_text())["results"]
    assert all(result["shape"].endswith(",query_tokens=3") for result in results)
    assert not [row["missing"] for result in results for row in result["rows"] if row["missing"]]


def test_query_tokens_and_k_of_the_table() -> None:
    wanted = choose_shapes("npu", Options())
    assert choose_shapes("npu", Options(query_tokens=4)) == [replace(shape, query_tokens=4) for shape in wanted]
    assert {shape.k for shape in choose_shapes("npu", Options(k=32))} == {32}


def test_the_command_line_starts_without_the_benchmark() -> None:
    code = "import sys, toptheta_npu.cli; print([m for m in sys.modules if m.startswith('toptheta_npu.timing')])"
    assert run(program=("-c", code)).stdout.strip() == "[]"


def test_tables_fit_into_100_columns(results: tuple[Path, str]) -> None:
    lines = results[1].splitlines()
    tables = [line for line in lines if line.startswith(" ") or "p10" in line]
    assert tables
    assert max(map(len, tables)) <= 100
    # every part of the summary says of which shape and cache its rows are
    heads = [line for line in lines if line.split()[:2] == ["shape", "cache"]]
    assert len(heads) > 1
