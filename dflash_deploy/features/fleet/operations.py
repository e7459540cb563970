"""Runs `ssh HOST dflash-deploy …` for the hosts of `fleet.yaml`, side by side, and collects what each printed."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO, Annotated

from pydantic import Field

from dflash_deploy.catalog.read import Entry, read_as
from dflash_deploy.document import CommandData, Documented, Hidden
from dflash_deploy.errors import DeployError, ExitCode, FleetRefused, HostFailed, PreflightRefused
from dflash_deploy.intake.answers import ForeignDocument, read_document
from dflash_deploy.intake.files import MIB
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.redact import generate_key
from dflash_deploy.serve.settings import Settings

EXAMPLE = "docs/reference/fleet.yaml is an annotated example"

# Options of `ssh`: it asks nothing, accepts no unknown host, and gives a host only the command and its input.
OPTIONS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes"),
    *("ControlPath=none", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "LogLevel=ERROR"),
)

# Exit codes of `ssh` for its own failures, and of a shell that does not find the program.
SSH_FAILED, NOT_INSTALLED = 255, 127

# What pipx and uv install is not on the PATH of a shell without a terminal.
_PROGRAM = 'PATH="$PATH:$HOME/.local/bin"; command -v dflash-deploy >/dev/null || exit 127; exec dflash-deploy "$@"'

# Writes the key that comes on standard input. `read` and `printf` belong to the shell, so no `ps` shows it.
_KEY = f"""cd "$1" && umask 077 && IFS= read -r key && [ -n "$key" ] &&
{{ grep -v "^{Settings.vllm_api_key}=" .env; printf "{Settings.vllm_api_key}=%s\\n" "$key"; }} >.env.fleet &&
mv .env.fleet .env"""

MOST, LONGEST = 16 * MIB, 64 << 10  # characters of a host's document, and of one line


class FleetHost(Entry):
    """One host. `ssh` must not begin with `-`, so that it is not an option."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$")]
    ssh: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@:%/-]{0,252}$")]
    directory: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./][A-Za-z0-9_./ +-]{0,254}$")] = "dflash"
    profile: Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9.-]{0,60})?$")] = ""
    rank: Annotated[int | None, Field(ge=0, le=63)] = None


Hosts = Sequence[FleetHost]
Words = Callable[[FleetHost], Sequence[str]]
Show = Callable[[str, str], None]


class Fleet(Entry):
    """`fleet.yaml`: the hosts, and the address of rank 0 if they run one engine together."""

    hosts: Annotated[tuple[FleetHost, ...], Field(min_length=1, max_length=64)]
    master_addr: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9.:-]{0,252})?$")] = ""


@dataclass(frozen=True)
class HostResult(Documented):
    """What a command did on one host."""

    name: str
    """Name of the host in fleet.yaml."""
    exit_code: int
    """Exit code of the command there; 3 if SSH or the program failed."""
    state: str
    """What the host says of its engine, such as `ready`; else `done` or `failed`."""
    seconds: float
    """How long it took."""
    endpoint: str | None
    """URL of its endpoint, as the host itself reaches it."""
    message: str
    """What is wrong, or which checks passed; empty if there is nothing to say. The text may change."""
    hint: str
    """What to do about it; empty if nothing is wrong. The text may change."""


@dataclass(frozen=True)
class FleetResult(Documented):
    """The result of a command on each host."""

    failure: Hidden[DeployError | None]
    hosts: Sequence[HostResult]
    """The hosts, in the order of fleet.yaml."""


DOCUMENTS = {f"fleet {name}": CommandData((FleetResult,)) for name in ("init", "up", "status", "test", "down")}


class _Data(ForeignDocument):
    state: str = ""
    endpoint: str | None = None
    problem: str | None = None
    cause: str | None = None
    checks: Sequence[object] = ()


class _Error(ForeignDocument):
    message: str
    hint: str = ""


class _Document(ForeignDocument):
    data: _Data = _Data()
    error: _Error | None = None


def read_fleet(file: Path) -> Fleet:
    """The hosts of a file. Raises FleetRefused."""
    found = read_as(file, Fleet, refused=FleetRefused, example=EXAMPLE)
    names, ranks = {host.name for host in found.hosts}, [host.rank for host in found.hosts if host.rank is not None]
    if len(names) < len(found.hosts):
        raise FleetRefused(f"{file}: two hosts have the same name", hint=EXAMPLE)
    if ranks and (sorted(ranks) != list(range(len(names))) or not found.master_addr):
        said = f"{file}: one engine over {len(names)} hosts needs the ranks 0 to {len(names) - 1} and `master_addr`"
        raise FleetRefused(said, hint=EXAMPLE)
    return found


def init(file: Path, options: Sequence[str] = (), *, force: bool, reporter: Reporter = SILENT) -> FleetResult:
    """Run `init` on each host, and write one new API key into the `.env` of all. Raises as `on_each`."""
    fleet = read_fleet(file)

    def words(host: FleetHost) -> list[str]:
        profile = ["--profile", host.profile] if host.profile else []
        ranked = [] if host.rank is None else ["--node-rank", str(host.rank), "--master-addr", fleet.master_addr]
        return ["init", "--yes", *profile, *ranked, *(["--force"] if force else []), *options]

    done = _each(fleet.hosts, words, reporter)
    if done.failure:
        return done
    key = f"{generate_key().reveal()}\n"
    keyed = _run(fleet.hosts, lambda host: ["-c", _KEY, "sh", host.directory], reporter, key)
    failed = [_result(host, said) for host, said in zip(fleet.hosts, keyed, strict=True) if said.code]
    return FleetResult(_failure(failed), failed) if failed else done


