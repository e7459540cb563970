"""`fleet keys usage` on hosts that answer from a script: the sums by name, and hosts that do not answer."""

from pathlib import Path
from typing import Any

import pytest

from dflash_deploy.errors import EngineNotReady, ExitCode
from dflash_deploy.features.fleet.operations import fleet_usage_of_keys
from tests.support.cli import initialise, invoke
from tests.support.scripted_hosts import Answer, Change, ScriptedFleet, nothing_else

FLEET = """shape: {shape}
router: off
hosts:
  - {{name: a, address: a.invalid, program: dflash-deploy}}
  - {{name: b, address: b.invalid, program: dflash-deploy}}
"""


def used(name: str, answered: int, tokens: int) -> dict[str, Any]:
    requests = {"200": answered, "429": 1}
    return {"name": name, "requests": requests, "prompt_tokens": tokens, "generation_tokens": 7, "in_flight": 1}


class Hosts(ScriptedFleet):
    """Two hosts whose engines counted requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Change = nothing_else) -> None:
        super().__init__(monkeypatch, "ab", change, mark="same")

    def answer(self, name: str, command: tuple[str, ...]) -> Answer:
        rows = {"a": [used("owner", 2, 10), used("alice", 3, 2**40)], "b": [used("alice", 5, 2**40)]}
        return {"endpoint": f"http://{name}:8000/v1", "keys": rows[name]}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    initialise("--profile", "cpu", "--engine", "vllm", "--runtime", "native", at=tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET.format(shape="replicas"))
    return tmp_path


def test_the_hosts_are_added_up_by_name(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hosts(monkeypatch)
    found = fleet_usage_of_keys(directory)
    assert [one.name for one in found.keys] == ["alice", "owner"]
    alice = found.keys[0]
    assert (alice.requests, alice.prompt_tokens, alice.generation_tokens) == ({"200": 8, "429": 2}, 2**41, 14)
    assert alice.in_flight == 2
    assert [one.state for one in found.hosts] == ["counted", "counted"]


def test_a_host_that_does_not_answer_is_named_beside_the_sums_of_the_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(name: str, command: tuple[str, ...]) -> Answer | None:
        return EngineNotReady("the endpoint does not answer", hint="x") if name == "a" else None

    Hosts(monkeypatch, change)
    ran = invoke("fleet", "keys", "usage", "--dir", str(directory))
    assert ran.code is ExitCode.NOT_READY
    assert "a: the endpoint does not answer" in ran.out + ran.err
    assert [line.split()[:2] for line in ran.out.splitlines() if line.startswith("alice")] == [["alice", "6"]]


def test_of_one_engine_over_hosts_only_the_leader_counts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "fleet.yaml").write_text(FLEET.format(shape="one-engine"))
    hosts = Hosts(monkeypatch)
    found = fleet_usage_of_keys(directory)
    assert hosts.hosts.commands("keys usage") == ["a"]
    assert [one.name for one in found.keys] == ["alice", "owner"]
