"""Commands of the machine: found where an engine finds them, run to their end, and quoted when they fail."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

HANGS = 300.0  # seconds after which something counts as hung


def command_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with these variables laid over it, and system programs on its PATH."""
    return {**os.environ, **(variables or {}), "PATH": _search_path()}


def is_installed(program: str) -> bool:
    """Whether a command of this name would be found."""
    return shutil.which(program, path=_search_path()) is not None


def _search_path() -> str:
    # A login that is not root's own often leaves these out, and the engine calls iptables and runc by name.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def run_command(
    *command: str, variables: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; one that is missing or too slow counts as failed."""
    try:
        return subprocess.run(
            command,
            env=command_environment(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(list(command), 127, "", str(error))


def checked(*command: str, variables: Mapping[str, str] | None = None, timeout: float = 300) -> str:
    """Run a command that has to succeed, and return what it printed; RuntimeError says how it failed."""
    done = run_command(*command, variables=variables, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{last_lines(done.stdout + done.stderr)}")
    return done.stdout


def last_lines(text: str, count: int = 8) -> str:
    """The end of a command's output or log, which is where the reason of a failure stands."""
    return "\n".join(text.strip().splitlines()[-count:])


def apt_install(*packages: str) -> None:
    """Install Debian packages without their recommendations, or raise RuntimeError with what apt-get said."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    # A source that does not answer is no reason to give up: the packages may well come from another.
    run_command("apt-get", "update", "-q", variables=quiet, timeout=1200)
    # Another apt-get on the machine is waited for.
    install = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q", "--no-install-recommends"]
    checked(*install, *packages, variables=quiet, timeout=1200)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for the condition; False if it does not hold within this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def eventually(true: Callable[[], bool], seconds: float = HANGS) -> None:
    """Wait until it is true. After this time it counts as hung, and the test fails."""
    assert wait_until(true, seconds), "it did not become true"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes out of this directory's files while the block runs."""
    with (directory / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
