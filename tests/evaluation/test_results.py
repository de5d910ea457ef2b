"""The file of an evaluation: what is finished stays, whatever ends the run."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.measurement import Measurement
from toptheta_npu.evaluation.reads import LayerReads, Reads
from toptheta_npu.evaluation.results import Header, Point, ResultsFile, read_results

READS = Reads(8.0, 20.0, 30.0, 40.0, 100.0, 0.01, 100.0)
LAYER = LayerReads(READS, (1.0, None))
DIGESTS = {"weights": "12", "configuration": "34", "adapters": "none", "tokenizer": "56"}
HEADER = Header("tiny", "fingerprint", {"perplexity": {"windows": 2}}, {"pre": "ab"}, {"torch": "2"}, DIGESTS)
_OTHER = "--output: expected results of this model, got .*jsonl, of another model"
DENSE = Point("perplexity", "dense", "dense")
SPARSE = Point("perplexity", "top-theta", "Top-θ", "pre", 64)
OTHER = Point("needle", "last-k", "last-k", None, 64)


def measurement(score: float) -> Measurement:
    return Measurement(
        "nats per token", False, (score, 2.5), READS, READS, (LAYER,), {"depth": [0.0, 0.5]},
    )  # fmt: skip


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    with ResultsFile(path, HEADER) as results:
        results.add(DENSE, measurement(1.0))
        results.add(OTHER, replace(measurement(0.1), layers=()))
    found = read_results(path)
    assert found.header == HEADER
    assert dict(found.measurements) == {
        DENSE: measurement(1.0),
        OTHER: replace(measurement(0.1), layers=()),
    }
    assert found.tasks == ["perplexity", "needle"]


def test_sorted_files_do_not_depend_on_the_order_of_finishing(tmp_path: Path) -> None:
    contents = []
    for order in ((SPARSE, DENSE, OTHER), (OTHER, DENSE, SPARSE)):
        path = tmp_path / "evaluation.jsonl"
        with ResultsFile(path, HEADER, restart=True) as results:
            for point in order:
                results.add(point, measurement(len(point.method)))
            results.sort([DENSE, SPARSE, OTHER])
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert list(read_results(path).measurements) == [DENSE, SPARSE, OTHER]


def test_more_tasks_and_tables_may_join_a_file(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    with ResultsFile(path, HEADER) as results:
        results.add(DENSE, measurement(1.0))
    more = replace(HEADER, settings={"needle": {"prompts": 4}}, tables={"post": "cd"})
    with ResultsFile(path, more) as results:
        assert list(results.measurements) == [DENSE]
        results.add(OTHER, measurement(2.0))
    found = read_results(path)
    assert found.header.settings == {"perplexity": {"windows": 2}, "needle": {"prompts": 4}}
    assert found.header.tables == {"pre": "ab", "post": "cd"}
    assert list(found.measurements) == [DENSE, OTHER]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "other"}, rf"{_OTHER} \(by its fingerprint\); take that model, name another file with -o"),
        ({"digests": {**DIGESTS, "weights": "0"}}, rf"{_OTHER} \(by its weights\); take that model, name another"),
        ({"digests": {**DIGESTS, "adapters": "a 1"}}, rf"{_OTHER} \(by its adapters\)"),
        (
            {"digests": {**DIGESTS, "tokenizer": "0", "configuration": "1"}},
            rf"{_OTHER} \(by its configuration and tokenizer\)",
        ),
        (
            {"settings": {"perplexity": {"windows": 3}}},
            r"results with settings\.perplexity\.windows = 3, got .* with 2",
        ),
        ({"tables": {"pre": "cd"}}, r"results with tables\.pre = 'cd', got .* with 'ab'"),
        ({"environment": {"torch": "3"}}, r"results with environment\.torch = '3'"),
    ],
)
def test_points_of_other_settings_never_come_into_a_file(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "evaluation.jsonl"
    with ResultsFile(path, HEADER) as results:
        results.add(DENSE, measurement(1.0))
    content = path.read_bytes()
    with pytest.raises(TopThetaValueError, match=message), ResultsFile(path, replace(HEADER, **change)):
        pass
    assert path.read_bytes() == content
    with ResultsFile(path, replace(HEADER, **change), restart=True) as results:
        assert not results.measurements


def test_a_file_without_a_point_takes_any_settings(tmp_path: Path) -> None:
    path, other = tmp_path / "evaluation.jsonl", replace(HEADER, settings={"perplexity": {"windows": 3}})
    with ResultsFile(path, HEADER):
        pass
    with ResultsFile(path, other) as results:
        results.add(DENSE, measurement(1.0))
    assert read_results(path).header == other


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected results of toptheta evaluate, got an empty file"),
        (b"{}\n", "got another file"),
        (b"text\n", "got another file"),
        (b"[1]\n", "got another file"),
        (b'{"schema": 9}\n', "of schema 2, got schema 9"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "evaluation.jsonl"
    path.write_bytes(content)
    with pytest.raises(TopThetaValueError, match=message):
        read_results(path)


def test_a_file_that_does_not_say_of_which_weights_it_is_can_be_read_but_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    with ResultsFile(path, HEADER) as results:
        results.add(DENSE, measurement(1.0))
    header, *lines = path.read_text().splitlines(keepends=True)
    entry = {**json.loads(header), "schema": 1}
    del entry["digests"]
    path.write_text("".join([json.dumps(entry) + "\n", *lines]))
    content = path.read_bytes()
    assert list(read_results(path).measurements) == [DENSE]
    message = "which does not say of which weights: an earlier version wrote it; take that model, name another file"
    with pytest.raises(TopThetaValueError, match=message), ResultsFile(path, HEADER):
        pass
    assert path.read_bytes() == content


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    with ResultsFile(path, HEADER) as results:
        results.add(DENSE, measurement(1.0))
        results.add(SPARSE, measurement(2.0))
    lines = path.read_bytes().splitlines(keepends=True)
    for broken in (b"?\n", json.dumps({"point": {}}).encode() + b"\n", lines[1].replace(b'"scores"', b'"other"')):
        path.write_bytes(lines[0] + broken + lines[2])
        with pytest.raises(TopThetaValueError, match=r"evaluation\.jsonl:2: expected a point of an evaluation"):
            read_results(path)


def test_two_writers_of_one_file_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    with ResultsFile(path, HEADER), pytest.raises(TopThetaValueError, match="one that another works on"):
        ResultsFile(path, HEADER).__enter__()


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "evaluation.jsonl"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with ResultsFile(path, HEADER) as results:
        results.add(DENSE, measurement(1.0))
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(TopThetaValueError, match="No space left on device"):
                results.add(SPARSE, measurement(2.0))
        assert SPARSE not in results.measurements
    assert list(read_results(path).measurements) == [DENSE]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopThetaValueError, match="--output: expected a file in an existing folder"):
        ResultsFile(tmp_path / "no" / "evaluation.jsonl", HEADER).__enter__()
