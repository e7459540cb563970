"""Reads a log once, line by line, and keeps what may be evidence of the engine's end.

The evidence has ranks: exceptions, errors, plain lines, and echoes of them. A sign that the engine serves, such as a
finished request, makes everything before it history. Tracebacks are followed in each process, with whether they were
raised while weights loaded. Errors are grouped: an engine that writes other messages after an error has survived it.
The key lines of an unknown failure are the first exception and the errors, not the last twenty lines of the log.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Literal, TypeVar

from dflash_deploy.diagnosis.lines import ERRORS, LONGEST_LINE, OF_EACH_LINE, QUIET, LogLine, parsed

LAST_MESSAGES = 10
"""Messages of the log's end that are kept whatever they say."""

MOST_KERNEL = 200
"""Last lines of the kernel that are kept."""

_KERNEL = re.compile(
    r"NVRM: .{0,80}(?:Xid|fallen off|[Ff]ailed|[Tt]imeout|[Oo]ut of memory)|Memory cgroup out of memory"
    r"|[Oo]ut of memory: Killed process|oom-kill:"
)
"""Faults that the kernel and NVIDIA's driver report."""

_ECHO = re.compile(
    r"[Ss]ee root cause above|[Ss]ee stack trace|check the stack trace above"
    r"|(?:^|: )(?:WorkerProc|EngineCore|Engine process) failed to start"
    r"|^(?:WorkerProc|EngineCore) (?:hit an exception|encountered a fatal error)|EngineDeadError|EngineGenerateError"
    r"|engine core exited unexpectedly|died unexpectedly|^RuntimeError: Executor failed\.$"
    r"|^(?:SystemExit|KeyboardInterrupt|EOFError|BrokenPipeError)\b"
    r"|CancelledError|^subprocess\.CalledProcessError|Error raised in subprocess|^Process \w+:$"
    r"|[Rr]eceived sigquit|^SIGQUIT received\. signum|kill_process_tree|exiting due to model loading error|^Aborted\b"
    r"|^zsh: (?:abort|killed|segmentation fault)\b"
    r"|^Killed$|: line \d{1,6}: +\d{1,9} (?:Aborted|Killed|Segmentation fault)\b"
    r"|^Rank \d{1,4} scheduler is dead"
    r"|^Fatal Python error: Aborted|exactly one out metadata, path_model"
    r"|failed to load (?:multimodal |draft )?model(?:,? '[^']{0,300}')?$"
    r"|failed \(exitcode: |closing signal SIG|Server process terminated unexpectedly with exit code"
    r"|Failed to init server, please check the input params"
    r"|^Subprocess \w{1,40} \(pid=\d{1,9}\) crashed with exit code|subprocess exited with code -?\d"
    r"|Initialization failed\. Please see the error messages above"
    r"|^Pyspy (?:failed|dump)|^All pyspy dump attempts failed"
    r"|^AsyncLLM output_handler failed|^Error in (?:chat )?completion stream generator"
)
"""Messages that only report that another process, step or request failed."""

_REFUSED_CONFIG = re.compile(r"validation errors? for \w{1,60}(?:Config|Args|Scheme)$")

MOST_REFUSED = 2
"""Lines of pydantic about one value: its field, and why it is refused. Only the first value is shown."""

_INVALID_REQUEST = re.compile(r"validation errors? for \w{0,60}Request\b")

_ASSERTION = re.compile(r"Assertion [`'].{1,300}['`] failed|[Kk]ernel only supports sm")

_COLLATERAL = re.compile(
    r"Connection (?:reset|refused|closed) by peer|ConnectionResetError|DistBackendError|DistNetworkError|DistStoreError"
    r"|NCCL error|ProcessGroupNCCL|Gloo connectFullMesh failed|zmq\.error|TimeoutError|timed out"
)
"""What the others raise when one of several processes is gone."""


