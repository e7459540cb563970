"""`python -m tools.kills.nursery`: runs commands in forks of itself, so that none of them starts a Python.

It reads one JSON object a line, an `Order`, and answers each with one, an `End`.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from dflash_deploy import cli, operations
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.cli.app import main
from dflash_deploy.runtime.native_process import SUPERVISOR
from tools.kills.effects import SYNCED, Effects

LONGEST = 300.0  # seconds after which a command hangs


@dataclass(frozen=True)
class Order:
    """A command line, where it runs, where its output goes, and when it is killed.

    `at_effect` is the number of an effect below `root`, from 1 on; `after` is in seconds from the first effect on.
    """

    args: list[str]
    directory: str
    output: str
    root: str
    at_effect: int | None = None
    after: float | None = None


@dataclass(frozen=True)
class End:
    """How it ended: the exit code or `None` if it was killed, its effects, and the seconds since the first of them.

    `synced` are the inodes of the files that were written to disk, by fsync.
    """

    code: int | None
    effects: list[str]
    seconds: float
    synced: list[int]


def carry_out(order: Order) -> End:
    """Run a command in a fork to its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _become(order, writing)
    os.close(writing)
    told, began = _watched(reading, child, order.after)
    _, status = os.waitpid(child, 0)
    lines = told.decode("utf-8", "replace").splitlines()
    return End(
        None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status),
        [line for line in lines if not line.startswith(SYNCED)],
        time.monotonic() - began,
        [int(line.removeprefix(SYNCED)) for line in lines if line.startswith(SYNCED)],
    )


def _watched(reading: int, child: int, after: float | None) -> tuple[bytes, float]:
    """What the command tells of itself until it ends, and when it had its first effect. Kills it then if it is due."""
    told, began, limit = b"", time.monotonic(), time.monotonic() + LONGEST
    due = limit
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, due - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            due = limit
            continue
        part = os.read(reading, 65536)
        if not part:
            os.close(reading)
            return told, began
        if not told:
            began = time.monotonic()
            due = limit if after is None else began + after
        told += part


def _become(order: Order, telling: int) -> None:
    """Run the command in this process, which it ends."""
    code = 1
    try:
        os.setsid()
        os.chdir(order.directory)
        output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, place in enumerate((nothing, output, output)):
            os.dup2(place, number)
        Effects(Path(order.root), telling, order.at_effect).watch(SUPERVISOR)
        sys.argv = ["dflash-deploy", *order.args]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _prepare() -> None:
    """Import and read what commands import and read when they run."""
    for package in (cli, operations):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    importlib.import_module("huggingface_hub")
    load_catalog()


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    _prepare()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(carry_out(Order(**json.loads(line))))), flush=True)
