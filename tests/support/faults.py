"""Faults, and what is promised of each: in which time which command names its cause, and that the cure is one.

A test declares the faults that it shows with `@shows`, which puts them into docs/reference/faults.md and fails the test
where it did not go through both halves: `notices` the fault, and after its cure `recovers`.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, ParamSpec

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash

P = ParamSpec("P")

# What the state is made with. A script plays only what neither engine nor container can be brought into.
Means = Literal["the command alone", "a real container", "the real engine", "a hub of the tests", "a script"]

# How far the same command comes once the cause is gone. The port is held by the test where no engine is to start.
Afterwards = Literal["done", "to the port"]


@dataclass(frozen=True)
class Fault:
    """A fault, and what has to come of it. `within` is in seconds on an idle machine, from start to end of `verb`."""

    name: str
    means: Means
    verb: str
    within: float
    says: tuple[str, ...]
    code: ExitCode
    cure: str
    afterwards: Afterwards = "done"


@dataclass(frozen=True)
class Shown:
    """A fault with the module of the test that shows it, as a path of the repository without its suffix."""

    fault: Fault
    module: str


# How many times as long as on an idle machine a command may take beside engines that load and images that build.
BUSY = 6

SHOWN: list[Shown] = []  # every fault of the test modules that are imported, in their order
_noticed: set[Fault] = set()
_recovered: set[Fault] = set()


def shows(*faults: Fault) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Declare what a test shows. One that has an argument `fault` shows that one of them at a time, others show all."""

    def register(test: Callable[P, None]) -> Callable[P, None]:
        SHOWN.extend(Shown(fault, test.__module__.replace(".", "/")) for fault in faults)

        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            _noticed.clear()
            _recovered.clear()
            test(*args, **kwargs)
            expected = {kwargs["fault"]} if "fault" in kwargs else set(faults)
            assert (_noticed, _recovered) == (expected, expected), "declared, and not shown"

        return run

    return register


@dataclass
class Patient:
    """A deployment that faults are done to. `prefix` are words before the command, as to run it with fewer rights."""

    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()

    def run(self, fault: Fault, *options: str) -> Ran:
        """The command that the fault is about."""
        return dflash(
            *fault.verb.split(), *options, at=self.directory, environment=self.environment, prefix=self.prefix
        )

    def notices(self, fault: Fault, *options: str) -> Ran:
        """Run the command under the fault: it is as the table says, and nothing that is kept was touched."""
        with untouched(self.directory):
            ran = self.run(fault, *options)
        holds(fault, ran)
        return ran

    def recovers(self, fault: Fault, *options: str) -> Ran:
        """Run the same command after the cure."""
        ran = self.run(fault, *options)
        recovered(fault, ran)
        return ran


def holds(fault: Fault, ran: Ran) -> None:
    """A finished command against the table: its seconds, its exit code, the words."""
    shown = ran.out + ran.err
    print(f"{fault.name}: {ran.seconds:.1f} s\n{shown}")
    assert ran.code is fault.code, shown
    for text in fault.says:
        assert text in shown, f"{text!r} is not in\n{shown}"
    assert ran.seconds < BUSY * fault.within
    _noticed.add(fault)


def recovered(fault: Fault, ran: Ran) -> None:
    """The same command after the cure: as far as the table says."""
    if fault.afterwards == "done":
        ran.succeeded()
        # its exit code is 0 whatever it finds
        assert "status" not in ran.args or "ready" in ran.out, ran.out
    else:
        assert ran.code is ExitCode.PREFLIGHT, ran.out + ran.err
        assert "is already in use" in ran.err
    _recovered.add(fault)


@contextmanager
def untouched(directory: Path) -> Iterator[None]:
    """What must survive is as it was when the block ends; there may be more, as of a download that goes on."""
    before = kept(directory)
    yield
    assert before.items() <= kept(directory).items(), "something was lost, or changed"


def kept(directory: Path) -> dict[str, str]:
    """What must survive a fault: the files that people own, by content, and weights, by what `ls -i` says.

    Not `.dflash`, the commands' own notes, and not what `render` makes of `.env` anew.
    """
    own = [path for path in directory.glob("*") if path.is_file() and path.name != "compose.yaml"]
    files = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in own}
    return files | dict(_weights(directory))


def _weights(directory: Path) -> Iterator[tuple[str, str]]:
    try:
        values = Deployment(directory).values
    except Exception:  # an `.env` that cannot be read is one of the faults
        return
    for name in ("MODEL_HOST_PATH", "DRAFTER_HOST_PATH"):
        for path in sorted((directory / values.get(name, "-")).glob("*")):
            status = path.lstat()
            yield str(path), f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_mode:o}"
