"""How far the tracebacks of an engine's processes have been read, and whether they were raised while weights loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dflash_deploy.startup.evidence import Raised, is_echo
from dflash_deploy.startup.log_lines import ERRORS, OF_EACH_LINE, LogLine

MOST_TEXT = 60
"""Lines of an exception's text."""

MOST_CODE = 3
"""Lines between two frames of a traceback without a beginning: code, and the signs below it."""

TRACEBACK = "Traceback (most recent call last)"
RAISED = re.compile(
    r"(?:- )?(?!\s)[A-Za-z_][\w.]{0,120}"
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Fault|OutOfResources|Failed|Expired)(?::|$)"
)
NAMED = re.compile(r"[A-Za-z_][\w.]{0,120}(?:: |:?$)")
"""The line after a traceback's frames: an exception of any name."""

FRAME = re.compile(r"\s+File \"")
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
USAGE = re.compile(r"(?!main:|llama_)[\w. -]{1,60}: error: ")
"""Argparse refuses an argument. llama.cpp's functions write the same."""

_MARKS = frozenset(" ^~")
"""What Python 3.11 writes below the code of a frame."""

_PARENT = re.compile(r"Process \w[\w-]*:$")

_FUNCTION = re.compile(r"\s*File \"[^\"]{1,400}\", line \d{1,7}, in (?P<name>[\w.<>]{1,120})")
_LOADS = re.compile(r"(?:.*\.)?(?:\w*weight_loader\w*|_?load_(?:\w{0,40}_)?weights?(?:_\w{1,40})?|load_model)$")
"""Functions of vLLM, SGLang and their plugins that load weights."""

_COMBINES = re.compile(r"in combine_hidden_states\b|models/\w*(?:eagle|dflash|dspark)\w*\.py\", .*\.fc\(")
"""Where a drafter reads the hidden states of its target: a frame, or a frame and its code."""


@dataclass
class TracebackReading:
    """How far a traceback of one process has been read. `loading`: a function in it loads weights.

    `combines` is the frame in which a drafter reads its target. `behind` counts the lines behind its last frame.
    `prefixed`: what begins the line of the exception also begins each line of its text.
    """

    level: str = ""
    prefixed: Literal["", "process", "record"] = ""
    inside: bool = False
    frame: tuple[str, ...] = ()
    raised: Raised | None = None
    loading: bool = False
    combines: str = ""
    behind: int = 0

    @property
    def unfinished(self) -> bool:
        """Whether it has frames, and no exception yet."""
        return bool(self.frame) and (self.inside or bool(_function(self.frame[0])))

    def raises(self, process: str, line: LogLine) -> Raised:
        """Read the line of an exception. vLLM's logger, and processes that write their names, begin each line."""
        if line.form == OF_EACH_LINE:
            self.prefixed = "record"
        else:
            self.prefixed = "process" if line.process and not line.record else ""
        self.raised = Raised(process, [line.message], self.frame, loading=self.loading, combines=self.combines)
        self.inside, self.frame, self.loading, self.combines = False, (), False, ""
        return self.raised

    def passes(self, message: str) -> None:
        """Note whether a line begins a traceback, or has a function that loads weights."""
        if TRACEBACK in message:
            self.loading, self.combines = False, ""
        elif function := _function(message):
            self.loading, self.behind = self.loading or _LOADS.match(function) is not None, 0
        elif not self.inside:
            self.behind += 1
            self.loading = self.loading and self.behind <= MOST_CODE

    def framed(self, message: str) -> None:
        """Read a line of a traceback. A posted one may lack frames: the line of code that raised is kept, too."""
        if FRAME.match(message) or _function(message):
            self.frame = (message,)
        elif self.frame and (len(self.frame) == 1 or not _MARKS.issuperset(message)):
            self.frame = (*self.frame[:2], message)
        if self.frame and _COMBINES.search("".join(self.frame)):
            self.combines = self.frame[0].strip()

    def loose(self, message: str) -> None:
        """Read a line that may be of a traceback without a beginning, and with or without indents."""
        if _function(message) or (message[0].isspace() and self.frame and _function(self.frame[0])):
            self.framed(message)
        else:
            self.frame = (*self.frame[-1:], message) if message[0].isspace() else ()

    def continues(self, line: LogLine) -> bool:
        """Whether a line belongs to the text of the exception above it."""
        assert self.raised is not None  # noqa: S101 - for the type checker: the caller has looked
        if len(self.raised.text) >= MOST_TEXT or _PARENT.match(line.message) or is_echo(line.message):
            return False
        if self.prefixed and not (line.record or (line.process and self.prefixed == "process")):
            return False
        return not line.record or (line.level in ERRORS and line.level == self.level)


def _function(message: str) -> str:
    """Return the name of the function if a line is a frame: posts often lose the indents of frames."""
    found = _FUNCTION.match(message) if 'File "' in message else None
    return found["name"] if found else ""
