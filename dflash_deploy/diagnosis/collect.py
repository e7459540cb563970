"""Reads a log once, line by line, and keeps what may be evidence of the engine's end.

A sign that the engine serves, such as a finished request, makes everything before it history. Tracebacks are followed
in each process, with whether they were raised while weights loaded. Errors are grouped: an engine that writes other
messages after an error has survived it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeVar

from dflash_deploy.diagnosis.evidence import (
    RAISED,
    LogEvidence,
    Raised,
    is_echo,
    is_invalid_request,
    of_kernel,
    tells_error,
)
from dflash_deploy.diagnosis.lines import ERRORS, OF_EACH_LINE, QUIET, LogLine, parsed

MOST_TEXT = 60  # lines of an exception's text
MOST_CODE = 3  # lines between two frames of a traceback without a beginning: code, and the signs below it
TRACEBACK = "Traceback (most recent call last)"
NAMED = re.compile(r"[A-Za-z_][\w.]{0,120}(?:: |:?$)")  # the line after a traceback's frames: an exception of any name
FRAME = re.compile(r"\s+File \"")
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# Argparse refuses an argument. llama.cpp's functions write the same.
USAGE = re.compile(r"(?!main:|llama_)[\w. -]{1,60}: error: ")

_MARKS = frozenset(" ^~")  # what Python 3.11 writes below the code of a frame
_PARENT = re.compile(r"Process \w[\w-]*:$")

_FUNCTION = re.compile(r"\s*File \"[^\"]{1,400}\", line \d{1,7}, in (?P<name>[\w.<>]{1,120})")
# Functions of vLLM, SGLang and their plugins that load weights.
_LOADS = re.compile(r"(?:.*\.)?(?:\w*weight_loader\w*|_?load_(?:\w{0,40}_)?weights?(?:_\w{1,40})?|load_model)$")

# Frames that say more of a cause than the last one: the drafter's code, and a compiled graph of the cache on disk. The
# code that runs such graphs is a sign of one only after the engine has loaded it.
_DRAFTS = re.compile(r"/spec_decode/|/models/\w{0,60}(?:eagle|dflash|dspark|mtp|medusa)\w{0,30}\.py")
_CACHED = re.compile(r"/(?:torch_compile|inductor)_cache/")
_COMPILED = re.compile(r"vllm/compilation/|_dynamo/aot_compile|_inductor/standalone_compile")
_REUSES = "irectly load"
# Where a drafter reads the hidden states of its target: a frame, or a frame and its code.
_COMBINES = re.compile(r"in combine_hidden_states\b|models/\w*(?:eagle|dflash|dspark)\w*\.py\", .*\.fc\(")


@dataclass
class TracebackReading:
    """How far a traceback of one process has been read. `loading`: a function in it loads weights.

    `combines` is the frame in which a drafter reads its target, `via` other code, in words. `behind` counts the
    lines behind its last frame.
    `prefixed`: what begins the line of the exception also begins each line of its text.
    """

    level: str = ""
    prefixed: Literal["", "process", "record"] = ""
    inside: bool = False
    frame: tuple[str, ...] = ()
    raised: Raised | None = None
    loading: bool = False
    combines: str = ""
    via: str = ""
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
        told = ([line.message], self.frame)
        self.raised = Raised(process, *told, loading=self.loading, combines=self.combines, via=self.via)
        self.inside, self.frame, self.loading, self.combines, self.via = False, (), False, "", ""
        return self.raised

    def passes(self, message: str) -> None:
        """Note whether a line begins a traceback, or has a function that loads weights."""
        if TRACEBACK in message:
            self.loading, self.combines, self.via = False, "", ""
        elif function := _function(message):
            self.loading, self.behind = self.loading or _LOADS.match(function) is not None, 0
        elif not self.inside:
            self.behind += 1
            self.loading = self.loading and self.behind <= MOST_CODE

    def framed(self, message: str, *, reuses: bool = False) -> None:
        """Read a line of a traceback. A posted one may lack frames: the line of code that raised is kept, too."""
        if FRAME.match(message) or _function(message):
            self.frame = (message,)
            if _DRAFTS.search(message):
                self.via = "in the code of the drafter"
            elif _CACHED.search(message) or (reuses and _COMPILED.search(message)):
                self.via = "in a compiled graph of the cache"
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


CONTINUES = 4  # messages without an error that show that the process continued after the error before them
MOST_OTHERS = 2000  # lines of other processes after which an error is history, whatever its own process wrote


class _Watch:
    """Counts the messages after an event, until they show that its process continued or it is history."""

    def __init__(self) -> None:
        self.watches = False
        self._calm, self._others = 0, 0

    def _begin(self) -> None:
        self.watches, self._calm, self._others = True, 0, 0

    def _over(self, *, calm: bool) -> bool:
        """Count a message, `calm` if it shows that the process continues; return whether it was enough."""
        self._calm += calm
        self._others += 1
        self.watches = self._calm <= CONTINUES and self._others < MOST_OTHERS
        return not self.watches


class ErrorGroups(_Watch):
    """Numbers the groups of errors while a log is read.

    Only what the process of the last error writes separates two groups, in the same format: other processes, and
    warnings, do not show that it continued.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = 1
        self._source = ""

    def passed(self, line: LogLine) -> None:
        """Note a message after an error; only needed while `watches`."""
        self._number += self._over(calm=line.level != "WARNING" and _source(line) == self._source)

    def of_error(self, line: LogLine) -> int:
        """The number of an error's group."""
        self._source = _source(line)
        self._begin()
        return self._number


