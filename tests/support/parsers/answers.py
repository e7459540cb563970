"""What the processes have in common that ask a parser: lists on standard input, answers on a pipe."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable

OPTIONS = ["its options"]  # instead of a list of arguments: the answer has the names of all options, between spaces


def answer(check: Callable[[list[str]], str | None], options: Callable[[], Iterable[str]] = tuple) -> None:
    """Ask `check` about the lists on each line of standard input, and end the process with it.

    The answers of a line are a line for the descriptor that is named first: the engines write to standard output.
    """
    with os.fdopen(int(sys.argv[1]), "w") as answers:
        for line in sys.stdin:
            asked: list[list[str]] = json.loads(line)
            said = [" ".join(options()) if one == OPTIONS else check(one) for one in asked]
            answers.write(f"{json.dumps(said)}\n")
            answers.flush()
    # the engines leave threads and handlers behind that are no part of the question
    os._exit(0)


def argparse_rejection(parse: Callable[[], object]) -> str | None:
    """`None` where `parse` returns; else what argparse wrote before it exited, or the error's own text."""
    written = io.StringIO()
    try:
        with contextlib.redirect_stderr(written):
            parse()
    except SystemExit as exit_:
        text = written.getvalue()
        return None if exit_.code in (0, None) else text.partition("error: ")[2].strip() or text.strip() or str(exit_)
    # whatever the engine raises over its arguments ends its start, so each kind is a rejection
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def argparse_options(parser: argparse.ArgumentParser) -> list[str]:
    """The names of all options of a parser, in every spelling, also those that its help leaves out."""
    return sorted(parser._option_string_actions)
