"""Documents from files and folders: what is read, what is refused, and how it is said."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toptheta_npu.errors import TopThetaError, TopThetaTypeError, TopThetaValueError
from toptheta_npu.texts import PlainText, Source, find_sources, sources


def zipped() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a.txt", "text")
    return content.getvalue()


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


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), max_size=300))
def test_pieces_join_to_the_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever lies across the ends of pieces, and with a byte order mark or without."""
    file = tmp_path_factory.getbasetemp() / "a.txt"
    for encoding in ("utf-8", "utf-8-sig"):
        file.write_bytes(text.encode(encoding))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "PIECE", 16)
            pieces = list(PlainText(file, "a").pieces())
        assert "".join(piece.text for piece in pieces) == text
        assert all(len(piece.text.encode()) <= 16 for piece in pieces)
        assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_pieces_end_after_lines_or_before_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE", 10)
    (tmp_path / "a.txt").write_text("one two\nthree four five sixseveneight")
    pieces = [piece.text for piece in PlainText(tmp_path / "a.txt", "a").pieces()]
    assert pieces == ["one two\n", "three", " four", " five", " sixsevene", "ight"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nab\xff c", "expected text in UTF-8, got byte 0xff at offset 4; leave it out, or convert it from "),
        (b"x\n" * 100_000 + b"\xe4", "byte 0xe4 at offset 200000"),
        (b"abc\0def", "got a binary file, with null bytes; leave it out"),
        (b"x\n" * 100_000 + b"\0", "got a binary file, with null bytes; leave it out"),
        ("zwölf".encode("utf-16"), "got a UTF-16 file; convert it: iconv -f utf-16 -t utf-8"),
        ("\ufeffzwölf".encode("utf-16-be"), "got a UTF-16 file; convert it: iconv -f utf-16 -t utf-8"),
        ("zwölf".encode("utf-16-le"), "got a UTF-16 file; convert it: iconv -f utf-16le -t utf-8"),
        ("zwölf".encode("utf-16-be"), "got a UTF-16 file; convert it: iconv -f utf-16be -t utf-8"),
        ("漢字".encode("utf-16"), "got a UTF-16 file; convert it: iconv -f utf-16 -t utf-8"),
        ("zwölf".encode("utf-32"), "got a UTF-32 file; convert it: iconv -f utf-32 -t utf-8"),
        (gzip.compress(b"text"), "got a gzip file; unpack it: gunzip -k"),
        (bz2.compress(b"text"), "got a bzip2 file; unpack it: bunzip2 -k"),
        (lzma.compress(b"text"), "got an xz file; unpack it: unxz -k"),
        (zipped(), "got a zip file; unpack it: unzip"),
        (b"%PDF-1.7\n", "got a PDF file; extract its text: pdftotext"),
        (b"PAR1\x15\x04", "got a Parquet file; convert it to JSON lines"),
    ],
)
def test_bytes_that_are_no_text_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(TopThetaValueError) as caught:
        read(tmp_path / "a.txt")
    assert str(caught.value).startswith(f"{tmp_path / 'a.txt'}: expected ")
    assert message in str(caught.value)


def test_json_lines_have_a_document_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"id": 1, "body": "one\ntwo"}), "", json.dumps({"body": "drei\u2028vier"}, ensure_ascii=False)]
    (tmp_path / "a.jsonl").write_text("\r\n".join(lines), encoding="utf-8")
    for piece in (20, sources.PIECE):  # the first is shorter than a line
        monkeypatch.setattr(sources, "PIECE", piece)
        assert read(tmp_path / "a.jsonl", field="body") == ["one\ntwo", "drei\u2028vier"]


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ('{"txt": "b"}', TopThetaValueError, "expected a JSON object with a field 'text', got ['txt']; name the field"),
        ('{"text": 3}', TopThetaTypeError, "expected text in field 'text', got 3; name another field with --field"),
        ("{oops", TopThetaValueError, "expected a JSON object, got '{oops'"),
        ("[1]", TopThetaValueError, "expected a JSON object with a field 'text', got [1]"),
        ("[" * 10**5, TopThetaValueError, "expected a JSON object"),
        (
            r'{"text": "a\ud800b"}',
            TopThetaValueError,
            r"expected whole characters of Unicode, got half a surrogate pair, \ud800; correct the line",
        ),
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


def test_a_folder_gives_its_text_files_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for name, content in {
        "b.txt": b"b", "a/c.py": b"c", "a/d.jsonl": b'{"text": "d"}\n{"text": "e"}\n', "picture.png": b"\x89PNG\0",
        "empty.txt": b"", "a.JSON": b"{}", ".hidden": b"hidden", ".git/config": b"hidden",
        "f.gz": gzip.compress(b"f"), "g.txt": "g".encode("utf-16"), "h.txt": "漢字".encode("utf-16"),
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "loop").symlink_to(folder)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    found = find_sources([folder])
    assert [source.name for source in found.sources] == ["texts/a/c.py", "texts/a/d.jsonl", "texts/b.txt"]
    assert [text for source in found.sources for text in documents(source)] == ["c", "d", "e", "b"]
    assert {path.name: what.name for path, what in found.left_out} == {
        "a.JSON": ".json file", "dangling": "broken link", "empty.txt": "empty file", "f.gz": "gzip file",
        "g.txt": "UTF-16 file", "h.txt": "UTF-16 file", "loop": "linked folder", "picture.png": "binary file",
    }  # fmt: skip
    (note,) = found.notes()
    assert note == (
        f"Left out: 1 .json file, such as {folder}/a.JSON (name it .jsonl if it has an object a line); "
        f"1 broken link, such as {folder}/dangling; 1 empty file, such as {folder}/empty.txt; "
        f"1 gzip file, such as {folder}/f.gz (unpack it: gunzip -k); "
        f"2 UTF-16 files, such as {folder}/g.txt (convert it: iconv -f utf-16 -t utf-8); "
        f"1 linked folder, such as {folder}/loop (name it too); 1 binary file, such as {folder}/picture.png."
    )
    assert find_sources([folder / "b.txt"]).notes() == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere: expected a file or folder with text, got no such file; correct the path"),
        ("empty.txt", "empty.txt: expected a file with text, got an empty one; leave it out"),
        ("a.json", "a.json: expected text or JSON lines, got a .json file; name it .jsonl if it has an object a line"),
        ("binary", "got one without any (left out: 1 binary file, such as {folder}/binary/a.bin); name another folder"),
        ("pipe", "pipe: expected a file or folder with text, got a pipe or device; write its output to a file, and"),
    ],
)
def test_paths_that_lead_to_no_text_are_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "a.bin").write_bytes(b"\0")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TopThetaValueError) as caught:
        find_sources([tmp_path / name])
    assert message.format(folder=tmp_path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (source,) = find_sources([tmp_path / "a.txt"]).sources
    (tmp_path / "a.txt").unlink()
    with pytest.raises(TopThetaValueError, match=r"a\.txt: expected a text file, got one that cannot be read"):
        documents(source)
