"""Runs commands on hosts with the system's SSH client, among them dflash-deploy itself.

Command lines are lists of arguments, and scripts for the POSIX shell run on a host before dflash-deploy is there. No
argument has a secret: files travel on standard input. Each call makes a connection of its own. A shared one
(ControlMaster) would save about 0.1 s, but its process outlives the command, and if it hangs all calls hang with it.
Failures of a host are named from the exit code and the messages of `ssh` and of the scripts. Output is bounded and of
any content, and the documents of dflash-deploy on a host are read as a stranger's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Annotated, Literal

from pydantic import AfterValidator, Field

from dflash_deploy import __version__
from dflash_deploy.deployment.directory import FLEET_FILE
from dflash_deploy.errors import (
    BadInput,
    BenchmarkMissed,
    DeployError,
    DownloadFailed,
    EngineNotReady,
    ExitCode,
    HostNotTrusted,
    HostUnfit,
    HostUnprepared,
    HostUnreachable,
    Interrupted,
    PreflightRefused,
    SmokeTestFailed,
)
from dflash_deploy.features.fleet.file import Fleet, FleetHost
from dflash_deploy.features.fleet.scripts import (
    ABSENT,
    DAMAGED,
    NO_DIRECTORY,
    NO_PIP,
    NO_PYTHON,
    NO_TOOL,
    OLDEST_PYTHON,
    OTHER_VERSION,
    receive,
    run,
)
from dflash_deploy.intake.answers import ForeignDocument, read_document
from dflash_deploy.intake.parse import Invalid, printable

CONNECT_TIMEOUT = 10
"""Seconds for a connection."""

ALIVE_INTERVAL, ALIVE_COUNT = 5, 3
"""After this many questions without an answer, one each interval in seconds, a connection counts as lost."""

OPTIONS: tuple[str, ...] = (
    # never ask: for a password, a passphrase or an unknown key
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    # the host gets nothing of this machine but the command and its input
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "ControlMaster=no",
    "ControlPath=none",
    f"ConnectTimeout={CONNECT_TIMEOUT}",
    f"ServerAliveInterval={ALIVE_INTERVAL}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    # the messages that `problems` reads
    "LogLevel=ERROR",
)
"""They win over the configuration of the user, because `ssh` takes the first value that it finds."""


def ssh_command(fleet: Fleet, host: FleetHost, words: Sequence[str]) -> list[str]:
    """Return the command that runs `words` on a host. `ssh` joins words with blanks, so they are quoted for a shell."""
    config = ["-F", fleet.ssh_config] if fleet.ssh_config else []
    options = [part for option in OPTIONS for part in ("-o", option)]
    port = ["-p", str(host.port)] if host.port else []
    user = ["-l", host.user] if host.user else []
    return ["ssh", "-T", *config, *options, *port, *user, "--", host.address, shlex.join(words)]


SSH_FAILED = 255
"""The exit code of `ssh` for its own failures."""

SAME_COMMAND = "run the same command again: it continues where it stopped"

FULL = re.compile(r"No space left on device|Disk quota exceeded|ENOSPC", re.IGNORECASE)

_NO_INDEX = re.compile(r"No matching distribution found|Could not find a version that satisfies|No solution found")

_LOST = re.compile(r"Timeout, server .* not responding|Connection reset|Broken pipe|closed by remote host")


def last_line(text: str) -> str:
    """The last line of a text from a host that says something, for a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else "no message"


def reached_by(host: FleetHost) -> str:
    """A host as `ssh` and `ssh-keyscan` take it on a command line."""
    return f"{f'-p {host.port} ' if host.port else ''}{f'{host.user}@' if host.user else ''}{host.address}"


