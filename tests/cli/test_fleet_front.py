"""Replicas behind one router on hosts that answer from a script: who restarts when, and who gets requests."""

from itertools import pairwise
from pathlib import Path

import pytest

from dflash_deploy.deployment import front
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import EngineNotReady, HostUnfit, HostUnreachable, NotPossible
from dflash_deploy.features.fleet import host as fleet_host
from dflash_deploy.features.fleet import settings as fleet_settings
from dflash_deploy.features.fleet.host import fleet_route
from dflash_deploy.features.fleet.operations import fleet_down, fleet_status
from dflash_deploy.features.fleet.ssh import NO_ROUTER
from dflash_deploy.features.fleet.up import fleet_restart, fleet_up
from dflash_deploy.operations.reporter import Silent
from dflash_deploy.serve.router.files import RoutedEngine
from tests.support.cli import initialise
from tests.support.scripted_hosts import Answer, Change, ScriptedFleet, errors, link, lost, nothing_else

ADDRESS = {"a": "192.168.9.1:8000", "b": "192.168.9.2:8000", "c": "192.168.9.3:8000"}


class Noted(Silent):
    """Keeps the lines for people."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


class Replicas(ScriptedFleet):
    """Hosts with an engine each, and a router on the first. All run with other settings than those of `.env`."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, change: Change = nothing_else, *, names: str = "abc"
    ) -> None:
        hosts = "".join(f"  - {{name: {name}, address: {name}.invalid, program: dflash-deploy}}\n" for name in names)
        (directory / "fleet.yaml").write_text(f"shape: replicas\nhosts:\n{hosts}")
        self.runs = set(names)
        self.router_engines = [ADDRESS[name] for name in names[1:]]
        """ROUTER_ENGINES of the router's host."""
        self.refused: dict[str, str] = {}
        """Engines that do not answer the router, and why."""
        super().__init__(monkeypatch, names, change, mark="other")

    def answer(self, name: str, command: tuple[str, ...]) -> Answer:
        match command:
            case ("fleet", "facts", *_):
                return self.facts(name)
            case ("fleet", "route", *_):
                return self.route(command)
            case ("down", *_):
                self.runs.discard(name)
                return {"state": "stopped"}
            case ("up" | "restart", *_):
                self.runs.add(name)
                return {"state": "ready", "endpoint": "http://x:8000/v1"}
            case _:
                return {"state": "ready", "endpoint": "https://llm.example.com/v1"}

    def facts(self, name: str) -> dict[str, object]:
        links = [link(ADDRESS[name].partition(":")[0])]
        facts: dict[str, object] = {"home": "/h", "assets": "/a", "links": links}
        facts["engine"] = {"phase": "running" if name in self.runs else "absent"}
        if name == self.names[0]:
            urls = [f"http://{address}" for address in self.router_engines if address not in self.refused]
            facts |= {"router_engines": self.router_engines, "routed": ["http://127.0.0.1:8003", *urls]}
        return facts

    def route(self, command: tuple[str, ...]) -> Answer:
        if not self.router_engines:
            return NotPossible("ROUTER_ENGINES is empty", hint="x")
        without = {value for word, value in pairwise(command) if word == "--without"}
        left_out = {address: why for address, why in self.refused.items() if address in self.router_engines}
        left_out |= dict.fromkeys(without, "as requested")
        return {"engines": [one for one in self.router_engines if one not in left_out], "left_out": left_out}

    @property
    def turns(self) -> list[str]:
        """Who left the router's list and who was started, in order."""
        done = []
        for name, command in self.hosts.asked:
            verb, *rest = command.split()
            if verb in {"up", "restart", "down"}:
                done.append(f"{verb} {name}")
            elif "--without" in rest:
                left = rest[rest.index("--without") + 1]
                done.append(f"leaves {next(key for key, value in ADDRESS.items() if value == left)}")
        return done


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    initialise("--profile", "cpu", "--engine", "vllm", "--runtime", "native", at=tmp_path)
    monkeypatch.setattr(fleet_settings, "PAUSE", 0.0)
    return tmp_path


def losing(name: str, words: str, *, times: int = 1000) -> Change:
    """The first answers of a host to commands with these words are lost."""
    left = [times]

    def change(host: str, command: tuple[str, ...]) -> Answer | None:
        if host == name and words in " ".join(command) and left[0]:
            left[0] -= 1
            raise lost(name)
        return None

    return change


IN_TURNS = ["up a", "leaves b", "up b", "leaves c", "up c"]


