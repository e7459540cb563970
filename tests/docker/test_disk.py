"""Disks as people have them: full, read-only. Needs root to mount one, as this tier's own container engine does."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.box import CONFIG, DRAFTS, Box
from tests.support.cli import Ran, initialise
from tests.support.container_engine import Engine
from tests.support.faults import Fault, Patient, holds, recovered, shows
from tests.support.hub import Generated, Hub

UNCHECKED = """
import dflash_deploy.weights.fetch as fetch
from dflash_deploy.cli.app import main
fetch.check_room = lambda *_: None
main()
"""

BIG = Generated(40_000_000, seed=4)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        running.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": BIG})
        running.add("o/drafter", {"config.json": DRAFTS, "model.safetensors": Generated(1_000_000, seed=2)})
        yield running


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 20 MB of its own."""
    place = tmp_path / "models"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def download(name: str, cure: str, *says: str) -> Fault:
    """What keeps weights from being written."""
    return Fault(name, "a hub of the tests", "pull", 30, says, ExitCode.DOWNLOAD, cure)


TOO_SMALL = download("a disk with too little space for the weights", "free space", "GiB are free")
FILLS_UP = download("a disk that fills up during a download", "free space", "is full")
READ_ONLY = download("a disk that is mounted read-only", "mount it for writing", "cannot be written", "--models-dir")
NO_ROOM_FOR_STATE = Fault(
    "a full disk under the deployment directory",
    "the command alone",
    "up",
    10,
    (".dflash cannot be written: No space left on device", "df -h"),
    ExitCode.PREFLIGHT,
    "free space",
    "to the port",
)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


@shows(NO_ROOM_FOR_STATE)
@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_a_deployment_on_a_full_disk_says_so(engine: Engine, disk: Path, kind: str) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        initialise("--profile", "cpu", "--engine", kind, "--runtime", "native", "--port", port, at=disk)
        filler = disk / "filler"
        filler.write_bytes(b"x" * shutil.disk_usage(disk).free)
        Patient(disk).notices(NO_ROOM_FOR_STATE)
        filler.unlink()
        Patient(disk).recovers(NO_ROOM_FOR_STATE)


@shows(TOO_SMALL)
def test_a_disk_that_is_too_small_is_named_before_the_first_byte(engine: Engine, hub: Hub, disk: Path) -> None:
    box = Box(hub, disk.parent)
    patient = Patient(box.directory, box.environment)
    patient.notices(TOO_SMALL)
    assert hub.sent("o/target/model.safetensors") == 0
    remount(disk, "size=600m")
    patient.recovers(TOO_SMALL)


@shows(FILLS_UP)
def test_a_disk_that_fills_up_on_the_way_leaves_nothing_that_looks_whole(engine: Engine, hub: Hub, disk: Path) -> None:
    box = Box(hub, disk.parent)
    # what the check counts on is gone before the bytes come
    command = [sys.executable, "-c", UNCHECKED, "pull", "--dir", str(box.directory)]
    environment, started = os.environ | box.environment, time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    holds(FILLS_UP, Ran(("pull",), ExitCode(done.returncode), done.stdout, done.stderr, seconds))
    assert not (disk / "target" / "model.safetensors").exists()
    # room is made, and the same command goes on
    remount(disk, "size=600m")
    recovered(FILLS_UP, box.pull())
    assert json.loads((box.directory / "dflash.lock").read_text())["models"]["target"]["repo"] == "o/target"
    assert (disk / "target" / "model.safetensors").stat().st_size == BIG.size


@shows(READ_ONLY)
def test_a_disk_that_cannot_be_written_is_named(engine: Engine, hub: Hub, disk: Path) -> None:
    box = Box(hub, disk.parent)
    patient = Patient(box.directory, box.environment)
    remount(disk, "ro")
    patient.notices(READ_ONLY)
    remount(disk, "rw,size=600m")
    patient.recovers(READ_ONLY)
