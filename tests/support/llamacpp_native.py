"""llama.cpp's real server as a native deployment, with the tiny pair."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.engine import endpoint_of
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port


def init(directory: Path, *more: str) -> None:
    told = ("--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", "--port", str(free_port()), *more)
    dflash("init", *told, at=directory).succeeded()


def connect(directory: Path) -> Endpoint:
    deployment = Deployment.existing(directory)
    return endpoint_of(deployment, plan_of(deployment))


def processes(directory: Path) -> dict[int, str]:
    """The processes of a deployment: each PID with its arguments."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == directory.resolve():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def server_of(directory: Path) -> int:
    """The PID of the engine itself, behind its supervisor and its gateway."""
    session = json.loads((directory / ".dflash" / "run.json").read_text())["pid"]
    (engine,) = [
        pid
        for pid, line in processes(directory).items()
        if "llamacpp_wheel" in line and "serve.door" not in line and os.getsid(pid) == session
    ]
    return engine


@contextmanager
def started(directory: Path, *more: str) -> Iterator[Path]:
    """A deployment that `init`, with more options, and `up` have made in a directory, as long as the block runs."""
    init(directory, *more)
    dflash("up", at=directory).succeeded()
    yield directory
    dflash("down", at=directory).succeeded()


@contextmanager
def without_drafter(directory: Path) -> Iterator[None]:
    """The engine without its drafter as long as the block runs."""
    drafter = Deployment(directory).values["DFLASH_DRAFTER"]
    edit_env(directory, DFLASH_DRAFTER="off")
    dflash("up", at=directory).succeeded()
    yield
    edit_env(directory, DFLASH_DRAFTER=drafter)
    dflash("up", at=directory).succeeded()
