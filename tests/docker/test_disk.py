"""Disks as people have them: full, read-only. Needs root to mount one, as this tier's own container engine does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.container_engine import Engine
from tests.support.hub import Generated, Hub
from tests.unit.cli.test_pull import CONFIG, DRAFTS, Box

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


def test_a_disk_that_is_too_small_is_named_before_the_first_byte(engine: Engine, hub: Hub, disk: Path) -> None:
    box = Box(hub, disk.parent)
    ran = box.pull()
    assert ran.code is ExitCode.DOWNLOAD
    assert "GiB are free" in ran.err
    assert hub.sent("o/target/model.safetensors") == 0


def test_a_disk_that_fills_up_on_the_way_leaves_nothing_that_looks_whole(engine: Engine, hub: Hub, disk: Path) -> None:
    box = Box(hub, disk.parent)
    # what the check counts on is gone before the bytes come
    command = [sys.executable, "-c", UNCHECKED, "pull", "--dir", str(box.directory)]
    environment = os.environ | box.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.DOWNLOAD
    assert "is full" in done.stderr
    assert not (disk / "target" / "model.safetensors").exists()
    # room is made, and the same command goes on
    subprocess.run(["mount", "-o", "remount,size=600m", disk], check=True)
    box.pull().succeeded()
    assert json.loads((box.directory / "dflash.lock").read_text())["models"]["target"]["repo"] == "o/target"
    assert (disk / "target" / "model.safetensors").stat().st_size == BIG.size


def test_a_disk_that_cannot_be_written_is_named(engine: Engine, hub: Hub, disk: Path) -> None:
    box = Box(hub, disk.parent)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    ran = box.pull()
    assert ran.code is ExitCode.DOWNLOAD
    assert "cannot be written" in ran.err
    assert "--models-dir" in ran.err