@dataclass
class Raised:
    """One exception: where it was raised, its text, and whether another one was raised from it.

    `reported`: a row of the catalog says that such an exception only reports another failure. `loading`: a function
    that loads weights raised it, or called what did. `combines`: so did this frame, in which a drafter reads its
    target.
    """

    process: str
    text: list[str]
    frame: tuple[str, ...] = ()
    cause: bool = False
    reported: bool = False
    loading: bool = False
    combines: str = ""

    @property
    def echo(self) -> bool:
        """Whether it only reports another failure."""
        return self.reported or is_echo(self.text[0])

    @property
    def told(self) -> list[str]:
        """Its text; of a request that is not valid only the first line, since the others tell what is wrong with it."""
        return self.text[:1] if is_invalid_request(self.text[0]) else self.text

    @property
    def collateral(self) -> bool:
        """Whether it is what the other processes raise if one of several is gone."""
        return any(_COLLATERAL.search(line) for line in self.text[:6])


@dataclass
class LogEvidence:
    """What is kept of a log: messages in the order of the log, each once.

    `errors` have the number of their group: other messages between two groups show that the engine continued. `kernel`
    are faults in lines of the kernel that were pasted or collected into the log. `reported`: errors of which a row of
    the catalog says that they only report another failure. `before` are the lines just before the first error,
    `before_traceback` those before the last traceback, `warned` the warnings and debug messages that tell an error.
    `survived`: the process of the last exception continued.
    """

    raised: list[Raised] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    plain: dict[str, None] = field(default_factory=dict)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_MESSAGES))
    kernel: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_KERNEL))
    reported: set[str] = field(default_factory=set)
    before: tuple[str, ...] = ()
    before_traceback: tuple[str, ...] = ()
    warned: dict[str, None] = field(default_factory=dict)
    serves: bool = False
    survived: bool = False

    def __bool__(self) -> bool:
        return bool(self.raised or self.errors or self.kernel)

    def ending(self) -> list[Raised]:
        """The exceptions that ended their processes, echoes left out: the last one of each, in the log's order."""
        final: dict[str, Raised] = {}
        for one in self._told():
            if not one.cause:
                final.pop(one.process, None)
                final[one.process] = one
        return list(final.values())

    def causes(self) -> list[Raised]:
        """The exceptions from which those were raised."""
        return [one for one in self._told() if one.cause]

    def loading(self) -> bool:
        """Whether the engine ended while it loaded weights."""
        return any(one.loading for one in (*self.ending(), *self.causes()))

    def logged(self) -> list[Raised]:
        """Exceptions after which their process continued."""
        ending = self.ending()
        return [one for one in self.raised if not one.echo and not one.cause and one not in ending]

    def end(self) -> list[str]:
        """The last messages of the log, whatever they say."""
        return [parsed(line).message for line in self.last]

    def opening(self) -> list[str]:
        """What was written just before the last traceback, whose end may be missing."""
        return [parsed(line).message for line in self.before_traceback]

    def around(self) -> list[str]:
        """What was written just before the first error and at the end, besides INFO, frames and echoes."""
        lines = map(parsed, (*self.before, *self.last))
        return [line.message for line in lines if line.level not in QUIET and _tells_something(line.message)]

    def fatal(self) -> list[str]:
        """The last group of errors besides exceptions and echoes."""
        told = {message: group for message, group in self.errors.items() if not self._is_report(message)}
        last = max(told.values(), default=0)
        return [message for message, group in told.items() if group == last]

    def native(self) -> list[str]:
        """Assertions of native code and refusals of kernels: what they print before the exception that follows."""
        return [message for message in self.errors if _ASSERTION.search(message)]

    def errors_before(self) -> list[str]:
        """Errors after which the engine continued."""
        fatal = self.fatal()
        return [message for message in self.errors if message not in fatal and not self._is_report(message)]

    def echoes(self) -> list[str]:
        """Messages that only report another failure."""
        raised = [line for one in self.raised if one.echo for line in one.told]
        return [*raised, *(message for message in self.errors if self._is_report(message))]

    def _is_report(self, message: str) -> bool:
        return message in self.reported or is_echo(message)

    def _told(self) -> list[Raised]:
        told = [one for one in self.raised if not one.echo]
        return [one for one in told if not one.collateral] or told


def _tells_something(message: str) -> bool:
    """Whether a message says something itself: it is neither part of a traceback, nor signs only, nor an echo."""
    words = message[:1].strip() and "Traceback (" not in message and re.search(r"\w{3}", message)
    return bool(words) and not is_echo(message)


