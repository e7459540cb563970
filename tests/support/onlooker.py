"""What another user of this machine sees of the processes on it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from dflash_deploy.redact import generate_key

NOBODY = 65534

# What shows arguments and environments, of all processes that it is allowed to.
LOOKS = (
    ("ps", "-efww"),
    ("ps", "axeww"),
    ("sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true"),
)

SLEEP = (sys.executable, "-Ic", "import time; time.sleep(60)")


def seen_by_another_user() -> str:
    """All that user 65534 is shown of arguments and environments, held against processes made to be seen or not.

    Only root can look as somebody else: where others run the tests this is a loud skip, and in CI a failure.
    """
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            raise RuntimeError("only root can look as another user")
        pytest.skip("NOBODY LOOKED AS ANOTHER USER: that takes root")
    in_arguments, in_own_environment, in_roots_environment = (generate_key().reveal() for _ in range(3))
    with ExitStack() as running:
        running.enter_context(_process(*SLEEP, in_arguments))
        running.enter_context(_process("sleep", "60", marker=in_own_environment, user=NOBODY))
        running.enter_context(_process(*SLEEP, marker=in_roots_environment))
        seen = "".join(map(_look, LOOKS))
    # a look that finds nothing proves nothing, unless it would have found something
    assert seen.count(in_arguments) == len(LOOKS)
    assert in_own_environment in seen
    assert in_roots_environment not in seen
    return seen


def _look(command: tuple[str, ...]) -> str:
    done = subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, check=True, timeout=300
    )
    return done.stdout.decode(errors="replace")


@contextmanager
def _process(*command: str, marker: str = "", user: int | None = None) -> Iterator[None]:
    """A process that sleeps, with `marker` in its environment."""
    environment = {"PATH": os.environ["PATH"], "MARKER": marker}
    with subprocess.Popen(command, env=environment, user=user, group=user, cwd="/") as process:
        # between fork and exec it still has the arguments and the environment of this one
        time.sleep(0.2)
        try:
            yield
        finally:
            process.kill()
