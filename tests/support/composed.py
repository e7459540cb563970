"""A deployment under Compose that tests share: the real image on the stand-in base, the real engine inside."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash_deploy.deployment import Deployment
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port

IMAGE = "dflash-deploy/vllm:under-test"


def docker(*args: str) -> str:
    """What the command writes; it must succeed."""
    done = subprocess.run(["docker", *args], capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@contextmanager
def composed(directory: Path, base_image: str) -> Iterator[Deployment]:
    """`init` and `up` in a directory, the image made of these very sources; `down` at the end."""
    dflash("init", "--profile", "cpu", "--runtime", "compose", "--port", str(free_port()), at=directory).succeeded()
    edit_env(directory, DFLASH_BASE_IMAGE=base_image, DFLASH_IMAGE=IMAGE)
    # one of an earlier run may be of other sources
    subprocess.run(["docker", "image", "rm", "--force", IMAGE], check=False, capture_output=True)
    try:
        dflash("up", at=directory).succeeded()
        yield Deployment(directory)
    finally:
        dflash("down", at=directory).succeeded()
