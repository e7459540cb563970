"""`.dflash/journal.jsonl`: what happened to a deployment, one line of JSON for each event."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE
from dflash_deploy.deployment.front import give_descriptor
from dflash_deploy.errors import DeployError, FileMissing, FileRefused, RolledBack
from dflash_deploy.intake.documents import JournalEvent, parse_document
from dflash_deploy.intake.files import MIB, read_text
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.redact import Redact

# The kinds of events.
Happened = Literal["ready", "failed", "rolled-back", "stopped", "ended", "measured", "key", "settings"]

NAME = "journal.jsonl"

# A longer file becomes `journal.jsonl.1`, and replaces the one before: some ten thousand events are kept.
MOST_BYTES = MIB

LONGEST_TEXT = 1000  # characters of an event's text


def record(deployment: Deployment, event: Happened, command: str, text: str) -> None:
    """Append an event, without secrets. A disk that is full loses it: no command fails because of its journal."""
    with suppress(OSError, ValueError, DeployError):
        record_in(deployment.state, event, command, text, deployment.redact)


def record_in(state: Path, event: Happened, command: str, text: str, redact: Redact) -> None:
    """The same in a state directory, which exists."""
    # a name of a file that is not UTF-8 has surrogates, which JSON has not
    said = " ".join(redact(text).encode(errors="replace").decode().split())[:LONGEST_TEXT]
    with suppress(OSError, ValueError):
        line = JournalEvent(at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", event=event, command=command, text=said)
        _append(state / NAME, f"{line.model_dump_json()}\n".encode())


def ignored(problem: FileRefused) -> None:
    """Do nothing about a file that cannot be read."""


def events(
    deployment: Deployment, since: datetime, refused: Callable[[FileRefused], None] = ignored
) -> Iterator[JournalEvent]:
    """The events from then on, in their order. Lines that a power cut damaged are left out.

    `refused` gets the error of a file that exists and cannot be read, such as one of another user.
    """
    began = f"{since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    for path in (deployment.state / f"{NAME}.1", deployment.state / NAME):
        try:
            lines = read_text(path, limit=2 * MOST_BYTES, links=False, lossy=True).splitlines()
        except FileMissing:
            continue
        except FileRefused as problem:
            refused(problem)
            continue
        for line in lines:
            with suppress(Invalid):
                event = parse_document(line, JournalEvent)
                if event.at >= began:
                    yield event


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE)
    try:
        give_descriptor(path.parent.parent / ".env", descriptor)
        # the lock ends with the descriptor; without it, another command writes at this moment
        only_writer = _locked(descriptor)
        size = os.fstat(descriptor).st_size
        # a power cut may leave half a line, which would damage this one too
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = b"\n" * torn + line
        if os.write(descriptor, line) < len(line) and only_writer:
            os.ftruncate(descriptor, size)
        if size > MOST_BYTES and only_writer and path.stat().st_ino == os.fstat(descriptor).st_ino:
            path.replace(path.with_name(f"{NAME}.1"))
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def engine_work(deployment: Deployment, command: str) -> Iterator[None]:
    """Write a failure of the block into the journal."""
    try:
        yield
    except BaseException as problem:
        record(deployment, "rolled-back" if isinstance(problem, RolledBack) else "failed", command, _said(problem))
        raise


def _said(problem: BaseException) -> str:
    if isinstance(problem, DeployError):
        return problem.message
    if isinstance(problem, KeyboardInterrupt | SystemExit):
        return "interrupted"
    return f"{type(problem).__name__}: {problem}"