def test_settings_of_an_interrupted_command_restart_one_host_after_the_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `.env` is the same on all hosts already, but no engine runs with it
    replicas = Replicas(directory, monkeypatch)
    assert errors(fleet_up(directory)) == {}
    assert replicas.turns == IN_TURNS
    replicas.hosts.asked.clear()
    assert errors(fleet_up(directory)) == {}
    assert sorted(replicas.turns) == ["up a", "up b", "up c"]


def test_a_start_that_failed_takes_its_turn_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [True]

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        return EngineNotReady("no memory", hint="x") if (name, command[0]) == ("b", "up") and fails[0] else None

    replicas = Replicas(directory, monkeypatch, change)
    assert set(errors(fleet_up(directory))) == {"b", "c"}
    assert replicas.turns == ["up a", "leaves b", "up b"]
    assert replicas.marks == {"a": "same", "b": "other", "c": "other"}
    fails[0] = False
    replicas.hosts.asked.clear()
    assert errors(fleet_up(directory)) == {}
    assert replicas.turns == IN_TURNS
    # after a start that failed it is unknown with which settings the engine runs
    fails[0] = True
    assert set(errors(fleet_up(directory))) == {"b"}
    assert replicas.marks == {"a": "same", "b": "other", "c": "same"}


def test_a_host_that_does_not_get_requests_again_stops_the_roll(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = Replicas(directory, monkeypatch)
    replicas.refused = {ADDRESS["b"]: "no route to host"}
    said = errors(fleet_restart(directory))
    assert said["b"] == f"b: the router on a sends no requests to {ADDRESS['b']}: no route to host"
    assert said["c"].startswith("c: not restarted: b: the router on a")
    assert replicas.turns == ["restart a", "leaves b", "restart b"]


def test_a_new_host_that_the_router_does_not_know_has_failed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas(directory, monkeypatch)
    replicas.router_engines.remove(ADDRESS["c"])
    replicas.runs.discard("c")
    done = fleet_up(directory, ("c",))
    assert errors(done) == {"c": f"c: the router on a does not know {ADDRESS['c']}"}
    assert done.failure is not None
    assert "without --host" in done.failure.hint


@pytest.mark.parametrize(("said", "restarts"), [("the router did not take over its list", False), (NO_ROUTER, True)])
def test_only_without_a_router_an_engine_restarts_while_it_is_on_the_list(
    said: str, restarts: bool, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        return EngineNotReady(said, hint="x") if "--without" in command else None

    replicas = Replicas(directory, monkeypatch, change)
    assert (errors(fleet_restart(directory, ("b",))) == {}) == restarts
    assert ("restart b" in replicas.turns) == restarts


def test_a_host_that_does_not_answer_keeps_all_from_restarting(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = Replicas(directory, monkeypatch, losing("b", "facts"))
    with pytest.raises(HostUnreachable, match="b: lost"):
        fleet_restart(directory)
    assert replicas.turns == []


def test_one_lost_answer_changes_no_turn(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas(directory, monkeypatch, losing("b", "facts", times=1))
    assert errors(fleet_restart(directory)) == {}
    assert replicas.turns == ["restart a", "leaves b", "restart b", "leaves c", "restart c"]
    # whether its engine runs is asked again too: unknown is not "does not run"
    replicas = Replicas(directory, monkeypatch, losing("b", "facts --json --dir", times=1))
    assert errors(fleet_up(directory)) == {}
    assert replicas.turns == IN_TURNS


def test_addresses_stay_while_a_host_is_missing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_leader = losing("a", "facts --json --dir", times=1)

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "b":
            raise lost("b")
        if (answer := asked_leader(name, command)) is not None or command[:2] != ("fleet", "facts"):
            return answer
        # a faster link joins the others, and b is not on it
        number = {"a": 1, "c": 3}[name]
        faster = link(f"192.168.8.{number}", "fab1")
        facts = replicas.facts(name)
        links = facts["links"]
        assert isinstance(links, list)
        return {**facts, "links": [*links, {**faster, "speed": 200_000}]}

    replicas, noted = Replicas(directory, monkeypatch, change), Noted()
    assert errors(fleet_up(directory, reporter=noted)) == {"b": "b: lost"}
    assert [line for line in noted.lines if "serves the router" in line] == [
        f"c            serves the router at {ADDRESS['c']} (fab0)"
    ]
    assert "leaves c" in replicas.turns


def test_without_an_answer_of_the_leader_no_list_is_written(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "b" or "facts --json --dir" in " ".join(command):
            raise lost(name)
        return None

    replicas = Replicas(directory, monkeypatch, change)
    with pytest.raises(HostUnreachable, match="a: lost"):
        fleet_up(directory)
    assert not replicas.hosts.commands("receive")


def test_two_hosts_and_the_other_one_is_down_before_it_was_ever_known(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "b":
            raise lost("b")
        if "facts --json --dir" in " ".join(command) and not replicas.turns:
            raise HostUnfit("a: a command ended with exit code 2", hint="x")
        return None

    replicas = Replicas(directory, monkeypatch, change, names="ab")
    replicas.router_engines, replicas.marks["a"] = [], "same"
    done = fleet_up(directory)
    assert errors(done) == {"b": "b: lost"}
    assert {one.host.name: one.state for one in done.hosts}["a"] == "ready"


def test_without_the_leader_another_host_takes_its_place(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if name == "a":
            raise lost("a")
        if (name, command[0]) == ("b", "up"):
            replicas.router_engines = [ADDRESS["c"]]
        return None

    replicas = Replicas(directory, monkeypatch, change)
    done = fleet_up(directory)
    assert replicas.turns == []
    assert done.failure is not None
    assert "`role: leader` for b in fleet.yaml, and `fleet up` again" in done.failure.hint

    file = directory / "fleet.yaml"
    text = file.read_text()
    file.write_text(text.replace("name: a,", "name: a, role: leader,"))
    failure = fleet_up(directory).failure
    assert failure is not None
    assert "`role: leader` for b and not for a in fleet.yaml" in failure.hint
    file.write_text(text)
    file.write_text(file.read_text().replace("name: b,", "name: b, role: leader,"))
    # the host that was behind a router has none of its own yet
    replicas.names, replicas.router_engines = "bac", []
    done = fleet_up(directory)
    assert errors(done) == {"a": "a: lost"}
    assert done.router == "b"
    assert replicas.turns == ["up b", "leaves c", "up c"]
    assert set(replicas.hosts.commands("fleet route")) == {"b"}


def test_a_host_stops_though_no_link_joins_the_others(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        return {**replicas.facts(name), "links": []} if command[:2] == ("fleet", "facts") and name == "b" else None

    replicas, noted = Replicas(directory, monkeypatch, change), Noted()
    assert errors(fleet_down(directory, ("b",), reporter=noted)) == {}
    assert replicas.turns == ["down b"]
    assert any("its router was not asked: no link joins the hosts" in line for line in noted.lines)


def test_status_knows_who_gets_requests_by_the_address_of_the_router(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the endpoints that the hosts print are those of a domain
    replicas = Replicas(directory, monkeypatch)
    replicas.refused = {ADDRESS["c"]: "no answer"}
    assert {one.host.name: one.routed for one in fleet_status(directory).hosts} == {"a": True, "b": True, "c": False}


def test_all_hosts_get_the_same_keys_of_the_router(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas(directory, monkeypatch)
    # as if none of them saw what another one wrote at the same moment
    monkeypatch.setattr(front, "router_keys", lambda deployment: None)
    assert errors(fleet_up(directory)) == {}
    sent = [command.split()[-1] for _, command in replicas.hosts.asked if "router/keys.json" in command]
    assert len(sent) == 3
    assert len(set(sent)) == 1


def test_an_engine_that_left_the_list_in_an_interrupted_call_is_drained_too(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = directory / ".env"
    env.write_text(f"{env.read_text()}\nROUTER_ENGINES={ADDRESS['b']},{ADDRESS['c']}\n")

    class Routed:
        phase = "running"
        router = property(lambda self: self)

        def state(self) -> "Routed":
            return self

        def only(self, workers: tuple[RoutedEngine, ...]) -> None:
            """The router takes over any list."""

    drained: list[str] = []
    monkeypatch.setattr(fleet_host, "several_runtime", lambda deployment, plan: Routed())
    monkeypatch.setattr(fleet_host, "Routes", lambda deployment, state: Routed())
    monkeypatch.setattr(fleet_host, "proven", lambda deployment, plan, listed, without: ((), {}))
    monkeypatch.setattr(fleet_host, "_drain", lambda deployment, plan, worker, reporter: drained.append(worker.id))
    assert front.written_workers(Deployment(directory)) == ()
    assert fleet_route(directory, without=(ADDRESS["b"],)).left_out == {ADDRESS["b"]: "as requested"}
    assert drained == [ADDRESS["b"]]
