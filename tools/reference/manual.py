"""The manual page `dflash-deploy(1)`, which `hatch_build.py` writes: the commands with options, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dflash_deploy import __version__
from tools.reference.commands import examples_of, of_all_commands, parts_of, shown

ROOT = Path(__file__).resolve().parents[2]

SITE = "https://github.com/dflash-deploy/dflash-deploy"

_HEAD = f"""\
.TH DFLASH-DEPLOY 1 "" "dflash-deploy {__version__}" "User Commands"
.SH NAME
dflash-deploy \\- serve a vision-language model on your own GPU with DFlash speculative decoding
.SH SYNOPSIS
.B dflash-deploy
.I COMMAND
.RI [ OPTIONS ]
.SH DESCRIPTION
.B dflash-deploy init
writes a deployment for this machine into the current directory,
.B dflash-deploy up
downloads the weights, starts the engine and waits until it has generated a token, and
.B dflash-deploy test
checks the endpoint. Without a command,
.B dflash-deploy
shows the state of this directory and the next command.
.PP
A command works on the deployment in the current directory, or in
.BR "\\-\\-dir DIR" .
A command that reports has
.BR \\-\\-json :
exactly one document on standard output.
.SH OPTIONS
Before the command or behind it:
"""

_FILES = (
    (".env", "The settings and the API key; mode 0600. Edit it as you like."),
    ("compose.yaml", "Written by init and up. compose.override.yaml is yours."),
    ("dflash.lock", "The commits, sizes and digests of the weights."),
    (".dflash/", "Logs and state."),
)


def page() -> str:
    """The whole page, in the macros of man(7)."""
    codes = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `\w+` \| (.+) \|$", codes, re.MULTILINE)
    sections = [line for name, command in shown() for line in _section(name, command)]
    lines = [*_listed((f"`{spelling}`", text) for spelling, text in of_all_commands()), ".SH COMMANDS", *sections]
    lines += [".SH EXIT STATUS", *_listed(rows), ".SH FILES", *_listed(_FILES)]
    return _HEAD + "\n".join([*lines, ".SH SEE ALSO", _text(f"The documents: {SITE}"), ""])


def _section(name: str, command: Any) -> Iterator[str]:
    parts = parts_of(name, command)
    yield f'.SS "{_text(name)}"'
    yield _text(parts.text)
    yield ".PP"
    yield _text(f"`{parts.usage}`")
    yield from _listed((f"`{spelling}`", meaning) for spelling, meaning in [*parts.arguments, *parts.options])
    yield ".PP"
    yield "Examples:"
    yield ".PP"
    yield ".nf"
    yield from (_text(f"    {example}") for example in examples_of(command))
    yield ".fi"


def _listed(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, meaning in rows:
        yield ".TP"
        yield _text(term)
        yield _text(meaning)


def _text(text: str) -> str:
    """A line of text: code spans bold, and nothing in it read as a request or an escape."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    bold = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", escaped)
    return f"\\&{bold}" if bold.startswith((".", "'")) else bold
