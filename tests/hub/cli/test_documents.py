"""Commands of the documents that download: those of the pages in their order, with a hub on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.box import CONFIG, DRAFTER, DRAFTS, LOCAL, TARGET, Box
from tests.support.cli import dflash
from tests.support.documents import ROOT
from tests.support.hub import Generated, Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        running.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": TARGET})
        running.add("o/drafter", {"config.json": DRAFTS, "model.safetensors": DRAFTER})
        yield running


@pytest.fixture
def box(hub: Hub, tmp_path: Path) -> Box:
    return Box(hub, tmp_path)


def pulls(page: str) -> list[tuple[str, ...]]:
    """The options of each `pull` in the blocks of a page, in order."""
    shown = documents.commands(ROOT / "docs" / page)
    return [one.words[1:] for one in shown if one.words[0] == "pull" and not one.mentioned]


def test_moving_offline(hub: Hub, box: Box, tmp_path: Path) -> None:
    with_network, without = pulls("how-to/move-offline.md")
    assert (with_network, without) == ((), ("--offline", "--verify"))
    box.pull(*with_network).succeeded()
    far = Box(hub, tmp_path / "far", options=(*LOCAL, "--models-dir", str(tmp_path / "far" / "models")))
    # `rsync`, as the page says
    shutil.copytree(box.models, far.models, dirs_exist_ok=True)
    shutil.copy(box.directory / "dflash.lock", far.directory)
    hub.forget()
    far.pull(*without).succeeded()
    assert far.whole()
    assert hub.requests() == []


def test_upgrading_the_weights_and_going_back(hub: Hub, box: Box) -> None:
    check, update = pulls("how-to/upgrade.md")
    assert (check, update) == (("--check",), ("--update",))
    box.pull().succeeded()
    before = box.lock
    hub.publish("o/drafter", {"config.json": DRAFTS, "model.safetensors": Generated(1_000_000, seed=3)})
    assert "o/drafter" in box.pull(*check).succeeded().out
    assert box.lock == before
    box.pull(*update).succeeded()
    assert box.lock != before
    assert not box.whole()
    # `cp dflash.lock.last dflash.lock`, as the page says
    shutil.copy(box.directory / "dflash.lock.last", box.directory / "dflash.lock")
    back = pulls("how-to/go-back.md")
    assert back == [(), ("--verify",)]
    box.pull(*back[0]).succeeded()
    assert box.lock == before
    assert box.whole()


def test_the_same_weights_on_two_boxes(hub: Hub, box: Box, tmp_path: Path) -> None:
    first, second = pulls("tutorials/two-boxes.md")
    box.pull(*first).succeeded()
    other = Box(hub, tmp_path / "other", options=(*LOCAL, "--models-dir", str(tmp_path / "other" / "models")))
    shutil.copy(box.directory / "dflash.lock", other.directory)
    # the Hub moves on between the two
    hub.publish("o/drafter", {"config.json": DRAFTS, "model.safetensors": Generated(1_000_000, seed=3)})
    other.pull(*second).succeeded()
    assert other.lock == box.lock
    assert other.whole()


def test_the_examples_of_its_help(box: Box) -> None:
    for one in documents.commands(ROOT / "docs" / "reference" / "commands.md"):
        if one.words[0] == "pull" and not one.mentioned and "[OPTIONS]" not in one.words:
            dflash(*one.words, at=box.directory, environment=box.environment).succeeded()
    assert box.whole()
