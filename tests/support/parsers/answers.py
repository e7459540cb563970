"""What the processes have in common that ask a parser: lists on standard input, answers in a file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path


def answer(check: Callable[[list[str]], str | None]) -> None:
    """Ask `check` about each list, write the answers to the file named first, and end the process.

    The answers do not go to standard output because the engines write there too.
    """
    lists: list[list[str]] = json.load(sys.stdin)
    answers = [check(arguments) for arguments in lists]
    Path(sys.argv[1]).write_text(json.dumps(answers), encoding="utf-8")
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
