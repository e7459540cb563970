"""The documents of the repository: their links, the `dflash-deploy` commands that they show, and their transcripts."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import typer
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dflash_deploy.cli.app import COMMANDS, load
from tools.reference import FOLDER
from tools.reference.pages import BUILT

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = "dflash-deploy"

# Options of the program itself, without a command.
OF_THE_APP = frozenset({"-h", "--help", "--version", "--install-completion", "--show-completion"})

MOST_WORDS = 25  # words of the longest sentence: one idea each

# The files that only the site has, by the place where it shows them, and the function that returns their text.
ON_THE_SITE = {FOLDER / name: cache(page) for name, page in BUILT.items()}

_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Link:
    """A link or an image: the file and line where it is written, and its address."""

    file: Path
    line: int
    address: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.address}"


@dataclass(frozen=True)
class Picture:
    """An image: its address, and the text for those who do not see it."""

    address: str
    text: str


@dataclass(frozen=True)
class Shown:
    """A command that a document shows: the file and line of its block, and its words without the program's name."""

    file: Path
    line: int
    words: tuple[str, ...]
    mentioned: bool = False
    """Whether it is in a code span of a sentence, which may name a command without its arguments."""
    refused: bool = False
    """Whether the document shows it with an error as its first line of output."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {PROGRAM} {shlex.join(self.words)}"


@dataclass(frozen=True)
class Transcript:
    """A command after `$ ` and the output that the document shows behind it; `…` replaces lines and parts of lines."""

    command: Shown
    output: tuple[str, ...]


def documents() -> tuple[Path, ...]:
    """Every document for people in Markdown, also those that only the site has."""
    return tuple(sorted({*checked_in(), *(file for file in ON_THE_SITE if file.suffix == ".md")}))


def checked_in() -> tuple[Path, ...]:
    """Every Markdown file for people in the repository."""
    patterns = ("*.md", "docs/**/*.md", "models/tiny/*.md", "tests/support/**/*.md")
    return tuple(sorted({file for pattern in patterns for file in ROOT.glob(pattern)}))


def text_of(file: Path) -> str:
    """The text of a document, also of one that only the site has."""
    return ON_THE_SITE[file]() if file in ON_THE_SITE else file.read_text(encoding="utf-8")


def links(file: Path) -> Iterator[Link]:
    """The links of a document."""
    for block in _tokens(file):
        for token in block.children or ():
            address = token.attrs.get("href") or token.attrs.get("src")
            if address:
                yield Link(file, _line(block), str(address))


def pictures(file: Path) -> Iterator[Picture]:
    """The pictures of a document."""
    for block in _tokens(file):
        for token in block.children or ():
            if token.type == "image":
                yield Picture(str(token.attrs["src"]), token.content)


def problem_of(link: Link) -> str:
    """Why a relative link leads nowhere; empty if it does not, or leads to another host."""
    path, _, anchor = link.address.partition("#")
    if re.match(r"[a-z]+:", path):
        return ""
    target = (link.file.parent / path).resolve() if path else link.file
    if not (target.exists() or target in ON_THE_SITE):
        return "the file does not exist"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return "the page has no such heading"
    return ""


def anchors(file: Path) -> frozenset[str]:
    """The anchors of a document: its headings, as GitHub and the site write them, and those of `<a id="…">`."""
    return _anchors(text_of(file))


@cache
def _anchors(text: str) -> frozenset[str]:
    blocks = _parsed(text)
    titles = [inside.content for opened, inside in pairwise(blocks) if opened.type == "heading_open"]
    ids = re.findall(r'<a id="([a-z0-9-]+)">', text)
    return frozenset({*ids, *(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles)})


def commands(file: Path) -> Iterator[Shown]:
    """The commands in code blocks and code spans of a document."""
    for block in _tokens(file):
        if block.type in {"fence", "code_block"}:
            for line, refused in _typed(textwrap.dedent(block.content)):
                yield from (replace(shown, refused=refused) for shown in _in_line(file, _line(block), line))
        for token in block.children or ():
            if token.type == "code_inline" and token.content.startswith(f"{PROGRAM} "):
                for shown in _in_line(file, _line(block), token.content):
                    yield replace(shown, mentioned=True)


def mentions(file: Path) -> Iterator[Shown]:
    """The commands in backquotes in any text file, such as the hints of a program; `{…}` is a part that it fills in."""
    text = file.read_text(encoding="utf-8")
    for span in re.finditer(rf"`({PROGRAM} [^`{{}}\n]+)`", text):
        for shown in _in_line(file, text.count("\n", 0, span.start()) + 1, span[1]):
            yield replace(shown, mentioned=True)


def transcripts(file: Path) -> Iterator[Transcript]:
    """The commands of a document that are shown with their output."""
    for block in _tokens(file):
        if block.type != "fence" or block.info != "console":
            continue
        for part in re.split(r"^\$ ", block.content, flags=re.MULTILINE)[1:]:
            typed, _, output = part.partition("\n")
            (command,) = _in_line(file, _line(block), typed)
            yield Transcript(command, tuple(output.rstrip("\n").splitlines()))


def long_sentences(file: Path) -> Iterator[str]:
    """The sentences of a document, tables left out, that have too many words; a code span is one word."""
    blocks = _tokens(file)
    for before, block in zip(["", *(token.type for token in blocks)], blocks, strict=False):
        if block.type != "inline" or before in {"td_open", "th_open"}:
            continue
        parts = ("code" if part.type == "code_inline" else part.content or " " for part in block.children or ())
        for sentence in re.split(r"(?<=[.!?:;])\s+", "".join(parts)):
            if (words := len(sentence.split())) > MOST_WORDS:
                yield f"{file.relative_to(ROOT)}:{_line(block)}: {words} words: {sentence}"


def missing(output: str, shown: tuple[str, ...]) -> list[str]:
    """The shown lines that the output does not have, in this order."""
    real, lacking = output.splitlines(), []
    for line in shown:
        if line.strip() == "…":
            continue
        pattern = ".*".join(re.escape(part) for part in line.rstrip().split("…"))
        at = next((number for number, one in enumerate(real) if re.fullmatch(pattern, one.rstrip())), None)
        if at is None:
            lacking.append(line)
        else:
            del real[: at + 1]
    return lacking


def parse(words: tuple[str, ...]) -> None:
    """Read a command with the real parser, and run nothing. Raises the parser's error, and LookupError."""
    name, *rest = words
    if name in OF_THE_APP:
        return
    if name not in COMMANDS:
        raise LookupError(f"`{name}` is not a command")
    command = load(name)
    while inner := getattr(command, "commands", None):
        if rest[:1] in (["--help"], ["-h"]):
            return
        command = inner[rest.pop(0)]
    try:
        command.make_context(name, rest)
    except typer.Exit:
        return


