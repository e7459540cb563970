"""The command line, run as a person runs it: another process, its output and its exit code."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dflash_deploy.cli.app import app
from dflash_deploy.errors import ExitCode
from tests.support.command_server import command_server
from tests.support.hints import hint_problems
from tests.support.ports import free_port
from tests.support.schemas import checked_output

# Seconds after which a command counts as hung. A start that takes 40 takes some minutes beside other engines.
HANGS = 1800


@dataclass(frozen=True)
class Ran:
    """One finished command, and the seconds that it took.

    A document that it printed is checked against its schema, and commands that it names are read by the command line.
    """

    args: tuple[str, ...]
    code: ExitCode
    out: str
    err: str
    seconds: float = 0.0

    def __post_init__(self) -> None:
        checked_output(self.args, self.code, self.out)
        found = list(hint_problems(f"{self.out}\n{self.err}"))
        assert not found, found

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    def succeeded(self) -> "Ran":
        """This, or a failed test that shows all that was printed."""
        assert self.code is ExitCode.DONE, f"{' '.join(self.args)} ended with {self.code!r}\n{self.out}\n{self.err}"
        return self


def dflash(
    *args: str,
    at: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = HANGS,
    prefix: tuple[str, ...] = (),
    first: str = "",
    elsewhere: bool = False,
) -> Ran:
    """Run `dflash-deploy` in the directory `at`; `prefix` are the words of a command that runs it.

    `first` is code that its process runs first, to replace a part of the program. `init` works in `at`, also if it has
    files, unless `elsewhere`: then where it would for a person.
    """
    if args[:1] == ("init",) and "--dir" not in args and not elsewhere:
        args = (*args, "--dir", ".")
    started = time.monotonic()
    variables = {**os.environ, **(environment or {})}
    if first or (not prefix and command_server().fits(variables)):
        code, out, err = command_server().run(args, at, variables, timeout, first)
        return Ran(args, ExitCode(code), out, err, time.monotonic() - started)
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "dflash_deploy", *args],
        cwd=at,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(args, ExitCode(done.returncode), done.stdout, done.stderr, time.monotonic() - started)


def invoke(*args: str) -> Ran:
    """Run `dflash-deploy` in this process, where a test can replace a part of it."""
    ran = CliRunner().invoke(app, list(args))
    return Ran(args, ExitCode(ran.exit_code), ran.stdout, ran.stderr)


def initialise(*options: str, at: Path) -> None:
    """Make `at` a deployment with `init`, in this process: a second faster, for tests of other commands."""
    # not the first free one, as `init` takes it: a test beside this one may take the same
    port = () if "--port" in options else ("--port", str(free_port()))
    invoke("init", "--dir", str(at), *port, *options).succeeded()


def edit_env(directory: Path, **values: str) -> None:
    """Change lines of a deployment's `.env` in place, or add them, as an editor does."""
    path = directory / ".env"
    lines = path.read_text().splitlines()
    for name, value in values.items():
        hits = [number for number, line in enumerate(lines) if line.startswith(f"{name}=")]
        assert len(hits) < 2, f"{name} stands {len(hits)} times in {path}"
        place = hits[0] if hits else len(lines)
        lines[place : place + 1] = [f"{name}={value}"]
    path.write_text("\n".join(lines) + "\n")
