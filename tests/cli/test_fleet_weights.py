"""The weights of a fleet whose hosts answer from a script: which host offers them, and what happens without a way."""

from pathlib import Path

import pytest

from dflash_deploy.errors import DownloadFailed
from dflash_deploy.features.fleet.prepare import RemoteFacts
from dflash_deploy.features.fleet.settings import open_fleet
from dflash_deploy.features.fleet.weights import BroughtWeights, move_weights
from dflash_deploy.operations.reporter import SILENT
from dflash_deploy.weights.lock import Lock
from tests.support.cli import initialise
from tests.support.scripted_hosts import Answer, ScriptedHosts

LOCK = Lock({}).text()
GB = 10**9


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    initialise("--profile", "dgx-spark", "--runtime", "compose", at=tmp_path)
    return tmp_path


def moved(directory: Path, way: str, names: str, *, joined: bool = True) -> BroughtWeights:
    """Move weights to hosts with these names, which a link joins or not."""
    hosts = ", ".join(f"{{name: {name}, address: {name}.invalid}}" for name in names)
    (directory / "fleet.yaml").write_text(f"weights: {way}\nhosts: [{hosts}]\n")
    opened = open_fleet(directory, (), SILENT)
    facts = {}
    for number, name in enumerate(names, 1):
        link = {"interface": "fab0", "address": f"192.168.{1 if joined else number}.{number}", "prefix": 24, "up": True}
        facts[name] = RemoteFacts.model_validate({"home": "/h", "assets": "/a", "links": [{**link, "mtu": 9000}]})
    return move_weights(opened, opened.hosts, facts, 1.0)


def lacks(sizes: dict[str, int | None]) -> ScriptedHosts:
    """Hosts that lack so many bytes; `None`: the weights were copied by hand, and there is no lock."""

    def respond(name: str, command: tuple[str, ...]) -> Answer:
        if command[:2] == ("fleet", "weights"):
            size = sizes[name]
            return {"missing_bytes": size or 0, "lock": "" if size is None else LOCK, "bytes_per_second": 50_000}
        if command[0] == "receive":
            return "written\n"
        return DownloadFailed("stops here", hint="x")

    return ScriptedHosts(respond)


@pytest.mark.parametrize("names", ["abc", "bac"])
def test_a_host_without_a_lock_is_not_asked_for_weights(
    names: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = lacks({"a": None, "b": 0, "c": 30 * GB}).put_in(monkeypatch)
    found = moved(directory, "fabric", names)
    assert hosts.commands("fleet offer") == ["b"]
    assert set(found.failed) == {"b", "c"}


def test_weights_that_were_copied_by_hand_everywhere_are_present(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks({"a": None, "b": None}).put_in(monkeypatch)
    found = moved(directory, "auto", "ab")
    assert found.moved is not None
    assert found.moved.way.way == "present"


def test_only_auto_falls_back_to_the_hub(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacks({"a": 30 * GB, "b": 30 * GB}).put_in(monkeypatch)
    found = moved(directory, "auto", "ab", joined=False)
    assert found.moved is not None
    assert (found.moved.way.way, found.failed) == ("hub", {})
    found = moved(directory, "fabric", "ab", joined=False)
    assert set(found.failed) == {"a", "b"}
    assert "no link joins the hosts" in found.failed["a"].message
    assert "weights: auto" in found.failed["a"].hint


def test_slow_lines_to_the_hub_are_compared(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacks({"a": 0, "b": 30 * GB}).put_in(monkeypatch)
    found = moved(directory, "auto", "ab")
    assert found.moved is not None
    # the transfer fails here, after it was chosen
    assert "stops here" in found.moved.way.reason