class Survived(_Watch):
    """Whether the process of the last exception wrote other messages after it."""

    def __init__(self) -> None:
        super().__init__()
        self._process = ""

    def raised(self, process: str) -> None:
        """Note an exception."""
        self._process = process
        self._begin()

    def passed(self, line: LogLine) -> bool:
        """Note a message after an exception; return whether the process continued. Only needed while `watches`."""
        own = line.record and line.process == self._process
        return self._over(calm=own and line.level not in {"WARNING", *ERRORS})


def _source(line: LogLine) -> str:
    """What wrote a line: its process, or the format of a log with one process."""
    return line.process or f"format {line.form}"


# Distinct messages of one kind that are kept. A start writes hundreds; searching this many takes two seconds.
MOST_REPORTS = 20_000

MOST_RAISED = 400  # exceptions that are kept: the first and the last of them
MOST_BEFORE = 3  # messages just before the first error that are kept
_THROWN = "what():"

# Levels of messages that may tell why an engine gave up which logged no error.
_TELLING = frozenset({"DEBUG", "WARNING"})


# llama.cpp repeats the allocation that failed above: that failure is history, and it reports the next one.
_RETRIES = "retrying without pipeline parallelism"

_ANSWERED = ('" 200 OK', " 200")
_OF_ENGINE = ('" 200', "request: POST ")  # what else a line with an answer has: uvicorn's form, or llama.cpp's
# What a line has, and how it ends, with which llama.cpp reports a finished generation. A refused request has none.
_GENERATED, _TOKENS = "total time =", " tokens"
# Words of vLLM's server once its core has ended: streams that were just opened still log 200, then an error.
#
# After a failed assertion of llama.cpp, its other threads still log the answers that they have just sent.
_CORE_ENDED = ("engine core exited unexpectedly", "EngineDeadError", "GGML_ASSERT(")
_PROBE = re.compile(r"GET /(?:health|metrics|ping|v1/models)")
_BEGINS = ("dflash: vLLM", "dflash: SGLang", "dflash: llama", "server_args=ServerArgs", "build: ")
_BANNER = re.compile(r"█ {1,2}version ")

_INFO = re.compile(
    r"(?:\([^)]{1,60}\) )?INFO[: ]|\[[^\]]{10,50}\] (?:INFO:|Decode batch|Prefill batch)|\d{1,6}\.\d\d\.\d{3}\.\d{3} I "
)
_REQUEST = re.compile(r"[Rr]eceived request |^(?:Receive|Finish): obj=|\bprompt['\"]?[:=] ?['\"]")
_REQUEST_ENDS = re.compile(r"['\"], \w+(?:: |=)|\)$")  # what follows a quoted prompt in a request: its parameters


