"""Runs commands on hosts with the system's SSH client. What comes back is bounded, and of any content."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from dflash_deploy.errors import HostUnfit, Interrupted
from dflash_deploy.fleet import problems, scripts
from dflash_deploy.fleet.file import Fleet, FleetHost
from dflash_deploy.fleet.ssh import ssh_command

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


class Input(Protocol):
    """The standard input of a command on a host."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, empty at the end. It may wait."""


class Calls:
    """The SSH clients that run now, so that they can be ended all together."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def start(self, command: Sequence[str], stdin: Input | None) -> subprocess.Popen[bytes]:
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
        stdin: Input | None = None,
        on_line: OnLine | None = None,
    ) -> Output:
        """Run a command on the host and return its output. `on_line` takes the lines instead of the output.

        `seconds` is `None` for a command without a limit: then the connection is watched, not the time. Raises
        HostUnreachable and HostNotTrusted if SSH fails or it takes longer, HostUnfit if it prints too much.
        """
        try:
            process = self._calls.start(ssh_command(self.fleet, self.host, words), stdin)
        except FileNotFoundError:
            raise problems.no_client() from None
        try:
            output = _Pipes(process, stdin, on_line).read(seconds)
        except subprocess.TimeoutExpired:
            raise problems.late(self.host, seconds or 0.0) from None
        except OverflowError:
            said = f"{self.host.name}: a command printed more than {MOST_OUTPUT} bytes"
            raise HostUnfit(said, hint="check the shell's start-up files on the host") from None
        finally:
            kill(process)
            process.wait()
            self._calls.done(process)
        if output.code == problems.SSH_FAILED:
            raise problems.connection_failure(self.host, output.err)
        return output

    def require(self, words: Sequence[str], *, seconds: float | None = SHORT, stdin: Input | None = None) -> str:
        """Return the output of a script that must succeed. Raises HostUnfit, and what `run` raises."""
        output = self.run(words, seconds=seconds, stdin=stdin)
        if output.code:
            raise problems.script_failure(self.host, output.code, output.err)
        return output.out

    def send(self, content: bytes, target: str, *, seconds: float | None = SHORT) -> bool:
        """Write a file on the host, mode 0600, whole or not at all; return whether it changed. Raises as `require`."""
        digest = hashlib.sha256(content).hexdigest()
        return self.require(scripts.receive(target, digest), seconds=seconds, stdin=io.BytesIO(content)).endswith(
            "written\n"
        )


class _Pipes:
    """Feeds and reads the pipes of a process, each in a thread."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: Input | None, on_line: OnLine | None) -> None:
        self._process = process
        self._stdin = stdin
        self._on_line = on_line
        self._out = bytearray()
        self._err = bytearray()
        self._overflow = False
        self._failure: BaseException | None = None

    def read(self, seconds: float | None) -> Output:
        """Return all output. Raises TimeoutExpired, OverflowError, and what the taker of lines raises."""
        *readers, feeder = (
            threading.Thread(target=work, daemon=True) for work in (self._read_out, self._read_err, self._feed)
        )
        for thread in (*readers, feeder):
            thread.start()
        ends = None if seconds is None else time.monotonic() + seconds
        code = self._process.wait(seconds)
        # an input that has not ended is of no use to a process that has
        for thread in readers:
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
            while block := self._stdin.read(CHUNK):
                pipe.write(block)
                pipe.flush()
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
