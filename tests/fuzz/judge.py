"""What may come of a hostile input: a value, or an error of the project in one short line without secrets."""

import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from types import FrameType

from dflash_deploy.client.answers import EndpointError
from dflash_deploy.errors import DeployError, ExitCode
from tests.fuzz.hostile import SECRET

PATIENCE = 60  # seconds of one input before it counts as a hang; usual are some milliseconds
MOST_MEMORY = 500 * 2**20  # bytes of the whole process
LONGEST = 2500  # characters of an error: `cli.visible` shows 2,000 of the message, and names the length

# `unexpected`: an error that is not the project's, or its code 1. `lost`: a file of the deployment is gone or
# changed. `message`: an error is long, or has several lines or control characters.
CLASSES = ("unexpected", "hang", "memory", "secret", "lost", "message")


class Hang(BaseException):
    """Raised inside an input that takes too long; a reader catches no BaseException."""


class Lost(Exception):
    """Raised by a reader if a file was lost or changed that had to stay."""


class Shown(Exception):
    """Raised by a reader if a value shows a secret."""


@dataclass(frozen=True)
class Finding:
    """One input with an outcome that is not allowed."""

    kind: str
    problem: str
    said: str
    content: bytes


@dataclass
class Count:
    """The inputs of one kind: how many different ones, the slowest in CPU seconds, and what was found."""

    kind: str
    seen: set[bytes] = field(default_factory=set)
    refused: int = 0
    slowest: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def row(self) -> dict[str, object]:
        """The figures as JSON."""
        by_class = {name: sum(finding.problem == name for finding in self.findings) for name in CLASSES}
        return {
            "kind": self.kind,
            "inputs": len(self.seen),
            "refused": self.refused,
            "slowest": self.slowest,
            **by_class,
        }


def judge(count: Count, content: bytes, read: Callable[[bytes], object]) -> None:
    """Read one input and count what came of it. An input that was read before is left out."""
    mark = sha256(content).digest()[:16]
    if mark in count.seen:
        return
    count.seen.add(mark)
    before, began = _peak(), time.process_time()
    try:
        with guarded():
            read(content)
    except (DeployError, EndpointError) as refusal:
        count.refused += 1
        found = list(problems_of(refusal))
    except Hang:
        found = [("hang", traceback.format_exc(limit=-4))]
    except Lost as loss:
        found = [("lost", str(loss))]
    except Shown as secret:
        found = [("secret", str(secret))]
    except (Exception, RecursionError, MemoryError):
        found = [("unexpected", traceback.format_exc(limit=-6))]
    else:
        found = []
    count.slowest = max(count.slowest, time.process_time() - began)
    if _peak() > max(before, MOST_MEMORY):
        found.append(("memory", f"{_peak() >> 20} MiB"))
    count.findings += [Finding(count.kind, problem, said, content) for problem, said in found]


def problems_of(refusal: DeployError | EndpointError) -> Iterator[tuple[str, str]]:
    """What is not allowed about an error."""
    texts = [str(refusal)] + ([refusal.hint] if isinstance(refusal, DeployError) else [])
    if isinstance(refusal, DeployError) and refusal.exit_code is ExitCode.UNEXPECTED:
        yield "unexpected", f"code 1: {texts}"
    for text in texts:
        if not text or len(text) > LONGEST or len(text.splitlines()) > 1:
            yield "message", f"{len(text)} characters, {len(text.splitlines())} lines: {text[:300]!r}"
        if SECRET in text:
            yield "secret", text[:300]


@contextmanager
def guarded() -> Iterator[None]:
    """Raise Hang inside the block after PATIENCE seconds. For the main thread."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {PATIENCE} s")

    earlier = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def _peak() -> int:
    """Bytes of memory that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