def connection_failure(host: FleetHost, err: str) -> DeployError:
    """The error for a failure of `ssh` itself, from what it printed."""
    name, way = host.name, reached_by(host)
    if "HOST IDENTIFICATION HAS CHANGED" in err:
        return HostNotTrusted(
            f"{name}: the SSH key of {host.address} has changed",
            hint=f"if it was reinstalled, remove the old key with `ssh-keygen -R {host.address}`, then run `ssh {way}` "
            "and compare the new one; otherwise another machine answers in its place",
        )
    if "Host key verification failed" in err or "host key is known" in err:
        return HostNotTrusted(
            f"{name}: the SSH key of {host.address} is not known on this machine",
            hint=f"run `ssh {way}` once, and compare the key that it shows with the one on the host",
        )
    if "Permission denied" in err or "Too many authentication failures" in err:
        return HostNotTrusted(
            f"{name}: {host.address} rejects the login: {last_line(err)}",
            hint=f"copy your public key with `ssh-copy-id {way}`, or load it with `ssh-add`",
        )
    if "Could not resolve hostname" in err:
        return HostUnreachable(
            f"{name}: the host name {host.address} cannot be resolved", hint=f"correct its address in {FLEET_FILE}"
        )
    if _LOST.search(err):
        return HostUnreachable(
            f"{name}: the connection to {host.address} was lost: {last_line(err)}",
            hint=f"check the cable and the network; {SAME_COMMAND}",
        )
    return HostUnreachable(
        f"{name}: {host.address} cannot be reached over SSH: {last_line(err)}",
        hint=f"check that it runs, and that `ssh {way}` works; {SAME_COMMAND}",
    )


def late(host: FleetHost, seconds: float) -> DeployError:
    """The error for a host that took too long."""
    return HostUnreachable(
        f"{host.name}: no answer within {seconds:g} s", hint=f"check its load with `ssh {reached_by(host)} uptime`"
    )


def no_client() -> DeployError:
    """The error for a machine without an SSH client."""
    return PreflightRefused("`ssh` is not installed on this machine", hint="apt-get install openssh-client")


def full_disk(host: FleetHost) -> DeployError:
    """The error for a host whose disk is full."""
    return HostUnfit(
        f"{host.name}: its disk is full",
        hint=f"free space there (`ssh {reached_by(host)} df -h`); {SAME_COMMAND}",
    )


def script_failure(host: FleetHost, code: int, err: str) -> DeployError:
    """The error for a script, or dflash-deploy on the host, that ended with `code` without a document."""
    if FULL.search(err):
        return full_disk(host)
    named = _OF_SCRIPTS.get(code)
    if named is not None:
        message, hint = named(host, err)
        kind = HostUnprepared if code == ABSENT and not host.program else HostUnfit
        return kind(f"{host.name}: {message}", hint=hint)
    return HostUnfit(
        f"{host.name}: a command ended with exit code {code}: {last_line(err)}",
        hint=f"check that `ssh {reached_by(host)} true` prints nothing",
    )


def _absent(host: FleetHost, err: str) -> tuple[str, str]:
    if host.program:
        return f"{host.program} cannot be executed", f"install dflash-deploy {__version__} there, or correct `program`"
    return f"dflash-deploy {__version__} is not installed there", "`dflash-deploy fleet up` installs it"


def _other(host: FleetHost, err: str) -> tuple[str, str]:
    has = last_line(err).removeprefix("other version: ").removeprefix("dflash-deploy ")
    return (
        f"it has dflash-deploy {has}, this machine has {__version__}",
        f"install {__version__} there, or remove `program` from {FLEET_FILE}: then `fleet up` installs it",
    )


def _no_pip(host: FleetHost, err: str) -> tuple[str, str]:
    if _NO_INDEX.search(err):
        return (
            f"its package index does not have all packages: {last_line(err)}",
            f"name a wheel of dflash-deploy as `install.wheel` in {FLEET_FILE} (`make dist` builds it); its "
            "dependencies come from the index of the host",
        )
    return f"dflash-deploy cannot be installed there: {last_line(err)}", SAME_COMMAND


