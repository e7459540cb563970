"""dflash-deploy on a host: called over SSH, its documents read as those of a stranger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dflash_deploy.errors import (
    BadInput,
    BenchmarkMissed,
    DeployError,
    DownloadFailed,
    EngineNotReady,
    ExitCode,
    HostUnfit,
    HostUnprepared,
    PreflightRefused,
    SmokeTestFailed,
)
from dflash_deploy.fleet import problems, scripts
from dflash_deploy.fleet.file import FleetHost
from dflash_deploy.fleet.session import MOST_OUTPUT, Input, Session
from dflash_deploy.intake.answers import ForeignDocument, read_document
from dflash_deploy.intake.invalid import Invalid

LONGEST = 2000
"""Characters of a text from a host that are kept."""

BUSY = "is in use by another command"
"""In the message of a host where another command holds the deployment directory."""

NO_DEPLOYMENT = "no deployment found in"
"""The beginning of the message of a host whose directory has no deployment."""

NO_ROUTER = "the router does not run"
"""In the message of a host that has no router to send requests elsewhere."""

Text = Annotated[str, AfterValidator(lambda text: text[:LONGEST])]
Number = Annotated[float, Field(ge=0, lt=1e12)]
Bytes = Annotated[int, Field(ge=0, lt=2**60)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[int, Field(ge=0, lt=2**53)]


class RemoteCheck(ForeignDocument):
    """One check of `test` on a host."""

    name: Text
    status: Text
    got: Text = ""
    hint: Text = ""


class RemoteUsage(ForeignDocument):
    """What one key used on a host."""

    name: Text
    requests: Annotated[dict[Text, Tokens], Field(max_length=100)]
    prompt_tokens: Tokens
    generation_tokens: Tokens
    in_flight: Count


class RemoteData(ForeignDocument):
    """What the documents of `up`, `restart`, `status`, `test`, `down` and `keys usage` have; each has a part of it."""

    endpoint: Text | None = None
    model: Text | None = None
    state: Text | None = None
    runtime: Text | None = None
    changed: bool | list[Text] | None = None
    stopped: bool | None = None
    seconds: Number | None = None
    tokens_per_second: Number | None = None
    acceptance_length: Number | None = None
    restarts: Count | None = None
    missing_bytes: Bytes | None = None
    bytes_per_second: Number | None = None
    engines: Annotated[list[Text], Field(max_length=1000)] = Field(default_factory=list)
    left_out: Annotated[dict[Text, Text], Field(max_length=100)] = Field(default_factory=dict)
    lock: Annotated[str, Field(max_length=MOST_OUTPUT)] = ""
    engine: Text | None = None
    cause: Text | None = None
    problem: Text | None = None
    checks: Annotated[list[RemoteCheck], Field(max_length=1000)] = Field(default_factory=list)
    keys: Annotated[list[RemoteUsage], Field(max_length=2000)] = Field(default_factory=list)


class RemoteError(ForeignDocument):
    """Why a command on a host failed."""

    code: Annotated[int, Field(ge=1, le=255)]
    message: Text
    hint: Text = ""


class RemoteDocument(ForeignDocument):
    """The document of a command on a host."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    status: Literal["ok", "failed"]
    data: RemoteData = RemoteData()
    error: RemoteError | None = None


class RemoteProgress(ForeignDocument):
    """A line of progress of a start on a host."""

    event: Literal["progress"]
    phase: Text
    elapsed: Number = 0.0
    last_line: Text = ""
    done: Count = 0
    total: Count = 0


OnProgress = Callable[[RemoteProgress], None]

_RAISED: Mapping[int, type[DeployError]] = {
    ExitCode.USAGE: BadInput,
    ExitCode.PREFLIGHT: PreflightRefused,
    ExitCode.DOWNLOAD: DownloadFailed,
    ExitCode.NOT_READY: EngineNotReady,
    ExitCode.SMOKE_TEST: SmokeTestFailed,
    ExitCode.BENCHMARK: BenchmarkMissed,
}


def call(
    session: Session,
    environment: str,
    *args: str,
    seconds: float | None = None,
    on_progress: OnProgress | None = None,
    stdin: Input | None = None,
) -> RemoteDocument:
    """Run a command of dflash-deploy on a host, and return its document, also if it failed.

    Raises HostUnfit if it printed none, and what `Session.run` raises.
    """
    lines = _Lines(on_progress)
    words = scripts.run(session.host, environment, *args)
    output = session.run(words, seconds=seconds, on_line=lines.take, stdin=stdin)
    text = lines.rest(output.out)
    if not text.strip():
        raise problems.script_failure(session.host, output.code, output.err)
    try:
        return read_document(text, RemoteDocument)
    except Invalid as problem:
        raise HostUnfit(
            f"{session.host.name}: the output of `{args[0]}` {problem}",
            hint="check that the shell's start-up files on the host print nothing",
        ) from None


def error_of(host: FleetHost, document: RemoteDocument) -> DeployError | None:
    """The error of a command on a host, with the host's name; `None` if it succeeded."""
    found = document.error
    if found is None:
        return None
    if problems.FULL.search(found.message):
        return problems.full_disk(host)
    if found.message.startswith(NO_DEPLOYMENT):
        return HostUnprepared(f"{host.name}: {found.message}", hint="`dflash-deploy fleet up` makes it")
    raised = _RAISED.get(found.code, DeployError)
    return raised(f"{host.name}: {found.message}", hint=found.hint)


class _Lines:
    """Passes on lines of progress, and keeps the others: a whole document may have many lines."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._kept = bytearray()

    def take(self, line: bytes) -> None:
        """One line. Raises OverflowError if too many are kept."""
        if line.startswith(b'{"event": "progress"'):
            if self._on_progress is not None:
                try:
                    self._on_progress(read_document(line, RemoteProgress))
                except Invalid:
                    return
            return
        self._kept += line + b"\n"
        if len(self._kept) > 4 * 2**20:
            raise OverflowError

    def rest(self, unfinished: str) -> str:
        """The document: all that was kept and the last line without an end."""
        return self._kept.decode("utf-8", "replace") + unfinished
