"""The Markdown pages of the repository as a reader meets them: links, headings, examples, commands.

An HTML comment right before a block says what tests do with it: ``<!-- not run: reason -->`` never,
``<!-- slow -->`` only in ``make docs``. Any other block of Python or of shell commands runs.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in ("build", "dist") for part in page.relative_to(ROOT).parts)
)

_SHELLS = ("bash", "sh", "shell", "console")
_PROGRAMS = ("bash", "cd", "eval", "export", "git", "make", "pip", "python", "python3", "source", "toptheta", "vllm")
_PREPARES = ("cd ", "eval ", "export ", "source ")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


class Block(NamedTuple):
    """A fenced or indented block; ``label`` is the comment before it, such as "slow" or "not run: reason"."""

    page: Path
    line: int
    language: str
    text: str
    label: str

    @property
    def runs(self) -> bool:
        return not re.match(r"not run: \w", self.label)

    @property
    def slow(self) -> bool:
        return self.label == "slow"


class Command(NamedTuple):
    """One command with what its block has typed before it that later lines depend on."""

    block: Block
    text: str
    script: str


def name_of(page: Path) -> str:
    """The page as seen from the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """All blocks of a page in their order."""
    found, label = [], ""
    for token in _MARKDOWN.parse(page.read_text()):
        if token.type in ("fence", "code_block"):
            line = token.map[0] + 1 if token.map else 0
            found.append(Block(page, line, token.info.strip(), token.content, label))
        comment = re.fullmatch(r"\s*<!-- (.*?) -->\s*", token.content) if token.type == "html_block" else None
        label = comment.group(1) if comment else ""
    return found


def commands(page: Path) -> list[Command]:
    """The shell commands that a page shows in its blocks."""
    return [command for block in blocks(page) if _is_shell(block) for command in _commands(block)]


def links(page: Path) -> list[str]:
    """Targets of links and images."""
    return [
        str(token.attrs["href" if token.type == "link_open" else "src"])
        for token in _inline(page, "link_open", "image")
    ]


def anchors(page: Path) -> set[str]:
    """The fragments by which GitHub addresses the headings of a page."""
    tokens = _MARKDOWN.parse(page.read_text())
    seen: dict[str, int] = {}
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(child.content for child in inline.children or [])
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            seen[slug] = seen.get(slug, -1) + 1
    return {slug if number == 0 else f"{slug}-{number}" for slug, last in seen.items() for number in range(last + 1)}


def code_spans(page: Path) -> list[str]:
    """What stands in backticks within the text."""
    return [token.content for token in _inline(page, "code_inline")]


def _inline(page: Path, *types: str) -> Iterator[Token]:
    for token in _MARKDOWN.parse(page.read_text()):
        for child in token.children or []:
            if child.type in types:
                yield child


def _is_shell(block: Block) -> bool:
    lines = block.text.splitlines()
    return block.language in _SHELLS or (
        block.language in ("", "text") and any(line.partition(" ")[0] in _PROGRAMS for line in lines)
    )


def _commands(block: Block) -> Iterator[Command]:
    before: list[str] = []
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        yield Command(block, line, "\n".join([*before, line]))
        if line.startswith(_PREPARES):
            before.append(line)