_OF_SCRIPTS: Mapping[int, Callable[[FleetHost, str], tuple[str, str]]] = {
    ABSENT: _absent,
    OTHER_VERSION: _other,
    DAMAGED: lambda host, err: ("a file arrived incomplete", SAME_COMMAND),
    NO_TOOL: lambda host, err: ("flock or sha256sum is missing", "apt-get install util-linux coreutils"),
    NO_DIRECTORY: lambda host, err: (
        f"a file cannot be written: {last_line(err)}",
        f"check the owner and the space of `directory` in {FLEET_FILE}",
    ),
    NO_PYTHON: lambda host, err: (
        f"it has no Python {OLDEST_PYTHON} or newer with venv: {last_line(err)}",
        "install uv, or: apt-get install python3-venv",
    ),
    NO_PIP: _no_pip,
}


MOST_OUTPUT = 4 * 2**20
"""Bytes of standard output that a command on a host may print."""

MOST_MESSAGES = 64 * 2**10
"""Bytes of standard error that are kept: the last ones."""

CHUNK = 64 * 2**10

SHORT = 60.0
"""Seconds for a command that only looks, or writes a small file."""

OnLine = Callable[[bytes], None]
"""Takes each whole line of standard output, without its end."""


@dataclass(frozen=True)
class Output:
    """What a command on a host printed, and how it ended."""

    code: int
    out: str
    err: str


class Calls:
    """The SSH clients that run now, so that they can be ended all together."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def start(self, command: Sequence[str], stdin: bytes | None) -> subprocess.Popen[bytes]:
        """Start a client. Raises Interrupted after `end`, FileNotFoundError without a client."""
        with self._guard:
            if self._ended:
                raise Interrupted
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C of the terminal reaches this program, which ends the clients itself
                start_new_session=True,
            )
            self._running.add(process)
            return process

    def done(self, process: subprocess.Popen[bytes]) -> None:
        """Forget a client that has ended."""
        with self._guard:
            self._running.discard(process)

    def end(self) -> None:
        """Kill all clients, and let none start again. What they started on the hosts may continue there."""
        with self._guard:
            self._ended = True
            for process in self._running:
                kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a client with its children, such as a ProxyCommand."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Session:
    """Commands on one host."""

    def __init__(self, fleet: Fleet, host: FleetHost, calls: Calls) -> None:
        self.fleet = fleet
        self.host = host
        self._calls = calls

    def run(
        self,
        words: Sequence[str],
        *,
        seconds: float | None = SHORT,
        stdin: bytes | None = None,
        on_line: OnLine | None = None,
    ) -> Output:
        """Run a command on the host and return its output. `on_line` takes the lines instead of the output.

        `seconds` is `None` for a command without a limit: then the connection is watched, not the time. Raises
        HostUnreachable and HostNotTrusted if SSH fails or it takes longer, HostUnfit if it prints too much.
        """
        try:
            process = self._calls.start(ssh_command(self.fleet, self.host, words), stdin)
        except FileNotFoundError:
            raise no_client() from None
        try:
            output = _Pipes(process, stdin, on_line).read(seconds)
        except subprocess.TimeoutExpired:
            raise late(self.host, seconds or 0.0) from None
        except OverflowError:
            said = f"{self.host.name}: a command printed more than {MOST_OUTPUT} bytes"
            raise HostUnfit(said, hint="check the shell's start-up files on the host") from None
        finally:
            kill(process)
            process.wait()
            self._calls.done(process)
        if output.code == SSH_FAILED:
            raise connection_failure(self.host, output.err)
        return output

    def require(self, words: Sequence[str], *, seconds: float | None = SHORT, stdin: bytes | None = None) -> str:
        """Return the output of a script that must succeed. Raises HostUnfit, and what `run` raises."""
        output = self.run(words, seconds=seconds, stdin=stdin)
        if output.code:
            raise script_failure(self.host, output.code, output.err)
        return output.out

    def send(self, content: bytes, target: str, *, seconds: float | None = SHORT) -> bool:
        """Write a file on the host, mode 0600, whole or not at all; return whether it changed. Raises as `require`."""
        digest = hashlib.sha256(content).hexdigest()
        return self.require(receive(target, digest), seconds=seconds, stdin=content).endswith("written\n")


class _Pipes:
    """Feeds and reads the pipes of a process, each in a thread."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes | None, on_line: OnLine | None) -> None:
        self._process = process
        self._stdin = stdin
        self._on_line = on_line
        self._out = bytearray()
        self._err = bytearray()
        self._overflow = False
        self._failure: BaseException | None = None

    def read(self, seconds: float | None) -> Output:
        """Return all output. Raises TimeoutExpired, OverflowError, and what the taker of lines raises."""
        threads = [threading.Thread(target=work, daemon=True) for work in (self._read_out, self._read_err, self._feed)]
        for thread in threads:
            thread.start()
        ends = None if seconds is None else time.monotonic() + seconds
        code = self._process.wait(seconds)
        for thread in threads:
            thread.join(None if ends is None else max(ends - time.monotonic(), 1.0))
        if self._failure is not None:
            raise self._failure
        if self._overflow:
            raise OverflowError
        return Output(code, self._out.decode("utf-8", "replace"), self._err.decode("utf-8", "replace"))

    def _feed(self) -> None:
        pipe = self._process.stdin
        if pipe is None or self._stdin is None:
            return
        # a host that refuses the input says why on standard error
        with contextlib.suppress(OSError):
            pipe.write(self._stdin)
        with contextlib.suppress(OSError):
            pipe.close()

    def _read_err(self) -> None:
        for block in _blocks(self._process.stderr):
            self._err += block
            del self._err[:-MOST_MESSAGES]

    def _read_out(self) -> None:
        try:
            self._take_all()
        except BaseException as problem:
            self._failure = problem
            kill(self._process)

    def _take_all(self) -> None:
        total = 0
        for block in _blocks(self._process.stdout):
            total += len(block)
            self._out += block
            if len(self._out) > MOST_OUTPUT or total > 64 * MOST_OUTPUT:
                self._overflow = True
                kill(self._process)
                return
            if self._on_line is not None:
                *lines, rest = self._out.split(b"\n")
                self._out = bytearray(rest)
                for line in lines:
                    self._on_line(bytes(line))


