"""A process that has imported the package and forks for each command, which starts in 0.05 s instead of a second.

Each command is a process of its own all the same, with its own arguments, directory, environment, descriptors, signals
and exit code. What the interpreter itself reads at its start cannot differ: `fits` says if an environment allows it.
How long a start takes and what it imports is the subject of tests/cli/test_help.py, which starts the interpreter.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# Beginnings of the variables that are read when a process starts, and not again.
AT_START = ("PYTHON", "LC_", "LANG", "MALLOC_", "LD_", "TZ")

READ_AT_IMPORT = ("huggingface_hub", "typer.rich_utils")  # modules that read the environment when they are imported

# Of the package: what changes the process that imports it, or needs an engine.
NOT_IMPORTED = ("dflash_deploy.__main__", "dflash_deploy.serve.cpu_site", "dflash_deploy.serve.nvfp4")


class CommandServer:
    """The server, and the calls to it. It ends with the process that made it."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        """Of all commands so far. They are no children of this process."""
        self._environment = _at_start(os.environ)
        self._place = tempfile.TemporaryDirectory(prefix="dflash-commands-")
        self._path = f"{self._place.name}/socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._path)
        listener.listen(64)
        with listener:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno()), str(os.getpid())],
                cwd=ROOT,
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the server. Commands that run go on."""
        self._process.terminate()
        self._process.wait()
        self._place.cleanup()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a command with this environment can be a fork of the server."""
        return _at_start(environment) == self._environment

    def run(
        self, args: tuple[str, ...], at: Path, environment: Mapping[str, str], timeout: float, first: str = ""
    ) -> tuple[int, str, str]:
        """The exit code, the standard output and the standard error of a command that ran to its end.

        `first` is code that the command's process runs first, to replace a part of itself. Raises
        subprocess.TimeoutExpired, after the command was killed.
        """
        pipes = [os.pipe() for _ in range(2)]
        with socket.socket(socket.AF_UNIX) as call:
            call.connect(self._path)
            asked = {"args": args, "at": str(at), "environment": dict(environment), "first": first}
            request = json.dumps(asked).encode()
            writers = array.array("i", [writer for _, writer in pipes])
            call.sendmsg([len(request).to_bytes(4)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, writers)])
            call.sendall(request)
            for _, writer in pipes:
                os.close(writer)
            try:
                out, err, status = _read([reader for reader, _ in pipes], call, timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired(["dflash-deploy", *args], timeout) from None
            finally:
                for reader, _ in pipes:
                    os.close(reader)
        code, cpu_seconds = json.loads(status)
        self.cpu_seconds += cpu_seconds
        return code, out.decode(), err.decode()


@cache
def command_server() -> CommandServer:
    """The one of this process."""
    return CommandServer()


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


def _read(readers: list[int], call: socket.socket, timeout: float) -> list[bytes]:
    """All that arrives on the three until their ends."""
    arrived: dict[int, list[bytes]] = {reader: [] for reader in [*readers, call.fileno()]}
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as open_ones:
        for reader in arrived:
            open_ones.register(reader, selectors.EVENT_READ)
        while open_ones.get_map():
            ready = open_ones.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                piece = os.read(key.fd, 1 << 16)
                arrived[key.fd].append(piece)
                if not piece:
                    open_ones.unregister(key.fd)
    return [b"".join(pieces) for pieces in arrived.values()]


# what follows runs in the server and in its forks


def serve(listener: socket.socket, owner: int) -> None:
    """Fork for each call until the owner ends."""
    ends = os.pidfd_open(owner)
    with selectors.DefaultSelector() as events:
        events.register(listener, selectors.EVENT_READ)
        events.register(ends, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in events.select()):
            call, _ = listener.accept()
            with call:
                if os.fork() == 0:
                    listener.close()
                    os.close(ends)
                    os._exit(_answer(call))


def _answer(call: socket.socket) -> int:
    """Run the command of one call in a fork of its own, and send its status; a call that is given up ends it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, descriptors, _, _ = socket.recv_fds(call, 4, 2)
    request = b""
    while len(request) < int.from_bytes(size):
        request += call.recv(int.from_bytes(size) - len(request))
    pid = os.fork()
    if pid == 0:
        call.close()
        _become(json.loads(request), *descriptors)
    for one in descriptors:
        os.close(one)
    ended = os.pidfd_open(pid)
    with selectors.DefaultSelector() as events:
        events.register(ended, selectors.EVENT_READ)
        events.register(call, selectors.EVENT_READ)
        if all(key.fd != ended for key, _ in events.select()):
            os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    # a call that was given up hears nothing
    with contextlib.suppress(BrokenPipeError):
        call.sendall(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]).encode())
    return 0


def _become(asked: dict[str, Any], out: int, err: int) -> None:
    """Be the command, in a process that has just been forked."""
    os.chdir(asked["at"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, max(out, err) + 1)
    sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
    # usage errors begin as those of `python -m dflash_deploy`
    sys.modules["__main__"].__package__ = "dflash_deploy"
    sys.argv = [str(ROOT / "dflash_deploy" / "__main__.py"), *asked["args"]]
    code = 1
    try:
        exec(asked["first"], {})
        import_module("dflash_deploy.cli.app").main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    except BaseException:
        traceback.print_exc()
    # as the interpreter ends: first what was registered, then the streams, whose failure has a code of its own
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    sys.stderr.flush()
    os._exit(code)


def _stream(descriptor: int, errors: str) -> io.TextIOWrapper:
    """A standard stream as the interpreter makes it for a pipe."""
    raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    return io.TextIOWrapper(raw, errors=errors, write_through=unbuffered, line_buffering=descriptor == 2 or unbuffered)


def main(listener: int, owner: int) -> None:
    """Import what commands import, and serve."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for module in pkgutil.walk_packages([str(ROOT / "dflash_deploy")], "dflash_deploy."):
        if not module.name.startswith(NOT_IMPORTED):
            import_module(module.name)
    wrong = sorted(set(READ_AT_IMPORT) & set(sys.modules))
    assert not wrong, f"imported before a command has its environment: {wrong}"
    import_module("dflash_deploy.catalog.load").load_catalog()
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=listener), owner)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
