"""One vLLM with DFlash over two hosts: ranks that start together, and restart together.

The tests share one engine and run in this order: a start takes most of a minute.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import initialise
from tests.support.fleet_command import started
from tests.support.fleet_lab import FABRIC, Lab, states
from tests.support.split_target import target_for_two

ENGINE = "vllm.entrypoints"
"""In the arguments of a rank's first process."""


@pytest.fixture(scope="module")
def pair(whole_lab: Lab) -> Iterator[Lab]:
    """Two hosts for one engine, without an engine, and a deployment directory of their own on the terminal."""
    lab = replace(whole_lab, directory=whole_lab.root / "one-engine")
    lab.directory.mkdir()
    initialise("--profile", "cpu", "--engine", "vllm", "--runtime", "native", "--port", "8000", at=lab.directory)
    lab.clear()
    target = target_for_two(lab.directory / "target")
    # model information that vLLM has collected once saves half of a start
    cache = Path.home() / ".cache" / "vllm"
    lab.write_fleet("shape: one-engine", f"settings: {{MODEL_HOST_PATH: {target}, VLLM_CACHE_ROOT: {cache}}}")
    yield lab
    lab.clear()


def setting(lab: Lab, number: int, name: str) -> str:
    """A setting of a host."""
    return Deployment(lab.hosts[number].deployment).values[name]


def test_a_host_that_is_cut_off_before_the_start_leaves_no_rank(pair: Lab) -> None:
    other = pair.hosts[1]
    for words in ("checks the host", "host-b       settings and"):
        with started(pair, "fleet", "up") as up:
            up.until(words)
            with other.unplugged():
                code = up.ended()
        assert code == ExitCode.PREFLIGHT, up.said
        assert "host-b: " in up.said
        assert not any(host.processes(ENGINE) for host in pair.hosts)
    with other.unplugged(FABRIC):
        ran = pair.dflash("fleet", "up", "--json")
    assert ran.code is ExitCode.PREFLIGHT
    # without the fabric the hosts have no network in common
    assert "no link joins the hosts" in ran.document["error"]["message"]


def test_two_ranks_to_an_answer(pair: Lab) -> None:
    key = Deployment(pair.directory).key.reveal()
    up = pair.dflash("fleet", "up", "--json").succeeded()
    assert states(up.document) == ["ready", "running"]
    leader, worker = up.document["data"]["hosts"]
    assert (leader["rank"], worker["rank"]) == (0, 1)
    assert leader["checks_passed"] >= 3
    assert leader["acceptance_length"] > 2
    assert "host-a       leads at 10.77.9.1 (fab0)" in up.err
    for number, host in enumerate(pair.hosts):
        assert setting(pair, number, "NODE_RANK") == str(number)
        assert setting(pair, number, "MASTER_ADDR") == pair.hosts[0].fabric
        assert setting(pair, number, "VLLM_HOST_IP") == host.fabric
        assert setting(pair, number, "GLOO_SOCKET_IFNAME") == FABRIC
        assert host.processes(ENGINE)
    assert key not in pair.arguments() + up.err + up.out


def test_the_other_commands_know_the_ranks(pair: Lab) -> None:
    status = pair.dflash("fleet", "status", "--json").succeeded().document
    assert states(status) == ["ready", "running"]
    assert [host["endpoint"] for host in status["data"]["hosts"]] == ["http://127.0.0.1:8000/v1", None]
    tested = pair.dflash("fleet", "test", "--host", "host-b")
    assert tested.code is ExitCode.USAGE
    assert "only host-a answers requests" in tested.err
    logs = pair.dflash("fleet", "logs", "--tail", "3").succeeded().out.splitlines()
    assert {line.split(" | ")[0] for line in logs} == {"host-a", "host-b"}
    pids = [host.processes(ENGINE) for host in pair.hosts]
    again = pair.dflash("fleet", "up", "--json").succeeded()
    assert states(again.document) == ["ready", "running"]
    assert [host.processes(ENGINE) for host in pair.hosts] == pids


def test_a_killed_rank_is_replaced_with_all_others(pair: Lab) -> None:
    before = [host.processes(ENGINE) for host in pair.hosts]
    for pid in before[1]:
        os.kill(pid, signal.SIGKILL)
    assert states(pair.dflash("fleet", "restart", "--json").succeeded().document) == ["ready", "running"]
    for host, pids in zip(pair.hosts, before, strict=True):
        assert not set(host.processes(ENGINE)) & set(pids)


def test_down_stops_all_ranks(pair: Lab) -> None:
    refused = pair.dflash("fleet", "down", "--host", "host-b")
    assert refused.code is ExitCode.USAGE
    assert states(pair.dflash("fleet", "down", "--json").succeeded().document) == ["stopped", "stopped"]
    assert not any(host.processes(ENGINE) for host in pair.hosts)