def texts(raised: Iterable[Raised]) -> Iterator[str]:
    """Yield the lines of exceptions, and as one line what two lines tell.

    Pydantic writes the field above the reason, and torch does not say that a drafter read its target.
    """
    for one in raised:
        yield from one.text
        if one.combines:
            yield f"{one.text[0]} {one.combines}"
        if _REFUSED_CONFIG.search(one.text[0]):
            yield ": ".join(line.strip() for line in one.text[: 1 + MOST_REFUSED])


def frames(raised: Iterable[Raised]) -> Iterator[str]:
    """Yield the frames that raised exceptions: where something happened tells less than what."""
    for one in raised:
        yield from (line.strip() for line in one.frame)


def of_kernel(line: str) -> bool:
    """Whether a line is a fault that the kernel reports."""
    return ("NVRM" in line or "ut of memory" in line or "oom-kill" in line) and _KERNEL.search(line) is not None


def is_invalid_request(message: str) -> bool:
    """Whether pydantic reports the fields of a request here, and not those of a configuration."""
    return _INVALID_REQUEST.search(message) is not None


@lru_cache(maxsize=1024)
def is_echo(message: str) -> bool:
    """Whether a message only reports another failure. It is asked several times of what a log ends with."""
    return _ECHO.search(message) is not None or is_invalid_request(message)


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


CONTINUES = 4
"""Messages without an error that show that the process continued after the error before them."""

MOST_OTHERS = 2000
"""Lines of other processes after which an error is history, whatever its own process wrote."""


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


MOST_REPORTS = 20_000
"""Distinct messages of one kind that are kept. A start writes hundreds; searching this many takes two seconds."""

MOST_RAISED = 400
"""Exceptions that are kept: the first and the last of them."""

MOST_BEFORE = 3
"""Messages just before the first error that are kept."""

_THROWN = "what():"

_ERROR = re.compile(
    r"(?<![\w-])(?:error|fatal|failed|failure|abort(?:ed)?|assert(?:ion)?|panic|killed|refused|cannot|could\w'?t|denied|dead|died)\b"
    r"|_assert\(|kernel only supports sm|not found \(required|terminate called|not found$|out of memory"
    r"|[a-z](?:error|exception): |\bsegmentation fault|\(core dumped\)"
    r"|watchdog timeout \((?!.{0,60}soft=true)|crashed with exit code"
    r"|free\(\): (?:invalid|double)|double free or|(?:malloc|munmap_chunk)\(\): [cimu]|corrupted (?:size|double)"
)
_ERRORS = (
    *("error", "fatal", "fail", "abort", "assert", "panic", "kill", "refused", "cannot", "could", "denied"),
    *("dead", "died", "not found", "terminate", "out of memory", "exception", "segmentation", "core dumped"),
    *("free()", "double free", "malloc()", "munmap_chunk()", "corrupted", "kernel only supports"),
    *("crashed", "watchdog"),
)


_TELLING = frozenset({"DEBUG", "WARNING"})
"""Levels of messages that may tell why an engine gave up which logged no error."""


_RETRIES = "retrying without pipeline parallelism"
"""llama.cpp repeats the allocation that failed above: that failure is history, and it reports the next one."""

_ANSWERED = ('" 200 OK', " 200")
_OF_ENGINE = ('" 200', "request: POST ")
"""What else a line with an answer has: uvicorn's form, or llama.cpp's."""
_GENERATED, _TOKENS = "total time =", " tokens"
"""What a line has, and how it ends, with which llama.cpp reports a finished generation. A refused request has none."""
_CORE_ENDED = ("engine core exited unexpectedly", "EngineDeadError", "GGML_ASSERT(")
"""Words of vLLM's server once its core has ended: streams that were just opened still log 200, then an error.

After a failed assertion of llama.cpp, its other threads still log the answers that they have just sent.
"""
_PROBE = re.compile(r"GET /(?:health|metrics|ping|v1/models)")
_BEGINS = ("dflash: vLLM", "dflash: SGLang", "dflash: llama", "server_args=ServerArgs", "build: ")
_BANNER = re.compile(r"█ {1,2}version ")