def _tokens(file: Path) -> list[Token]:
    return _parsed(text_of(file))


@cache
def _parsed(text: str) -> list[Token]:
    """The tokens of a text, which several tests read. Nothing changes them."""
    return _MARKDOWN.parse(text)


def _line(block: Token) -> int:
    return block.map[0] + 1 if block.map else 1


def _typed(content: str) -> Iterator[tuple[str, bool]]:
    """The lines of a block that a reader types, and whether an error follows.

    Those are the lines after `$ `, or in a block without one all that are not indented.
    """
    lines = re.sub(r" *\\\n *", " ", content).splitlines()
    if any(line.startswith("$ ") for line in lines):
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("$ "):
                yield line[2:], after.startswith("error:")
    else:
        yield from ((line, False) for line in lines if not line.startswith(" "))


def _in_line(file: Path, number: int, line: str) -> Iterator[Shown]:
    """The program's commands in a line of shell, without its comment, its redirection, `[OPTIONS]` and `…`."""
    inner = re.findall(rf"\$\({PROGRAM} ([^)]*)\)", line)
    parts = re.split(r" (?:&&|\|\||\||>) |;", re.sub(r"\s#.*", "", line))
    written = [part.strip().removeprefix(PROGRAM) for part in parts if re.match(rf"\s*{PROGRAM} ", part)]
    for one in (*inner, *written):
        words = [word for word in shlex.split(one) if word != "…" and not re.fullmatch(r"\[[A-Z]+\]", word)]
        if words and not words[0].isupper():
            yield Shown(file, number, tuple(words))