def _blocks(pipe: IO[bytes] | None) -> Iterator[bytes]:
    """The bytes of a pipe as they arrive; it is closed after the last ones."""
    if pipe is None:
        return
    with pipe:
        while block := os.read(pipe.fileno(), CHUNK):
            yield block


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
Count = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[int, Field(ge=0, lt=2**53)]


class RemoteCheck(ForeignDocument):
    """One check of `test` on a host."""

    name: Text
    status: Text
    got: Text = ""
    hint: Text = ""


class RemoteData(ForeignDocument):
    """What the documents of `up`, `restart`, `status`, `test` and `down` have; each has a part of it."""

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
    engines: Annotated[list[Text], Field(max_length=1000)] = Field(default_factory=list)
    left_out: Annotated[dict[Text, Text], Field(max_length=100)] = Field(default_factory=dict)
    engine: Text | None = None
    cause: Text | None = None
    problem: Text | None = None
    checks: Annotated[list[RemoteCheck], Field(max_length=1000)] = Field(default_factory=list)


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
    stdin: bytes | None = None,
) -> RemoteDocument:
    """Run a command of dflash-deploy on a host, and return its document, also if it failed.

    Raises HostUnfit if it printed none, and what `Session.run` raises.
    """
    lines = _Lines(on_progress)
    words = run(session.host, environment, *args)
    output = session.run(words, seconds=seconds, on_line=lines.take, stdin=stdin)
    text = lines.rest(output.out)
    if not text.strip():
        raise script_failure(session.host, output.code, output.err)
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
    if FULL.search(found.message):
        return full_disk(host)
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
