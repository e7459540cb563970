"""Hosts of a fleet that fetch their weights: all get the commits that the terminal found on a hub of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.errors import LockRefused
from dflash_deploy.features.fleet.up import fleet_up
from dflash_deploy.operations.reporter import Silent
from dflash_deploy.weights import hub as asking
from tests.support.box import CONFIG, DRAFTER, DRAFTS, TARGET, Box
from tests.support.hub import Hub
from tests.support.scripted_hosts import Answer, ScriptedFleet, errors, nothing_else

FLEET = """shape: replicas
router: off
settings: {{HF_ENDPOINT: {endpoint!r}}}
hosts:
  - {{name: a, address: a.invalid, program: dflash-deploy}}
  - {{name: b, address: b.invalid, program: dflash-deploy}}
"""


class Hosts(ScriptedFleet):
    """Two hosts whose engines start."""

    def answer(self, name: str, command: tuple[str, ...]) -> Answer:
        if command[:2] == ("fleet", "facts"):
            return {"home": "/h", "assets": "/a", "links": []}
        return {"state": "ready", "endpoint": "http://x:8000/v1"}

    @property
    def locks(self) -> dict[str, bytes]:
        """The last dflash.lock that each host got."""
        return {name: content for name, command, content in self.hosts.read if "dflash.lock" in command}


class Noted(Silent):
    """Keeps the lines for people."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        running.add("o/target", {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": TARGET})
        running.add("o/drafter", {"config.json": DRAFTS, "model.safetensors": DRAFTER})
        yield running


@pytest.fixture
def box(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """The deployment on the terminal. Only fleet.yaml names the hub."""
    made = Box(hub, tmp_path)
    (made.directory / "fleet.yaml").write_text(FLEET.format(endpoint=hub.endpoint))
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return made


def test_all_hosts_get_the_same_commits_and_keep_them(hub: Hub, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch, "ab", nothing_else, mark="same")
    assert errors(fleet_up(box.directory)) == {}
    lock = (box.directory / "dflash.lock").read_bytes()
    assert hosts.locks == {"a": lock, "b": lock}
    assert set(box.lock) == {"target", "drafter"}
    # the hosts fetch the weights, not the terminal
    assert hub.sent("*.safetensors") == 0
    hub.publish("o/target", {"config.json": CONFIG, "tokenizer.json": '{"newer": 1}', "model.safetensors": TARGET})
    hub.forget()
    assert errors(fleet_up(box.directory)) == {}
    assert hosts.locks == {"a": lock, "b": lock}
    assert hub.requests() == []


def test_without_a_way_to_the_hub_each_host_asks_for_the_commits(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    (box.directory / "fleet.yaml").write_text(FLEET.format(endpoint="http://127.0.0.1:9"))
    monkeypatch.setattr(asking, "FIRST_PAUSE", 0.001)
    hosts, noted = Hosts(monkeypatch, "ab", nothing_else, mark="same"), Noted()
    assert errors(fleet_up(box.directory, reporter=noted)) == {}
    assert hosts.locks == {}
    (said,) = (line for line in noted.lines if line.startswith("weights"))
    assert "each host asks the Hub for the commits: http://127.0.0.1:9 cannot be reached" in said
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    noted.lines.clear()
    assert errors(fleet_up(box.directory, reporter=noted)) == {}
    assert not any(line.startswith("weights") for line in noted.lines)


def test_a_damaged_lock_reaches_no_host(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    (box.directory / "dflash.lock").write_text("{")
    hosts = Hosts(monkeypatch, "ab", nothing_else, mark="same")
    with pytest.raises(LockRefused):
        fleet_up(box.directory)
    assert hosts.locks == {}
