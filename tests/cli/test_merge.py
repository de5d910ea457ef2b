"""``toptheta merge`` as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.calibration.parts import content_of, finish, make, observed, shards
from toptheta_npu import cli
from toptheta_npu.calibration.shard import Shard, WholeSet
from toptheta_npu.thresholds import ThresholdTable

ROOT = Path(__file__).parents[2]
#: What each of three shards knows of all sequences.
SET = WholeSet("cd" * 32, 3)


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[str, str, int]:
    """What the command prints on stdout and stderr, and its exit status."""
    monkeypatch.setattr(sys, "argv", ["toptheta", "merge", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return captured.out, captured.err, int(ended.value.code or 0)


def test_shards_become_a_table(tmp_path, capsys, monkeypatch):
    paths, output = shards(tmp_path, 3), tmp_path / "model.theta"
    out, err, status = run(capsys, monkeypatch, *paths[::-1], "-o", output)
    assert (err, status) == ("", 0)
    lines = [line.split() for line in out.splitlines()][1:]
    assert lines[0] == ["shard", "sequences", "tokens", "file"]
    assert lines[2:5] == [[str(index), "of", "3", "1", "5", str(paths[index])] for index in range(3)]
    assert (
        f"{output} written, from 3 sequences of 15 tokens: pre_softmax, pooled, k = 3, 5, 2 layers x 2 heads, " in out
    )
    table, expected = ThresholdTable.load(output), finish(observed(range(6)))
    assert table.theta.equal(expected.theta)
    assert table.fingerprint == "model"


def test_the_name_of_a_shard_is_shown_as_it_is(tmp_path, capsys, monkeypatch):
    first, second = (path.rename(tmp_path / f"[red]{path.name}") for path in shards(tmp_path, 2))
    out, _, status = run(capsys, monkeypatch, first, second, "-o", tmp_path / "out")
    assert (status, out.count("[red]shard-")) == (0, 2)


def test_it_needs_neither_transformers_nor_a_model(tmp_path):
    shards(tmp_path, 2)
    program = (
        "import sys; sys.modules['transformers'] = None; sys.argv[1:] = ['merge', 'shard-0', 'shard-1', '-o', 'o'];"
        "import toptheta_npu.cli; toptheta_npu.cli.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert ThresholdTable.load(tmp_path / "o").provenance["sequences"] == "2"


def hostile(tmp_path: Path) -> dict[str, tuple[list[object], str]]:
    """Arguments, and what the one sentence says."""
    first, second, third = shards(tmp_path, 3)
    out = ["-o", tmp_path / "out"]
    make(observed(range(2)), shard=Shard(2, 3), seen=[], whole=SET).save(tmp_path / "unfinished")
    make(observed(range(2), seed=4), shard=Shard(2, 3), seen=make().seen[:1], whole=SET).save(tmp_path / "foreign")
    (tmp_path / "damaged").write_bytes(first.read_bytes()[:-9])
    (tmp_path / "[red]text[red]").write_text("no shard")
    finish(observed(range(2))).save(tmp_path / "table")
    os.mkfifo(tmp_path / "pipe")
    return {
        "missing": ([first, second, *out], "shards: expected every shard from 0 to 2, got all but 2"),
        "double": ([first, second, third, second, *out], "shard-1: expected another shard of the 3, got shard 1 again"),
        "unfinished": ([first, second, tmp_path / "unfinished", *out], "unfinished: expected a finished shard"),
        "foreign": ([first, second, tmp_path / "foreign", *out], "one with seed=4 (there 0)"),
        "damaged": ([tmp_path / "damaged", *out], "damaged: expected a safetensors file"),
        "text": ([tmp_path / "[red]text[red]", *out], "[red]text[red]: expected a safetensors file"),
        "table": (
            [tmp_path / "table", *out],
            "table: expected the state of a calibration, got a threshold table; it is merged already: see "
            "what it holds with toptheta inspect",
        ),
        "none": ([tmp_path / "none", *out], "none: expected the state of a calibration, got no such file"),
        "folder": ([tmp_path, *out], "got a folder; give the path of a file"),
        "pipe": ([tmp_path / "pipe", *out], "got a device or pipe"),
        "no place": ([first, second, third, "-o", tmp_path / "no" / "out"], "--output: expected a file in an existing"),
        "onto a shard": ([first, second, third, "-o", second], "--output: expected a file of its own, got the shard"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "missing", "double", "unfinished", "foreign", "damaged", "text", "table", "none", "folder", "pipe", "no place",
        "onto a shard",
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_one_sentence(tmp_path, capsys, monkeypatch, name):
    arguments, sentence = hostile(tmp_path)[name]
    before = {path: path.read_bytes() for path in tmp_path.glob("shard-*")}
    out, err, status = run(capsys, monkeypatch, *arguments)
    assert (out, status) == ("", 2)
    assert err.startswith("error: ")
    assert sentence in err.replace("\n", "")
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
    assert {path: path.read_bytes() for path in tmp_path.glob("shard-*")} == before


def test_the_table_of_a_single_shard(tmp_path, capsys, monkeypatch):
    """Such as the state of a calibration whose table could not be saved."""
    make(observed(range(4)), shard=Shard(), whole=WholeSet("cd" * 32, 2)).save(tmp_path / "state")
    _, _, status = run(capsys, monkeypatch, tmp_path / "state", "-o", tmp_path / "out")
    assert status == 0
    expected = finish(observed(range(4)))
    assert ThresholdTable.load(tmp_path / "out").theta.equal(expected.theta)
    assert content_of(expected, tmp_path / "expected") != (tmp_path / "out").read_bytes()  # which says where it is from


def test_a_table_that_is_there_is_replaced_on_request_only(tmp_path, capsys, monkeypatch):
    paths, output = shards(tmp_path, 2), tmp_path / "model.theta"
    output.write_text("mine")
    _, err, status = run(capsys, monkeypatch, *paths, "-o", output)
    assert status == 2
    assert "which is there already; add --force to replace it" in err
    assert output.read_text() == "mine"
    assert run(capsys, monkeypatch, *paths, "-o", output, "--force")[2] == 0
    assert ThresholdTable.load(output).num_layers
