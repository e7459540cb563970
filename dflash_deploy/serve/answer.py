"""The answer of an engine that was asked for its configuration: one line of JSON on standard output.

The line begins with MARK, since engines write there too. Its keys are those of
`dflash_deploy.intake.documents.EngineAnswer`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

MARK = "dflash-answer: "  # the beginning of the line
LONGEST = 2000  # characters of a sentence or value


def accepted(decided: Mapping[str, object]) -> None:
    """The engine made its configuration; `decided` is what it chose, by name."""
    _write({"decided": {name: _shortened(str(value)) for name, value in decided.items()}})


def refused(sentence: str) -> None:
    """The engine refuses the configuration, in its own words."""
    _write({"refused": _shortened(" ".join(sentence.split())) or "it gave no reason"})


def unaskable(reason: str) -> None:
    """This engine, or this release of it, has no way to be asked."""
    _write({"unaskable": _shortened(reason)})


def _write(answer: Mapping[str, object]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # in one write and on a line of its own: threads of the engine may write at the same time
    os.write(1, f"\n{MARK}{json.dumps(answer)}\n".encode())


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
