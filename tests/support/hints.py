"""The commands in what the program prints: those of hints, and those of the lines that name the next command.

Each of them must be one that can be pasted: the command line reads it, and it has no placeholder.
"""

import re
import shlex
from collections.abc import Iterator

from click import ClickException
from typer.exceptions import TyperException

from dflash_deploy.cli.app import COMMANDS

_HINT = re.compile(r"^  hint: (.*)$", re.MULTILINE)
_IN_QUOTES = re.compile(r"`(?:dflash-deploy|python -m dflash_deploy) ([^`\n]*)`")
_NEXT = re.compile(r"^next +dflash-deploy (.+?)(?: {2,}.*)?$(?P<more>(?:\n {4,}dflash-deploy .*$)*)", re.MULTILINE)
_BARE = re.compile(rf"(?<!`)\bdflash-deploy (?:{'|'.join(COMMANDS)})\b(?!`)")
_PLACEHOLDER = re.compile(r"[A-Z]{2,}(?:=VALUE)?")


def commands_of(printed: str) -> Iterator[tuple[str, ...]]:
    """The words of each command that a hint or a `next` line tells to run, without the program's name.

    One with a path that has control characters is shown escaped, so that it cannot be pasted: it is left out.
    """
    for command in _commands(printed):
        if "\\x" not in command and command.count("'") % 2 == 0:
            # what a shell puts in place of it is one word
            yield tuple(shlex.split(re.sub(r"\$\([^)]*\)", "value", command)))


def _commands(printed: str) -> Iterator[str]:
    for hint in _HINT.findall(printed):
        yield from _IN_QUOTES.findall(hint)
    for found in _NEXT.finditer(printed):
        yield found[1]
        for line in found["more"].split("\n")[1:]:
            yield re.split(r" {2,}", line.strip())[0].removeprefix("dflash-deploy ")


def hint_problems(printed: str) -> Iterator[str]:
    """What keeps the commands of a text from being pasted."""
    # it imports what runs commands
    from tests.support.documents import parse

    for hint in _HINT.findall(printed):
        if _BARE.search(_IN_QUOTES.sub("", hint)):
            yield f"a command without backquotes: {hint}"
    for words in commands_of(printed):
        if any(_PLACEHOLDER.fullmatch(word) for word in words):
            yield f"a placeholder: dflash-deploy {shlex.join(words)}"
            continue
        try:
            parse(tuple("--help" if word == "-h" else word for word in words))
        except (ClickException, TyperException, LookupError, ValueError) as problem:
            yield f"the command line refuses it: dflash-deploy {shlex.join(words)}: {problem}"
