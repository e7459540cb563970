"""One engine over hosts that answer from a script: when all ranks restart together, and when nothing does."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash_deploy.deployment.directory import Deployment, owe_start, owed_start
from dflash_deploy.errors import DeployError, DownloadFailed, EngineNotReady, ExitCode, HostUnfit
from dflash_deploy.features.fleet import change as fleet_change
from dflash_deploy.features.fleet import each
from dflash_deploy.features.fleet.change import MOST_FAILURES, RankWatch, fleet_watch
from dflash_deploy.features.fleet.operations import fleet_down
from dflash_deploy.features.fleet.settings import open_fleet
from dflash_deploy.features.fleet.up import fleet_up
from dflash_deploy.operations.reporter import SILENT
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
    monkeypatch.setattr(each, "PAUSE", 0.0)
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
        engine = {"phase": "running" if self.runs[name] else "absent", "identity": str(self.runs[name])}
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


def test_a_watch_that_gave_up_owes_a_start_until_it_is_settled(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        return EngineNotReady("no memory", hint="free it") if command[0] == "up" and fails[0] else None

    ranks = Ranks(monkeypatch, change)
    ranks.runs["b"] = 0
    with pytest.raises(EngineNotReady, match=f"gave up after {MOST_FAILURES} failed starts: b: no memory") as raised:
        fleet_watch(directory, every=0.0, looks=10)
    assert raised.value.exit_code is ExitCode.NOT_READY
    assert ranks.runs == {"a": 0, "b": 0}
    assert "no memory" in owed_start(Deployment(directory))
    # the next watch does not take them for an engine that was stopped on purpose
    fails[0] = False
    assert fleet_watch(directory, looks=1) == 1
    assert all(ranks.runs.values())
    assert owed_start(Deployment(directory)) == ""


def test_a_watch_starts_nothing_that_was_stopped_on_purpose(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch)
    owe_start(Deployment(directory), "b: lost")
    fleet_down(directory)
    assert fleet_watch(directory, looks=1) == 0
    assert not any(ranks.runs.values())


def test_a_watch_starts_nothing_that_was_stopped_while_a_host_was_out_of_reach(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = [True]

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "b" and away[0]:
            raise lost("b")
        return None

    ranks = Ranks(monkeypatch, change)
    assert errors(fleet_down(directory)) == {"b": "b: lost"}
    watch = RankWatch(open_fleet(directory, (), SILENT), {"a": "192.168.9.1", "b": "192.168.9.2"}, 1.0)
    watch.look_once()
    assert owed_start(Deployment(directory)) == ""
    away[0] = False
    watch.look_once()
    assert ranks.starts == ["down a", "down b"]
    assert ranks.runs == {"a": 0, "b": 2}


def test_a_watch_looks_again_before_it_owes_a_start(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "b":
            raise lost("b")
        if command[0] == "status":
            # `fleet down` stops the leader while it is asked
            ranks.runs["a"] = 0
            return {"state": "absent"}
        return None

    ranks = Ranks(monkeypatch, change)
    RankWatch(open_fleet(directory, (), SILENT), {"a": "192.168.9.1", "b": "192.168.9.2"}, 1.0).look_once()
    assert ranks.starts == []
    assert owed_start(Deployment(directory)) == ""


@pytest.mark.parametrize(("state", "restarts"), [("ready", 0), ("not ready", 1)])
def test_an_engine_that_answers_settles_the_start_that_is_owed(
    state: str, restarts: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch, lambda name, command: {"state": state} if command[0] == "status" else None)
    # a watch that was killed after the start
    owe_start(Deployment(directory), "b: lost")
    assert fleet_watch(directory, looks=1) == restarts
    assert bool(ranks.starts) == bool(restarts)
    assert owed_start(Deployment(directory)) == ""


@pytest.mark.parametrize(("unanswered", "stopped"), [(1, False), (2, True)])
def test_a_leader_is_asked_again_before_the_other_ranks_are_stopped(
    unanswered: int, stopped: bool, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = once("a", "status", lost("a"), times=unanswered)

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "b" and "--dir" in command and command[:2] == ("fleet", "facts"):
            raise lost("b")
        return silent(name, command)

    ranks = Ranks(monkeypatch, change)
    fleet_watch(directory, looks=1)
    assert ("down a" in ranks.starts) == stopped
    assert bool(owed_start(Deployment(directory))) == stopped


def test_one_wrong_look_restarts_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [0]

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "b" and "--dir" in command and command[:2] == ("fleet", "facts"):
            looks[0] += 1
            if looks[0] == 1:
                facts = ranks.facts("b")
                assert isinstance(facts, dict)
                return facts | {"engine": {"phase": "exited", "identity": "2"}}
        return None

    ranks = Ranks(monkeypatch, change)
    assert fleet_watch(directory, looks=1) == 0
    assert ranks.starts == []


def test_looks_that_take_long_begin_at_the_same_pace(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "a" and "--peer" in command:
            now[0] += 4.0
        return None

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    Ranks(monkeypatch, change)
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, strftime=lambda form: form)
    monkeypatch.setattr(fleet_change, "time", clock)
    assert fleet_watch(directory, every=10.0, looks=3) == 0
    assert slept == [0.0, 6.0, 6.0]
