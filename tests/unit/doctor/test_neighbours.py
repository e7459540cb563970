"""Whether other machines reach the router's container, by Docker's version and the policy of the firewall."""

from dataclasses import replace
from typing import Any

import pytest

from dflash_deploy.doctor import container
from dflash_deploy.doctor.container import Policy, forward_policy, judge_neighbours
from dflash_deploy.host.ask import CommandOutput
from dflash_deploy.plan.result import Plan
from tests.support.examined import NVIDIA_DOCKER, a_machine, a_plan, a_subject, only


def several(runtime: str = "compose") -> Plan:
    return a_plan(runtime=runtime, REPLICAS="2")


@pytest.mark.parametrize(
    ("printed", "policy"),
    [
        ("-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n", "DROP"),
        ("-P FORWARD ACCEPT\n", "ACCEPT"),
        ("", None),
    ],
)
def test_the_policy_is_the_first_line_of_the_chain(
    printed: str, policy: Policy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "ask", lambda *_, **__: CommandOutput(printed))
    assert forward_policy() == policy


@pytest.mark.parametrize(
    ("policy", "status", "said"),
    [
        ("DROP", "ok", "only the published ports"),
        ("ACCEPT", "warning", "sudo iptables -P FORWARD DROP"),
        (None, "warning", "sudo iptables -S FORWARD"),
    ],
)
def test_an_older_docker_relies_on_the_policy(policy: Policy | None, status: str, said: str) -> None:
    check = judge_neighbours(replace(NVIDIA_DOCKER, version="27.5.1"), policy)
    assert check.status == status
    assert said in f"{check.saw} {check.fix}"


@pytest.mark.parametrize(
    ("docker", "asked"),
    [
        ({"version": "27.5.1"}, True),
        ({"version": "28.0.0"}, False),
        ({"version": "27.5.1", "rootless": True}, False),
        ({"version": "27.5.1", "desktop": True}, False),
        # what another machine does with packets is not seen from here
        ({"version": "27.5.1", "host": "tcp://192.0.2.9:2376"}, True),
        ({"version": "28.0.0", "host": "tcp://192.0.2.9:2376"}, False),
    ],
)
def test_only_where_it_matters_the_policy_is_read(
    docker: dict[str, Any], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "forward_policy", lambda: "ACCEPT")
    engine = replace(NVIDIA_DOCKER, **docker)
    check = only(container.neighbours, a_subject(facts=a_machine(engine=engine), plan=several()))
    assert check.status == ("warning" if asked else "ok")


def test_one_engine_or_processes_have_no_router_in_a_container() -> None:
    assert list(container.neighbours(a_subject(), a_plan())) == []
    assert list(container.neighbours(a_subject(), several("native"))) == []
