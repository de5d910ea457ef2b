"""The texts of the study, from packages: English prose, a lexicon of jargon, and Python's library.

A text is a list of documents. They are shuffled once and dealt to splits, so that no document is in two of them, and
one window is cut from each.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from benchmarks.real_model_study.settings import FIRST_CHARACTER, SEED, Scale
from toptheta_npu.errors import TopThetaValueError
from toptheta_npu.evaluation.corpus import read_split

#: The packages of Debian that are read, and where their texts are below the root.
PACKAGES = ("anarchism", "jargon-text")
PROSE, JARGON = "usr/share/doc/anarchism/html", "usr/share/doc/jargon-text/jargon.txt.gz"
#: Characters of text that make more than one token each, so that a window never runs short of them.
CHARACTERS_PER_TOKEN = 8


class Document(NamedTuple):
    """A name and a text."""

    name: str
    text: str


def fetch(folder: Path) -> Path:
    """Download and unpack the packages into ``folder``, unless they are there; give the root of their files.

    Raises:
        TopThetaValueError: they cannot be had here.
    """
    root = folder / "root"
    if all((root / path).exists() for path in (PROSE, JARGON)):
        return root
    root.mkdir(parents=True, exist_ok=True)
    try:
        _run(["apt-get", "download", *PACKAGES], folder)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package.resolve()), str(root.resolve())], folder)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise _missing(f"none that could be fetched here ({said})") from error
    return root


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


def _missing(got: str) -> TopThetaValueError:
    remedy = "on another machine: apt-get download anarchism jargon-text, and dpkg-deb -x each into one folder"
    return TopThetaValueError("--texts", f"the files of Debian's packages {' and '.join(PACKAGES)}", got, remedy)


def plain_text(page: str) -> str:
    """Take the text out of an HTML page: blanks joined, a line for each block, neither scripts nor styles.

    Example:
        >>> plain_text("<h1>Title</h1><p>One  <b>two</b>\\n three<script>x</script>")
        'Title\\n\\nOne two three'
    """
    parser = _Text()
    parser.feed(page)
    return re.sub(r"\n\s*\n+", "\n\n", "".join(parser.parts)).strip()


class _Text(HTMLParser):
    _BREAKS = frozenset({"p", "br", "div", "h1", "h2", "h3", "li", "tr"})
    _ENDS = frozenset({"p", "h1", "h2", "h3"})
    _UNSEEN = frozenset({"script", "style"})

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._unseen += tag in self._UNSEEN
        self.parts.append("\n" if tag in self._BREAKS else "")

    def handle_endtag(self, tag: str) -> None:
        self._unseen -= tag in self._UNSEEN
        self.parts.append("\n" if tag in self._ENDS else "")

    def handle_data(self, data: str) -> None:
        self.parts.append("" if self._unseen else re.sub(r"\s+", " ", data))


def documents(text: str, root: Path | None, least: int) -> list[Document]:
    """Read the documents of a text that have more than ``least`` characters, in a drawn order that is always the same.

    Args:
        text: "prose", "jargon" or "python".
        root: of the files of the packages; Python's library needs none.
        least: characters.

    Raises:
        TopThetaValueError: ``root`` lacks a package.
    """
    found = [each for each in _READERS[text](root, least) if len(each.text) > least]
    random.Random(SEED).shuffle(found)
    return found


def _prose(root: Path | None, _: int) -> list[Document]:
    pages = sorted(_folder_of(root, PROSE).glob("*.html"))
    return [Document(page.name, plain_text(page.read_text(errors="replace"))) for page in pages]


def _jargon(root: Path | None, least: int) -> list[Document]:
    """Cut the lexicon into pieces."""
    text = gzip.decompress(_folder_of(root, JARGON).read_bytes()).decode(errors="replace")
    size = least + 1
    return [Document(f"jargon {start}", text[start : start + size]) for start in range(0, len(text), size)]


def _python(_: Path | None, __: int) -> list[Document]:
    modules = [Document(*each) for split in ("train", "calibration", "evaluation") for each in read_split(split)]
    return sorted(each for each in modules if not {"test", "tests", "idle_test"} & set(Path(each.name).parts))


_READERS: Mapping[str, Callable[[Path | None, int], list[Document]]] = {
    "prose": _prose,
    "jargon": _jargon,
    "python": _python,
}


def _folder_of(root: Path | None, path: str) -> Path:
    if root is None or not (root / path).exists():
        raise _missing(f"no {path} in {root}")
    return root / path


class Windows:
    """Cut windows from the splits of the texts.

    Args:
        tokenizer: of the model.
        root: of the files of the packages, or None where only Python's library is read.
        scale: which splits there are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, root: Path | None, scale: Scale) -> None:
        self._tokenizer, self._root, self._scale = tokenizer, root, scale
        self._documents: dict[str, list[Document]] = {}

    def of(self, text: str, split: str, length: int, count: int) -> tuple[list[str], Tensor]:
        """Give the names of the first ``count`` documents of a split, and int64 [count, length].

        Raises:
            TopThetaValueError: there are not so many, or one is too short.
        """
        chosen = self.documents(text, split)[:count]
        if len(chosen) < count:
            raise TopThetaValueError(text, f"{count} documents of the split {split}", str(len(chosen)))
        return [each.name for each in chosen], torch.stack([self._window(each, length) for each in chosen])

    def documents(self, text: str, split: str) -> list[Document]:
        """Give the documents of a split."""
        if text not in self._documents:
            self._documents[text] = documents(text, self._root, self._scale.least_characters)
        sizes, first = self._scale.splits_of(text), 0
        for name, size in sizes.items():
            if name == split:
                return self._documents[text][first : first + size]
            first += size
        raise TopThetaValueError("split", f"one of {', '.join(sizes)}", split)

    def _window(self, document: Document, length: int) -> Tensor:
        end = FIRST_CHARACTER + CHARACTERS_PER_TOKEN * length
        tokens = self._tokenizer(document.text[FIRST_CHARACTER:end], verbose=False)["input_ids"][:length]
        if len(tokens) < length:
            raise TopThetaValueError(document.name, f"{length} tokens", str(len(tokens)), "measure shorter windows")
        return torch.tensor(tokens)


def digest(windows: Tensor) -> str:
    """Digest tokens, so that results of other texts are told apart."""
    return hashlib.sha256(windows.numpy().tobytes()).hexdigest()[:16]
