"""A container engine for the tests: the one that answers already, or one started for them and ended after them.

    eval "$(python -m tests.support.container_engine start --state DIR)"
    python -m tests.support.container_engine stop --state DIR

`env` prints the same lines as `start` for an engine that answers, and starts none.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.commands import apt_install, is_installed, locked
from tests.support.docker_client import compose_config, engine_answers, users_endpoint
from tests.support.dockerd import Daemon

HOW_TO_GET_ONE = (
    "Start Docker and make sure that `docker info` answers (DOCKER_HOST is respected), "
    "or run the tests as root on Debian, where an engine of their own is installed and started."
)


@dataclass
class Engine:
    """A container engine that answers, and what a command needs in its environment to talk to it."""

    docker_host: str
    docker_config: Path | None
    _daemon: Daemon | None = field(default=None, repr=False)
    """The daemon to end; None where the engine belongs to somebody else."""

    def environment(self) -> dict[str, str]:
        """Variables to lay over `os.environ` for every `docker` and `docker compose` command."""
        variables = {"DOCKER_HOST": self.docker_host}
        if self.docker_config is not None:
            variables["DOCKER_CONFIG"] = str(self.docker_config)
        return variables

    @property
    def ours(self) -> bool:
        """Whether it was started here, and may be ended."""
        return self._daemon is not None

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """No daemon while the block runs, and the same one again after it. RuntimeError where it is somebody else's."""
        if self._daemon is None:
            raise RuntimeError("the container engine belongs to somebody else, who would miss it")
        self._daemon.stop()
        try:
            yield
        finally:
            self._daemon.start()

    def stop(self) -> None:
        """End the engine if this object owns it; a second call, or a call on somebody else's engine, does nothing."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            with locked(daemon.state):
                daemon.stop()


def ensure_engine(state_dir: Path) -> Engine:
    """Return the engine that answers, or start one that keeps its files in `state_dir` and belongs to the caller.

    An engine that another process started in `state_dir` is used but not owned: whoever started it ends it.
    RuntimeError where none can be had, with the reason and a way out.
    """
    state = _prepared(state_dir)
    try:
        with locked(state):
            return find_engine(state) or _install_and_start(state)
    except RuntimeError as problem:
        raise RuntimeError(f"{problem}\n{HOW_TO_GET_ONE}") from problem


def find_engine(state_dir: Path) -> Engine | None:
    """Return the engine that answers now, without starting or owning one."""
    state = _prepared(state_dir)
    daemon = Daemon(state)
    if engine_answers():
        endpoint = users_endpoint()
    elif daemon.answers():
        endpoint = daemon.docker_host
    else:
        return None
    return Engine(endpoint, compose_config(state))


def stop_engine(state_dir: Path) -> bool:
    """End the engine that was started in `state_dir`, whichever process did; False where none was left."""
    state = _prepared(state_dir)
    with locked(state):
        return Daemon(state).stop()


def _install_and_start(state: Path) -> Engine:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise RuntimeError("No container engine answers, and one can only be started on Linux and as root.")
    if not all(map(is_installed, ("dockerd", "docker", "iptables", "ip"))):
        apt_install("docker.io", "iptables", "iproute2")
        if not is_installed("docker"):
            # From Debian 13 on, the client is a package of its own.
            apt_install("docker-cli")
        # A machine with a service manager starts the engine as soon as its package is there.
        installed = find_engine(state)
        if installed is not None:
            return installed
    daemon = Daemon(state)
    engine = Engine(daemon.docker_host, compose_config(state), daemon)
    daemon.start()
    daemon.clear()
    return engine


def _prepared(state_dir: Path) -> Path:
    state_dir.mkdir(parents=True, exist_ok=True)
    return state_dir.resolve()


def main(arguments: Sequence[str] | None = None) -> int:
    """Start or stop the tests' engine, or print its environment for `eval`."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.container_engine", description=main.__doc__)
    parser.add_argument("action", choices=["start", "stop", "env"])
    parser.add_argument("--state", type=Path, required=True, help="directory of the engine's files")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        if options.action == "stop":
            stop_engine(options.state)
        else:
            engine = ensure_engine(options.state) if options.action == "start" else find_engine(options.state)
            if engine is None:
                raise RuntimeError(f"none answers. {HOW_TO_GET_ONE}")
            for name, value in engine.environment().items():
                print(f"export {name}={shlex.quote(value)}")
    except RuntimeError as error:
        print(f"container engine: {error}", file=sys.stderr)
        return 1
    print(f"container engine: {options.action} took {time.monotonic() - began:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