def on_each(file: Path, *words: str, reporter: Reporter = SILENT, show: Show | None = None) -> FleetResult:
    """Run a command on each host; `show` gets what it prints. Raises FleetRefused, PreflightRefused.

    Of one engine over all hosts only rank 0 can be tested, and all have their weights before `up` starts it.
    """
    hosts, test = read_fleet(file).hosts, words[0] == "test"
    together = words[0] == "up" and any(host.rank is not None for host in hosts)
    if together and (pulled := _each(hosts, lambda _: ["pull"], reporter)).failure:
        return pulled
    return _each([host for host in hosts if not (test and host.rank)], lambda _: words, reporter, show)


def _each(hosts: Hosts, words: Words, reporter: Reporter, show: Show | None = None) -> FleetResult:
    def script(host: FleetHost) -> list[str]:
        command, *options = words(host)
        return ["-c", _PROGRAM, "sh", command, "--dir", host.directory, *([] if show else ["--json"]), *options]

    rows = [_result(host, one) for host, one in zip(hosts, _run(hosts, script, reporter, show=show), strict=True)]
    return FleetResult(_failure(rows), rows)


@dataclass
class _Said:
    """What `ssh` printed for a host, the last line on standard error, and how it ended."""

    process: subprocess.Popen[str]
    out: str = ""
    last: str = ""
    code: int = 0
    seconds: float = 0


def _run(hosts: Hosts, script: Words, reporter: Reporter, text: str = "", show: Show | None = None) -> list[_Said]:
    """Run a script on each host, with `text` on its input; an interrupt ends every `ssh`. Raises PreflightRefused."""
    running: list[_Said] = []
    options, pipe = [part for option in OPTIONS for part in ("-o", option)], subprocess.PIPE
    with ThreadPoolExecutor(len(hosts)) as pool:
        try:
            for host in hosts:
                command = ["ssh", "-T", *options, "--", host.ssh, f"exec sh {shlex.join(script(host))}"]
                process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace")
                running.append(_Said(process))
            for one in [pool.submit(_follow, *each, reporter, text, show) for each in zip(hosts, running, strict=True)]:
                one.result()
        except FileNotFoundError:
            raise PreflightRefused("`ssh` is not installed here", hint="apt-get install openssh-client") from None
        finally:
            for said in running:
                said.process.terminate()
    return running


def _follow(host: FleetHost, said: _Said, reporter: Reporter, text: str, show: Show | None) -> None:
    began, process = time.monotonic(), said.process
    assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018 - because of PIPE

    def messages(stream: IO[str]) -> None:
        for line in iter(partial(stream.readline, LONGEST), ""):
            said.last = line.strip() or said.last
            reporter.note(f"{host.name} | {line.rstrip()}")

    listening = Thread(target=messages, args=(process.stderr,))
    listening.start()
    with suppress(BrokenPipeError), process.stdin as sent:
        sent.write(text)
    if show:
        for line in iter(partial(process.stdout.readline, LONGEST), ""):
            show(host.name, line.rstrip())
    else:
        said.out = process.stdout.read(MOST)
    process.stdout.close()
    said.code = process.wait()
    listening.join()
    said.seconds = round(time.monotonic() - began, 1)


def _result(host: FleetHost, said: _Said) -> HostResult:
    code, last = said.code if said.code in {*ExitCode} else ExitCode.UNEXPECTED, said.last or f"exit code {said.code}"
    try:
        answer = read_document(said.out, _Document) if said.out else _Document()
    except Invalid as problem:
        code, answer, last = code or ExitCode.UNEXPECTED, _Document(), f"its output {problem}"
    data, error = answer.data, answer.error
    if said.code == SSH_FAILED:
        code, error = ExitCode.PREFLIGHT, _Error(message=last, hint=f"`ssh {host.ssh} true` must work by itself")
    elif said.code == NOT_INSTALLED:
        install = "install it there with pipx or uv: docs/how-to/install.md"
        code, error = ExitCode.PREFLIGHT, _Error(message="dflash-deploy is not installed there", hint=install)
    elif code and error is None:
        error = _Error(message=last, hint=f"run the command there: `ssh {host.ssh}`")
    passed = f"{len(data.checks)} checks passed" if data.checks and not code else ""
    message = error.message if error else data.problem or data.cause or passed
    state = data.state or ("failed" if code else "done")
    return HostResult(host.name, int(code), state, said.seconds, data.endpoint, message, error.hint if error else "")


def _failure(rows: Iterable[HostResult]) -> DeployError | None:
    worst = max(rows, key=lambda row: row.exit_code)
    return HostFailed(f"{worst.name}: {worst.message}", worst.hint, worst.exit_code) if worst.exit_code else None
