"""`fleet keys` on hosts that answer from a script: what they accept when, and what an interrupted change continues."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.keys import keys_file, write_keys
from dflash_deploy.errors import EngineNotReady, HostUnprepared, KeyNotReplaced, NotPossible
from dflash_deploy.features.fleet import keys as fleet_keys
from dflash_deploy.features.fleet import settings as fleet_settings
from dflash_deploy.features.fleet.file import WantedKeys
from dflash_deploy.features.fleet.keys import fleet_accept, fleet_add_key, fleet_revoke_key, fleet_rotate_key
from dflash_deploy.features.fleet.operations import fleet_down
from dflash_deploy.features.fleet.up import fleet_up
from dflash_deploy.redact import Secret
from dflash_deploy.serve.api_keys import OWNER, ApiKey
from dflash_deploy.serve.gateway.keys import accepted, read_accepted
from tests.support.cli import initialise
from tests.support.scripted_hosts import Answer, Change, ScriptedFleet, errors, link, lost, nothing_else

FLEET = """shape: replicas
router: off
hosts:
  - {name: a, address: a.invalid, program: dflash-deploy}
  - {name: b, address: b.invalid, program: dflash-deploy}
"""


class Hosts(ScriptedFleet):
    """Two hosts whose engines run. `accept` is what `fleet accept` got on each, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Change = nothing_else) -> None:
        super().__init__(monkeypatch, "ab", change, mark="same")

    def answer(self, name: str, command: tuple[str, ...]) -> Answer:
        match command:
            case ("fleet", "facts", *_):
                number = {"a": 1, "b": 2}[name]
                engine = {"phase": "running"}
                return {"home": "/h", "assets": "/a", "links": [link(f"192.168.9.{number}")], "engine": engine}
            case ("fleet", "accept", *_):
                return {"state": "accepted"}
            case _:
                return {"state": "ready", "endpoint": "http://x:8000/v1"}

    def accepts(self, name: str) -> Iterator[dict[str, Any]]:
        """What one host was asked to accept, in order."""
        for host, command, content in self.hosts.read:
            if host == name and command.startswith("fleet accept"):
                yield json.loads(content)

    def also(self, name: str) -> list[list[str]]:
        """The digests that one host accepted beside the keys of its `.env`, after each call."""
        return [[one["sha256"] for one in asked["also"]] for asked in self.accepts(name)]

    def proven(self, name: str) -> list[list[tuple[str, int]]]:
        """The keys that one host had to prove, and their status, in each call."""
        return [[(one["key"], one["status"]) for one in asked["proofs"]] for asked in self.accepts(name)]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    initialise("--profile", "cpu", "--engine", "vllm", "--runtime", "native", at=tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    monkeypatch.setattr(fleet_settings, "PAUSE", 0.0)
    return tmp_path


def named(directory: Path, name: str) -> ApiKey:
    return next(key for key in Deployment(directory).further_keys if key.name == name)


def owner(directory: Path) -> ApiKey:
    return ApiKey(OWNER, Deployment(directory).key.reveal())


def digest_of(key: ApiKey) -> str:
    return accepted(key).digest.hex()


def changing(directory: Path) -> bool:
    """Whether hosts may accept a key that `.env` does not have."""
    return (directory / ".dflash" / "key-changing").exists()


def failing(name: str, *, at: int) -> Change:
    """From its call number `at`, `fleet accept` is lost on this host."""
    seen = [0]

    def change(host: str, command: tuple[str, ...]) -> Answer | None:
        if host == name and command[:2] == ("fleet", "accept"):
            seen[0] += 1
            if seen[0] >= at:
                raise lost(name)
        return None

    return change


def test_all_hosts_accept_a_new_key_before_env_has_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [Deployment(directory).further_keys]

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if command[:2] == ("fleet", "accept"):
            before.append(Deployment(directory).further_keys)
        return None

    hosts = Hosts(monkeypatch, change)
    done = fleet_add_key(directory, "alice", in_flight=3)
    key = named(directory, "alice")
    assert (done.finished, errors(done), changing(directory)) == (True, {}, False)
    assert [len(keys) for keys in before] == [0, 0, 0, 1, 1]
    for name in "ab":
        assert hosts.also(name) == [[digest_of(key)], []]
        assert hosts.proven(name)[0] == [(key.key, 200)]
        first, last = hosts.accepts(name)
        assert (first["further"], last["further"]) == (None, key.written())
    assert not hosts.hosts.commands("restart")
    # the engines need no restart for it: the next `fleet up` causes none
    assert hosts.marks == {"a": "same", "b": "same"}
    assert not any(key.key in command for _, command in hosts.hosts.asked)


def test_nobody_gets_a_key_that_a_host_does_not_accept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hosts(monkeypatch, failing("b", at=1))
    done = fleet_add_key(directory, "alice")
    assert (done.finished, errors(done)) == (False, {"b": "b: lost"})
    assert Deployment(directory).further_keys == ()
    hosts = Hosts(monkeypatch)
    assert fleet_up(directory).failure is None
    # the host that accepts it forgets it
    assert hosts.also("a") == [[]]
    assert not changing(directory)


def test_a_key_is_rejected_on_the_hosts_that_answer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hosts(monkeypatch)
    fleet_add_key(directory, "alice")
    key = named(directory, "alice")
    hosts = Hosts(monkeypatch, failing("b", at=1))
    done = fleet_revoke_key(directory, "alice")
    assert (done.finished, errors(done)) == (False, {"b": "b: lost"})
    assert Deployment(directory).further_keys == ()
    assert hosts.proven("a") == [[(key.key, 401)]]
    with pytest.raises(NotPossible, match="no key has the name `alice`"):
        fleet_revoke_key(directory, "alice")
    # `fleet up` gives the other host the keys of `.env`
    hosts = Hosts(monkeypatch)
    assert fleet_up(directory).failure is None
    assert hosts.also("b") == [[]]
    assert not changing(directory)


def test_both_keys_are_valid_until_the_last_step(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(fleet_keys, "time", SimpleNamespace(sleep=waited.append))
    Hosts(monkeypatch)
    fleet_add_key(directory, "alice", scope="metrics", in_flight=2)
    old = named(directory, "alice")
    hosts = Hosts(monkeypatch)
    assert fleet_rotate_key(directory, "alice", overlap=7.0).finished
    new = named(directory, "alice")
    assert (new.scope, new.in_flight) == ("metrics", 2)
    assert new.key != old.key
    both = [digest_of(new), digest_of(old)]
    assert hosts.also("a") == hosts.also("b") == [both, both, []]
    assert hosts.proven("b") == [[(new.key, 200)], [], [(old.key, 401)]]
    assert waited == [7.0]
    assert not hosts.hosts.commands("restart")


def test_engines_restart_one_after_the_other_for_the_key_of_the_owner(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = owner(directory)

    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        # the new key in `.env` makes the settings others than those of the engine
        if (
            command[:2] == ("fleet", "accept")
            and owner(directory).key != old.key
            and not hosts.hosts.commands("restart")
        ):
            hosts.marks[name] = "other"
        return None

    hosts = Hosts(monkeypatch, change)
    assert fleet_rotate_key(directory, overlap=0.0).finished
    new = owner(directory)
    assert hosts.hosts.commands("restart") == ["a", "b"]
    assert hosts.also("a") == [[digest_of(new), digest_of(old)]] * 2 + [[]]
    assert [asked["owner"] for asked in hosts.accepts("b")] == [None, new.key, new.key]
    assert hosts.proven("b")[-1] == [(old.key, 401)]


def test_an_interrupted_rotation_is_repeated_with_another_key(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hosts(monkeypatch, failing("b", at=2))
    done = fleet_rotate_key(directory, overlap=0.0)
    assert (done.finished, errors(done)) == (False, {"b": "b: lost"})
    first = owner(directory)
    # another change would lose the old key too early
    with pytest.raises(NotPossible, match="a change of the key `owner` is not finished") as refused:
        fleet_add_key(directory, "alice")
    assert refused.value.hint == "finish it first: dflash-deploy fleet up"
    hosts = Hosts(monkeypatch)
    assert fleet_rotate_key(directory, overlap=0.0).finished
    # clients have the key of `.env`, and no request with it is refused
    assert hosts.also("a") == [[digest_of(owner(directory)), digest_of(first)]] * 2 + [[]]
    assert not changing(directory)


def test_a_failed_restart_leaves_both_keys_valid(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        if (name, command[0]) == ("a", "restart"):
            return EngineNotReady("no memory", hint="x")
        return "other\n" if command[0] == "settings" and command[2] == "compare" else None

    hosts = Hosts(monkeypatch, change)
    done = fleet_rotate_key(directory, overlap=0.0)
    assert errors(done) == {"a": "a: no memory", "b": "b: not restarted: a: no memory"}
    assert [len(digests) for digests in hosts.also("a")] == [2, 2]
    assert changing(directory)
    # `fleet up` finishes it as soon as all engines run with `.env`
    hosts = Hosts(monkeypatch)
    assert fleet_up(directory).failure is None
    assert hosts.also("b") == [[]]
    assert not changing(directory)


def test_a_revocation_leaves_an_unfinished_rotation_as_it_is(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hosts(monkeypatch)
    fleet_add_key(directory, "alice")
    Hosts(monkeypatch, failing("b", at=2))
    fleet_rotate_key(directory, overlap=0.0)
    hosts = Hosts(monkeypatch)
    assert fleet_revoke_key(directory, "alice").finished
    # the hosts keep what they accept beside `.env`
    assert [asked["also"] for asked in hosts.accepts("a")] == [None]
    assert changing(directory)


def test_a_host_without_a_deployment_gets_the_keys_with_fleet_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        return HostUnprepared("no deployment found in /h", hint="x") if "accept" in command and name == "b" else None

    Hosts(monkeypatch, change)
    done = fleet_add_key(directory, "alice")
    assert done.finished
    assert {one.name: one.state for one in done.hosts} == {"a": "accepted", "b": "absent"}


@pytest.mark.parametrize("command", ["accept", "down"])
def test_a_host_whose_engine_another_release_started_is_not_one_without_a_deployment(
    command: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hosts(monkeypatch)
    fleet_add_key(directory, "alice")

    def change(name: str, words: tuple[str, ...]) -> Answer | None:
        if name == "b" and command in words:
            raise HostUnprepared("b: dflash-deploy 0.1.0 is not installed there", hint="`dflash-deploy fleet up`")
        return "yes\n" if (name, words[0]) == ("b", "deployed") else None

    Hosts(monkeypatch, change)
    if command == "down":
        assert errors(fleet_down(directory)) == {"b": "b: dflash-deploy 0.1.0 is not installed there"}
        return
    # its engine still accepts the key
    done = fleet_revoke_key(directory, "alice")
    assert (done.finished, errors(done)) == (False, {"b": "b: dflash-deploy 0.1.0 is not installed there"})
    assert changing(directory)


def test_an_engine_that_refuses_the_new_key_ends_the_change(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        refused = KeyNotReplaced("the engine answers the key `alice` with 401, expected 200", hint="x")
        return refused if "accept" in command and name == "b" else None

    Hosts(monkeypatch, change)
    done = fleet_add_key(directory, "alice")
    assert errors(done) == {"b": "b: the engine answers the key `alice` with 401, expected 200"}
    assert Deployment(directory).further_keys == ()


@pytest.mark.parametrize("name", ["owner", "Alice", "key-1"])
def test_names_that_are_not_valid(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch)
    with pytest.raises(NotPossible):
        fleet_add_key(directory, name)
    assert not hosts.hosts.asked


def test_a_host_accepts_keys_until_the_terminal_says_otherwise(directory: Path) -> None:
    deployment = Deployment(directory)
    old, new, further = owner(directory), ApiKey(OWNER, "n" * 43), ApiKey("alice", "a" * 43, "infer", in_flight=2)
    digests = {accepted(new), accepted(old)}
    both = WantedKeys(tuple(digests), owner=Secret(new.key), further=(further,))
    assert fleet_accept(directory, both.document()).document() == {"state": "stopped", "answers": []}
    assert (owner(directory), Deployment(directory).further_keys) == (new, (further,))
    assert digests < set(read_accepted(keys_file(deployment)))
    # a start of the engine writes the file again
    write_keys(Deployment(directory))
    assert digests < set(read_accepted(keys_file(deployment)))
    fleet_accept(directory, WantedKeys(None).document())
    assert digests < set(read_accepted(keys_file(deployment)))
    text = (keys_file(deployment).with_name("replacing.json")).read_text()
    assert not [key for key in (old, new) if key.key in text]

    # `fleet up` kept the file with the old keys
    deployment.last_env_file.write_text(f"VLLM_API_KEY={old.key}\nDFLASH_API_KEYS=bob:{'b' * 43}\n")
    fleet_accept(directory, WantedKeys().document())
    assert deployment.last_env_file.read_text() == f"VLLM_API_KEY={new.key}\nDFLASH_API_KEYS={further.written()}\n"
    assert read_accepted(keys_file(deployment)) == (accepted(further),)
    assert (owner(directory), Deployment(directory).further_keys) == (new, (further,))
    assert [file.name for file in keys_file(deployment).parent.iterdir()] == ["keys.json"]