Value = TypeVar("Value")


class Collector:
    """Reads a log line by line and keeps its evidence. `told` are all messages above INFO, warnings included."""

    def __init__(self) -> None:
        self.told: dict[str, None] = {}
        self._now = LogEvidence()
        self._before: LogEvidence | None = None
        self._open: dict[str, TracebackReading] = {}
        self._loose = ""
        self._core_ended = self._reuses = False
        self._quoted, self._quoting = False, ""
        self._groups, self._survived = ErrorGroups(), Survived()

    def evidence(self) -> LogEvidence:
        """What is kept: of a new start that shows nothing yet, the evidence of the one before."""
        now, before = self._now, self._before
        return before if before is not None and not now and not now.serves else now

    def failed(self) -> bool:
        """Whether the log shows a failure: an error, or a traceback whose exception is missing."""
        return bool(self.evidence()) or any(reading.unfinished for reading in self._open.values())

    def read(self, lines: Iterable[str]) -> Collector:
        """Read lines that are free of colors."""
        for line in lines:
            if _INFO.match(line) is None or _tells_more(line):
                self._add(line)
            else:
                # nearly all lines of a long log
                self._now.last.append(line)
                self._quoted = False
                if self._groups.watches or self._survived.watches:
                    self._passed(parsed(line))
                if _answered(line):
                    self._serves()
        return self

    def _add(self, whole: str) -> None:
        line = parsed(whole)
        message, level = line.message, line.level
        self._passed(line)
        if not message or self._quotes(line):
            return
        self._now.last.append(whole)
        self._reuses = self._reuses or (level == "INFO" and _REUSES in message)
        if not line.record and not line.process and of_kernel(message):
            self._now.kernel.append(message)
            return
        if level not in QUIET and not (line.record and not level and not tells_error(message)):
            _keep(self.told, message, None)
        if level not in ERRORS and self._begins_or_serves(message):
            return
        self._core_ended = self._core_ended or (level not in QUIET and any(word in message for word in _CORE_ENDED))
        if level in _TELLING and tells_error(message):
            _keep(self._now.warned, message, None)
        if level not in QUIET and (level != "WARNING" or is_echo(message)):
            known = bool(self._now)
            self._tell(line)
            if self._now and not known:
                self._now.before = tuple(self._now.last)[-1 - MOST_BEFORE : -1]

    def _passed(self, line: LogLine) -> None:
        """Note whether a process continues after an error or an exception."""
        if self._groups.watches:
            self._groups.passed(line)
        if self._survived.watches and self._survived.passed(line):
            self._now.survived = True

    def _quotes(self, line: LogLine) -> bool:
        """Whether a line quotes a request, or continues the quotation in the line above."""
        if line.record or line.process != self._quoting:
            quotes = line.record and line.level not in ERRORS and _REQUEST.search(line.message) is not None
            self._quoted = quotes and not _REQUEST_ENDS.search(line.message)
            self._quoting = line.process
            return quotes
        quoted = self._quoted
        self._quoted = quoted and not _REQUEST_ENDS.search(line.message)
        return quoted

    def _begins_or_serves(self, message: str) -> bool:
        """Whether a message makes what is above it history: the engine serves, retries or begins."""
        if _serving(message):
            self._serves()
            return True
        if message.endswith(_RETRIES):
            self._now.errors.clear()
            return True
        begins = message.startswith(_BEGINS) or "API server version" in message
        if begins or ("█" in message and _BANNER.search(message)):
            if self._now:
                self._before = self._now
            self._now, self._open = LogEvidence(last=self._now.last), {}
            self._core_ended = self._reuses = False
            return True
        return False

    def _serves(self) -> None:
        if self._core_ended:
            return
        if self._now or self._now.plain or self._open:
            self._now, self._open = LogEvidence(last=self._now.last), {}
        self._now.serves = True

    def _tell(self, line: LogLine) -> None:
        """Keep a message that may be evidence."""
        message = line.message
        own = line.process if line.record or line.process else self._loose
        reading = self._reading_of(own)
        reading.passes(message)
        if TRACEBACK in message:
            self._now.before_traceback = tuple(self._now.last)[-1 - MOST_BEFORE : -1]
            reading.level, reading.inside, reading.frame = line.level, True, ()
            self._loose = own
        elif reading.inside and self._inside(own, reading, line):
            pass
        elif reading.raised is not None and message.startswith("- ") and reading.continues(line):
            # a list of attempts belongs to the exception above it
            reading.raised.text.append(message)
        elif (
            RAISED.match(message)
            or is_invalid_request(message)
            or (not line.record and ": error: " in message and USAGE.match(message))
        ):
            reading.level = line.level
            self._raise(own, reading, line)
        elif message.startswith(CHAINED):
            if reading.raised is not None:
                reading.raised.cause, reading.raised = True, None
        elif reading.raised is not None and reading.continues(line):
            reading.raised.text.append(message)
        else:
            reading.loose(message)
            reading.raised = None if line.record else reading.raised
            if not (line.level in ERRORS and reading.frame):
                self._other(line)

    def _reading_of(self, process: str) -> TracebackReading:
        reading = self._open.get(process)
        if reading is None:
            reading = self._open[process] = TracebackReading()
        return reading

    def _inside(self, process: str, reading: TracebackReading, line: LogLine) -> bool:
        """Read a line of a traceback; False if it belongs to something else."""
        message = line.message
        if message[0].isspace():
            reading.framed(message, reuses=self._reuses)
        elif RAISED.match(message) or NAMED.match(message):
            self._raise(process, reading, line)
        else:
            return False
        return True

    def _raise(self, process: str, reading: TracebackReading, line: LogLine) -> None:
        raised = reading.raises(process, line)
        self._survived.raised(process)
        self._now.survived = False
        kept = self._now.raised
        kept.append(raised)
        if len(kept) > MOST_RAISED:
            del kept[MOST_RAISED // 2]

    def _other(self, line: LogLine) -> None:
        message = line.message
        # a frame of torch's native code names functions such as c10::Error::Error
        indented = message[0].isspace() or message.startswith("frame #")
        if indented and ((thrown := message.strip()).startswith(_THROWN) or RAISED.match(thrown)):
            # the text of an exception of native code, below `terminate called after throwing an instance of`
            _keep(self._now.errors, thrown, self._groups.of_error(line))
        elif line.level in ERRORS or line.level == "WARNING" or (tells_error(message) and not indented):
            _keep(self._now.errors, message, self._groups.of_error(line))
        elif not line.record:
            _keep(self._now.plain, message, None)


def _tells_more(line: str) -> bool:
    """Whether a line of level INFO may tell more than that the engine runs: a sign, or the text of a request."""
    # one comparison after the other: a log of 200 MB has more than a million of these lines
    return (
        "startup" in line
        or "model loaded" in line
        or "version " in line
        or "eceived request" in line
        or "Receive: " in line
        or "prompt:" in line
        or "fired up" in line
        or "listening" in line
        or "build: " in line
        or _REUSES in line
        or "server_args" in line
        or "are idle" in line
    )


def _serving(message: str) -> bool:
    """Whether a message shows that the engine serves."""
    # one comparison after the other, as above
    if (
        "Application startup complete" in message
        or "The server is fired up" in message
        or "server is listening on" in message
        or message.endswith(": model loaded")
        or "init: listening on" in message
        or "llama_server: listening on" in message
        or "are idle" in message
    ):
        return True
    return _answered(message)


def _answered(line: str) -> bool:
    """Whether a line reports an answer to a request that the engine has computed."""
    if line.endswith(_TOKENS):
        return _GENERATED in line
    return line.endswith(_ANSWERED) and any(form in line for form in _OF_ENGINE) and not _PROBE.search(line)


def _keep(messages: dict[str, Value], message: str, value: Value) -> None:
    messages[message] = value
    if len(messages) > MOST_REPORTS:
        # many at once: to find the first key, a dict steps over each one that was deleted before it
        for oldest in list(islice(messages, MOST_REPORTS // 10)):
            del messages[oldest]
