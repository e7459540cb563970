"""What a log has as evidence of the engine's end, by rank: exceptions, errors, plain lines, and echoes of them.

The key lines of an unknown failure are the first exception and the errors, not the last twenty lines of the log.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from dflash_deploy.diagnosis.lines import LONGEST_LINE, QUIET, parsed

RAISED = re.compile(
    r"(?:- )?(?!\s)[A-Za-z_][\w.]{0,120}"
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Fault|OutOfResources|Failed|Expired)(?::|$)"
)
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

LAST_MESSAGES = 10  # messages of the log's end that are kept whatever they say
MOST_KERNEL = 200  # last lines of the kernel that are kept

# Faults that the kernel and NVIDIA's driver report.
_KERNEL = re.compile(
    r"NVRM: .{0,80}(?:Xid|fallen off|[Ff]ailed|[Tt]imeout|[Oo]ut of memory)|Memory cgroup out of memory"
    r"|[Oo]ut of memory: Killed process|oom-kill:"
)

# Messages that only report that another process, step or request failed.
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

_REFUSED_CONFIG = re.compile(r"validation errors? for \w{1,60}(?:Config|Args|Scheme)$")

MOST_REFUSED = 2  # lines of pydantic about one value: its field, and why it is refused. Only the first value is shown.
_INVALID_REQUEST = re.compile(r"validation errors? for \w{0,60}Request\b")

_ASSERTION = re.compile(r"Assertion [`'].{1,300}['`] failed|[Kk]ernel only supports sm")

# What the others raise when one of several processes is gone.
_COLLATERAL = re.compile(
    r"Connection (?:reset|refused|closed) by peer|ConnectionResetError|DistBackendError|DistNetworkError|DistStoreError"
    r"|NCCL error|ProcessGroupNCCL|Gloo connectFullMesh failed|zmq\.error|TimeoutError|timed out"
)


@dataclass
class Raised:
    """One exception: where it was raised, its text, and whether another one was raised from it.

    `reported`: a row of the catalog says that such an exception only reports another failure. `loading`: a function
    that loads weights raised it, or called what did. `combines`: so did this frame, in which a drafter reads its
    target; `via` names other code that led to it: the drafter's, or a compiled graph.
    """

    process: str
    text: list[str]
    frame: tuple[str, ...] = ()
    cause: bool = False
    reported: bool = False
    loading: bool = False
    combines: str = ""
    via: str = ""

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

    def of_nccl(self) -> list[str]:
        """What NCCL itself wrote, with the error of the system, before an exception that only names NCCL."""
        return [message for message in (*self.errors, *self.warned, *self.plain) if "NCCL WARN" in message]

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
        if one.via:
            yield f"{one.text[0]} ({one.via})"
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


MOST_LINES = 12

MOST_AROUND = 4  # lines around the errors that are shown below them

# Sum of the squared lengths of messages that are searched: one pattern takes at most a second or two for them.
MOST_WORK = 4 * 10**8

# Lines of an exception's text that are shown whole; of a longer one the first, and those that tell an error.
WHOLE_TEXT = 4

_COUNTED = re.compile(r"0x[0-9a-f]+|\d+")


def searchable(messages: Sequence[str]) -> tuple[str, ...]:
    """Return the messages, cut to a length at which they are searched in bounded time.

    The time of a search may grow with the square of a message. Only logs with thousands of long messages are cut.
    """
    longest = LONGEST_LINE
    while longest > 1 and sum(min(len(message), longest) ** 2 for message in messages) > MOST_WORK:
        longest //= 2
    return tuple(message[:longest] for message in messages)


def decisive_lines(evidence: LogEvidence) -> tuple[str, ...]:
    """Return at most MOST_LINES lines, each once: the exceptions that ended the engine, their causes, the errors.

    The first exception has the frame that raised it. The last MOST_AROUND lines are around the errors:
    just before the first one, and at the end. Without an error, return warnings and debug messages that
    tell one, and the last messages.
    """
    raised = [*evidence.ending(), *evidence.causes(), *evidence.logged()]
    told = [*(raised[0].frame if raised else ()), *(line for one in raised for line in _text(one))]
    told += [*evidence.fatal(), *evidence.errors_before(), *evidence.kernel]
    if not told:
        shown = _each_once([*(evidence.echoes() or evidence.warned), *evidence.opening(), *evidence.end()])
        return tuple(shown[-MOST_LINES:])
    errors = _each_once(told)
    around = _each_once([*errors, *evidence.around()])[len(errors) :]
    kept = around[-MOST_AROUND:]
    return (*errors[: MOST_LINES - len(kept)], *kept)


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


def tells_error(message: str) -> bool:
    """Whether the words of a message tell an error."""
    small = message.lower()
    for word in _ERRORS:
        if word in small:
            return _ERROR.search(small) is not None
    return False