_INFO = re.compile(
    r"(?:\([^)]{1,60}\) )?INFO[: ]|\[[^\]]{10,50}\] (?:INFO:|Decode batch|Prefill batch)|\d{1,6}\.\d\d\.\d{3}\.\d{3} I "
)
_REQUEST = re.compile(r"[Rr]eceived request |^(?:Receive|Finish): obj=|\bprompt['\"]?[:=] ?['\"]")
_REQUEST_ENDS = re.compile(r"['\"], \w+(?:: |=)|\)$")
"""What follows a quoted prompt in a request: its parameters."""


Value = TypeVar("Value")


class Collector:
    """Reads a log line by line and keeps its evidence. `told` are all messages above INFO, warnings included."""

    def __init__(self) -> None:
        self.told: dict[str, None] = {}
        self._now = LogEvidence()
        self._before: LogEvidence | None = None
        self._open: dict[str, TracebackReading] = {}
        self._loose = ""
        self._core_ended = False
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
        if _begins(message):
            if self._now:
                self._before = self._now
            self._now, self._open = LogEvidence(last=self._now.last), {}
            self._core_ended = False
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
            reading.framed(message)
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
        or "server_args" in line
        or "are idle" in line
    )


def _begins(message: str) -> bool:
    """Whether an engine starts with this message."""
    if message.startswith(_BEGINS) or "API server version" in message:
        return True
    return "█" in message and _BANNER.search(message) is not None


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


def tells_error(message: str) -> bool:
    """Whether the words of a message tell an error."""
    small = message.lower()
    for word in _ERRORS:
        if word in small:
            return _ERROR.search(small) is not None
    return False


def _keep(messages: dict[str, Value], message: str, value: Value) -> None:
    messages[message] = value
    if len(messages) > MOST_REPORTS:
        # many at once: to find the first key, a dict steps over each one that was deleted before it
        for oldest in list(islice(messages, MOST_REPORTS // 10)):
            del messages[oldest]


MOST_LINES = 12

MOST_AROUND = 4
"""Lines around the errors that are shown below them."""

MOST_WORK = 4 * 10**8
"""Sum of the squared lengths of messages that are searched: one pattern takes at most a second or two for them."""

WHOLE_TEXT = 4
"""Lines of an exception's text that are shown whole; of a longer one the first, and those that tell an error."""

_COUNTED = re.compile(r"0x[0-9a-f]+|\d+")


def searchable(messages: Sequence[str]) -> tuple[str, ...]:
    """Return the messages, cut to a length at which they are searched in bounded time.

    The time of a search may grow with the square of a message. Only logs with thousands of long messages are cut.
    """
    longest = LONGEST_LINE
    while longest > 1 and sum(min(len(message), longest) ** 2 for message in messages) > MOST_WORK:
        longest //= 2
    return tuple(message[:longest] for message in messages)


def decisive_lines(evidence: LogEvidence, most: int = MOST_LINES) -> tuple[str, ...]:
    """Return at most `most` lines, each once: the exceptions that ended the engine, their causes, the errors.

    The first exception has the frame that raised it. The last MOST_AROUND lines are around the errors:
    just before the first one, and at the end. Without an error, return warnings and debug messages that
    tell one, and the last messages.
    """
    raised = [*evidence.ending(), *evidence.causes(), *evidence.logged()]
    told = [*(raised[0].frame if raised else ()), *(line for one in raised for line in _text(one))]
    told += [*evidence.fatal(), *evidence.errors_before(), *evidence.kernel]
    if not told:
        shown = _each_once([*(evidence.echoes() or evidence.warned), *evidence.opening(), *evidence.end()])
        return tuple(shown[-most:])
    errors = _each_once(told)
    around = _each_once([*errors, *evidence.around()])[len(errors) :]
    kept = around[-MOST_AROUND:]
    return (*errors[: most - len(kept)], *kept)


def _text(raised: Raised) -> Iterator[str]:
    """Yield an exception and the lines below it that explain it."""
    first, *others = raised.text
    yield first
    short = len(others) <= WHOLE_TEXT
    yield from (line for line in others if line.strip() and (short or RAISED.match(line) or tells_error(line)))


def _each_once(lines: Sequence[str]) -> list[str]:
    """Return the lines without those that differ from an earlier one only in their numbers."""
    kept: dict[str, str] = {}
    for line in lines:
        kept.setdefault(_COUNTED.sub("#", line.strip()), line)
    return list(kept.values())
