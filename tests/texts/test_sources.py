"""Documents from files, folders and data sets: what is read, what is refused, and how it is said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.texts import Source, StoredText, decoding, find_sources, read_before, sources


def documents(source: Source) -> list[str]:
    found, held = [], ""
    for piece in source.pieces():
        held += piece.text
        if piece.ends:
            found.append(held)
            held = ""
    assert not held
    return found


def read(path: Path, **options: str) -> list[str]:
    return [text for source in find_sources([path], **options).sources for text in documents(source)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_text_is_read_with_a_byte_order_mark_and_without(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "abc\n漢字かな\r\n" * 50
    monkeypatch.setattr(decoding, "CHUNK", 7)  # characters lie across the ends of chunks
    monkeypatch.setattr(decoding.read_at, "__defaults__", (7,))
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert read(tmp_path / "a.txt") == [text]


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300))
def test_pieces_join_to_the_text(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE", 16)
        pieces = list(StoredText("a", text).pieces())
    assert all(0 < len(piece.text) <= 16 for piece in pieces)
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True] * bool(pieces)
    joined = "".join(piece.text for piece in pieces)
    assert joined == text or (text.endswith(joined) and text.removesuffix(joined).isspace())


def test_pieces_end_after_lines_or_before_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE", 10)
    pieces = [piece.text for piece in StoredText("a", "one two\nthree four five sixseveneight").pieces()]
    assert pieces == ["one two\n", "three", " four", " five", " sixsevene", "ight"]


def test_a_large_file_is_read_no_further_than_needed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a line of text\n" * 2**16)
    (source,) = find_sources([tmp_path / "a.txt"]).sources
    next(iter(source.pieces()))
    content = (tmp_path / "a.txt").read_bytes()
    have = int(source.used().split()[1])
    assert have < len(content) / 3
    assert source.used() == f"first {have} bytes, sha256 {hashlib.sha256(content[:have]).hexdigest()}"


def test_a_single_line_of_megabytes_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 3_000_000)
    assert [len(text) for text in read(tmp_path / "a.txt")] == [3_000_000]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nab\xff c", "expected text in UTF-8, got byte 0xff at offset 4; leave it out, or convert it: iconv -f l"),
        (b"x" * 100_000 + b"\xe4", "byte 0xe4 at offset 100000"),
        (b"x" * (2**16 - 1) + "é".encode()[:1], "byte 0xc3 at offset 65535"),
        ("text".encode("utf-16"), "byte 0xff at offset 0"),
        (b"abc\0def", "got a binary one, with a null byte at offset 3; leave it out"),
    ],
)
def test_bytes_that_are_no_text_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(TopThetaValueError) as caught:
        read(tmp_path / "a.txt")
    assert str(caught.value).startswith(f"{tmp_path / 'a.txt'}: expected ")
    assert message in str(caught.value)


def test_json_lines_have_a_document_a_line(tmp_path: Path) -> None:
    lines = [json.dumps({"id": 1, "body": "one\ntwo"}), "", json.dumps({"body": "drei\u2028vier"}, ensure_ascii=False)]
    (tmp_path / "a.jsonl").write_text("\r\n".join(lines) + "\n", encoding="utf-8")
    assert read(tmp_path / "a.jsonl", field="body") == ["one\ntwo", "drei\u2028vier"]


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (
            '{"txt": "b", "id": 1}',
            TopThetaValueError,
            "expected a field 'text', got the fields txt, id; name the field",
        ),
        ("{}", TopThetaValueError, "got the fields none"),
        ('{"text": 3}', TopThetaTypeError, "expected text in field 'text', got 3; name another field with --field"),
        ('{"text": null}', TopThetaTypeError, "got None"),
        ("{oops", TopThetaValueError, "expected a JSON object, got '{oops' (Expecting property name"),
        ("[1]", TopThetaValueError, "expected a JSON object, got [1]"),
        ("[" * 10**5, TopThetaValueError, "expected a JSON object"),
        ('{"text": "\\ud800"}', TopThetaValueError, "half a surrogate pair at character 0"),
    ],
)
def test_bad_lines_are_named_by_file_and_line(
    line: str, error: type[TopThetaError], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n' + line + "\n")
    with pytest.raises(error) as caught:
        read(tmp_path / "a.jsonl")
    assert str(caught.value).startswith(f"{tmp_path / 'a.jsonl'}:3: expected ")
    assert message in str(caught.value)


def test_a_json_file_is_refused_and_in_a_folder_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.JSON").write_text('{"text": "a"}')
    with pytest.raises(TopThetaValueError) as caught:
        find_sources([tmp_path / "a.JSON"])
    assert str(caught.value) == (
        f"{tmp_path / 'a.JSON'}: expected text or JSON lines, got a .json file; name it .jsonl if it has an object a "
        "line, or .txt to read it as it is"
    )
    (tmp_path / "b.jsonl").write_text('{"text": "b"}')
    found = find_sources([tmp_path])
    assert [source.name for source in found.sources] == [f"{tmp_path.name}/b.jsonl"]
    assert [path.name for path in found.left_out] == ["a.JSON"]


def test_a_line_too_long_for_json_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_LINE", 1000)
    (tmp_path / "a.jsonl").write_text("x" * 2000)
    with pytest.raises(
        TopThetaValueError, match=r"expected lines of at most 1000 characters, .* write one object a line"
    ):
        read(tmp_path / "a.jsonl")


def test_a_folder_gives_its_text_files_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for name, content in {
        "b.txt": b"b", "a/c.py": b"c", "a/d.jsonl": b'{"text": "d"}\n{"text": "e"}\n', "picture.png": b"\x89PNG\0",
        "empty.txt": b"", ".hidden": b"hidden", ".git/config": b"hidden",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    found = find_sources([folder])
    assert [source.name for source in found.sources] == ["texts/a/c.py", "texts/a/d.jsonl", "texts/b.txt"]
    assert [text for source in found.sources for text in documents(source)] == ["c", "d", "e", "b"]
    assert [path.name for path in found.left_out] == ["empty.txt", "picture.png"]


def test_links_to_files_are_read_and_those_to_folders_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "file").symlink_to(tmp_path / "a.txt")
    (folder / "loop").symlink_to(folder)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    assert read(folder) == ["a"]


def make_paths(folder: Path) -> None:
    (folder / "a.txt").write_text("a")
    (folder / "empty.txt").write_text("")
    (folder / "nothing").mkdir()
    (folder / "binary").mkdir()
    (folder / "binary" / "a.bin").write_bytes(b"\0")
    (folder / "self").symlink_to(folder / "self")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nowhere"], "nowhere: expected a file or folder with text, got no such file; correct the path"),
        (["empty.txt"], "empty.txt: expected a file with text, got an empty one; leave it out"),
        (["nothing"], "nothing: expected a folder with text files, got one without any; name another folder"),
        (
            ["binary"],
            "binary: expected a folder with text files, got one without any, only binary, empty or JSON ones; ",
        ),
        (["self"], "self: expected a file or folder with text, got one that cannot be read (Too many levels of"),
    ],
)
def test_paths_that_lead_to_no_text_are_refused(names: list[str], message: str, tmp_path: Path) -> None:
    make_paths(tmp_path)
    with pytest.raises(TopThetaValueError) as caught:
        find_sources([tmp_path / name for name in names])
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    (source,) = find_sources([tmp_path / "a.txt"]).sources
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(TopThetaValueError, match=r"a\.txt: expected a text file, got one that cannot be read \(Is a d"):
        documents(source)


def test_a_file_of_which_a_part_was_read_before_is_known_by_its_beginning(tmp_path: Path) -> None:
    for name, text in {"long.txt": "abc def\n" * 50_000, "short.txt": "abc def\n", "other.jsonl": "{}\n"}.items():
        (tmp_path / name).write_text(text)
    then = find_sources([tmp_path / "long.txt"]).sources[0]
    next(then.pieces())
    assert int(then.used().split()[1]) < 300_000  # a part
    (tmp_path / "copy.txt").write_bytes((tmp_path / "long.txt").read_bytes() + b"and more")
    records = ["PreTrainedTokenizerFast", then.used(), StoredText("none", "").used()]
    found = read_before(find_sources([tmp_path]).sources, records)
    assert [Path(name).name for name in found] == ["copy.txt", "long.txt"]
    assert read_before(find_sources([tmp_path]).sources, records[::2]) == []


def test_a_data_set_on_disk_gives_its_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["one", "", "two"], "id": [1, 2, 3]})
    rows.save_to_disk(tmp_path / "rows")
    (source,) = find_sources([tmp_path / "rows"]).sources
    assert documents(source) == ["one", "two"]
    assert (source.name, source.used()[:12]) == ("rows", "first 3 rows")
    with pytest.raises(
        TopThetaValueError, match=r"expected a column 'body', got the columns text, id; name the column"
    ):
        find_sources([tmp_path / "rows"], field="body")
    with pytest.raises(TopThetaTypeError, match=r"rows, row 0: expected text in field 'id', got 1"):
        read(tmp_path / "rows", field="id")
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "splits")
    with pytest.raises(
        TopThetaValueError, match=r"expected one split, got the splits test, train; name one of its fold"
    ):
        find_sources([tmp_path / "splits"])
    assert read(tmp_path / "splits" / "train") == ["one", "two"]
    (tmp_path / "rows" / "state.json").write_text("{")
    with pytest.raises(TopThetaValueError, match=r"rows: expected a data set that save_to_disk wrote"):
        find_sources([tmp_path / "rows"])
