"""One engine over hosts that answer from a script: when all ranks restart together, and when nothing does."""

import threading
from pathlib import Path

import pytest

from dflash_deploy.errors import DeployError, DownloadFailed, EngineNotReady, HostUnfit
from dflash_deploy.features.fleet import change as fleet_change
from dflash_deploy.features.fleet import settings as fleet_settings
from dflash_deploy.features.fleet.up import fleet_up
from tests.support.cli import initialise
from tests.support.scripted_hosts import Answer, Change, ScriptedFleet, errors, link, lost, nothing_else

FLEET = """shape: one-engine
hosts:
  - {name: a, address: a.invalid, program: dflash-deploy}
  - {name: b, address: b.invalid, program: dflash-deploy}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    initialise("--profile", "cpu", "--engine", "vllm", "--runtime", "native", at=tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    monkeypatch.setattr(fleet_settings, "PAUSE", 0.0)
    monkeypatch.setattr(fleet_change, "EVERY", 0.02)
    return tmp_path


class Ranks(ScriptedFleet):
    """Two hosts whose ranks run, or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Change = nothing_else) -> None:
        self.runs = {"a": 1, "b": 2}
        """The number of the process of each rank; 0 if it does not run."""
        super().__init__(monkeypatch, "ab", change, mark="same")

    def answer(self, name: str, command: tuple[str, ...]) -> Answer:
        match command:
            case ("fleet", "facts", *_):
                return self.facts(name)
            case ("down", *_):
                self.runs[name] = 0
                return {"state": "stopped"}
            case ("up", *_):
                self.runs[name] = self.runs[name] or len(self.hosts.asked)
                return {"state": "ready" if name == "a" else "running"}
            case _:
                return {"state": "ready"}

    def facts(self, name: str) -> Answer:
        number = {"a": 1, "b": 2}[name]
        engine = {"phase": "running" if self.runs[name] else "absent"}
        peers = {f"192.168.9.{3 - number}": True}
        return {"home": "/h", "assets": "/a", "links": [link(f"192.168.9.{number}")], "peers": peers, "engine": engine}

    @property
    def starts(self) -> list[str]:
        """The stops and starts on the hosts, in order; those of hosts at the same time sorted."""
        done = [(command.split()[0], name) for name, command in self.hosts.asked]
        return [f"{verb} {name}" for verb, name in done if verb in {"up", "down"}]


def once(name: str, verb: str, problem: DeployError, *, times: int = 1) -> Change:
    """This command of a host fails the first times."""
    left = [times]

    def change(host: str, command: tuple[str, ...]) -> Answer | None:
        if host == name and command[0] == verb and left[0]:
            left[0] -= 1
            raise problem
        return None

    return change


def test_ranks_that_run_with_their_settings_stay(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch)
    assert errors(fleet_up(directory)) == {}
    assert sorted(ranks.starts) == ["up a", "up b"]


def test_settings_of_an_interrupted_command_restart_all_ranks_together(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch)
    # nothing changes any more, and all ranks run: but with the settings of before
    ranks.marks = dict.fromkeys("ab", "other")
    assert errors(fleet_up(directory)) == {}
    assert (sorted(ranks.starts[:2]), ranks.starts[2:]) == (["down a", "down b"], ["up b", "up a"])
    marked = [number for number, (_, command) in enumerate(ranks.hosts.asked) if " mark " in command]
    first_start = next(number for number, (_, command) in enumerate(ranks.hosts.asked) if command.startswith("up "))
    # a command that is killed during the start finds it again, and waits for it
    assert len(marked) == 2
    assert max(marked) < first_start


def test_all_hosts_have_their_weights_before_a_rank_stops_or_starts(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if (name, command[:2]) == ("b", ("fleet", "fetch")) and fails[0]:
            return DownloadFailed("the disk is full", hint="free space")
        return None

    ranks = Ranks(monkeypatch, change)
    ranks.marks = dict.fromkeys("ab", "other")
    assert errors(fleet_up(directory)) == {"b": "b: the disk is full"}
    assert sorted(ranks.hosts.commands("fleet fetch")) == ["a", "b"]
    assert ranks.starts == []
    fails[0] = False
    assert errors(fleet_up(directory)) == {}
    asked = [command for _, command in ranks.hosts.asked]
    last_fetch = max(number for number, command in enumerate(asked) if command.startswith("fleet fetch"))
    assert last_fetch < next(number for number, command in enumerate(asked) if command.startswith("down"))
    # ranks that run with their settings have them
    ranks.hosts.asked.clear()
    assert errors(fleet_up(directory)) == {}
    assert ranks.hosts.commands("fleet fetch") == []


def test_one_answer_that_is_lost_ends_no_start(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, once("b", "down", lost("b"), times=2))
    ranks.marks = dict.fromkeys("ab", "other")
    assert errors(fleet_up(directory)) == {}
    assert "up a" in ranks.starts


def test_a_worker_that_becomes_unfit_ends_the_start_by_name(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted, looks = threading.Event(), [0]

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "a" and command[0] == "up":
            assert interrupted.wait(60)
            return EngineNotReady("interrupted", hint="x")
        if name == "a" and command[0] == "interrupt":
            interrupted.set()
        if name == "b" and command[:2] == ("fleet", "facts") and "--dir" in command and ranks.runs["b"] > 2:
            looks[0] += 1
            raise HostUnfit("b: a command ended with exit code 1: killed", hint="check it")
        return None

    ranks = Ranks(monkeypatch, change)
    ranks.marks = dict.fromkeys("ab", "other")
    said = errors(fleet_up(directory))
    assert set(said) == {"b"}
    assert said["b"].startswith("b: its rank cannot be checked while the leader starts, so all are stopped")
    assert looks == [2]
    assert ranks.runs == {"a": 0, "b": 0}


def test_one_look_that_fails_ends_no_start(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    looks = [0]

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "a" and command[0] == "up":
            assert looked.wait(60)
        if name == "b" and command[:2] == ("fleet", "facts") and "--dir" in command and ranks.runs["b"] > 2:
            looks[0] += 1
            if looks[0] == 1:
                raise HostUnfit("b: the output of `fleet facts` is not JSON", hint="x")
            looked.set()
        return None

    ranks = Ranks(monkeypatch, change)
    ranks.marks = dict.fromkeys("ab", "other")
    assert errors(fleet_up(directory)) == {}
    assert ranks.hosts.commands("interrupt") == []
