"""What `doctor` says of the name, the ports, the authority and the clock of a domain."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.doctor import network
from dflash_deploy.doctor.check import DoctorContext
from dflash_deploy.doctor.network import HubAnswer, judge_authority, judge_name, judge_port
from dflash_deploy.door.site import site_of
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.settings import Settings
from tests.support.machines import DOCKER, RECORDED
from tests.support.ports import free_port

PUBLIC, INTERNAL = site_of("llm.example.com"), site_of("box.internal")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]
        yield port


def test_a_name_that_does_not_resolve_keeps_an_authority_from_signing() -> None:
    public, internal = judge_name(PUBLIC, (), public=True), judge_name(INTERNAL, (), public=False)
    assert (public.status, internal.status) == ("no", "warning")
    assert "A or AAAA record" in public.fix
    assert "/etc/hosts" in internal.fix


def test_a_name_is_this_machine_or_another_one() -> None:
    assert judge_name(PUBLIC, ("192.0.2.7", "127.0.0.1"), public=True).status == "ok"
    elsewhere = judge_name(PUBLIC, ("192.0.2.7",), public=True)
    assert (elsewhere.status, elsewhere.saw) == (
        "warning",
        "llm.example.com is 192.0.2.7, not an address of this machine",
    )
    address = site_of("192.0.2.7")
    assert judge_name(address, ("192.0.2.7",), public=False).status == "warning"
    assert judge_name(site_of("127.0.0.1"), ("127.0.0.1",), public=False).status == "ok"


def test_a_port_is_free_taken_or_our_own(taken: int) -> None:
    field = Settings.dflash_https_port
    assert judge_port(field, free_port(), ours=False).status == "ok"
    other = judge_port(field, taken, ours=False)
    assert (other.status, "DFLASH_HTTPS_PORT" in other.fix) == ("no", True)
    assert judge_port(field, taken, ours=True).status == "ok"


def test_a_port_below_1024_may_need_a_capability(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dflash_deploy.doctor.network.may_listen_on", lambda host, port: False)
    refused = judge_port(Settings.dflash_https_port, free_port(), ours=False)
    assert refused.status == "no"
    # Docker listens as root
    assert judge_port(Settings.dflash_https_port, free_port(), ours=False, allowed=True).status == "ok"
    # a Caddy with capabilities of its own would outlive its supervisor
    assert "`sudo sysctl net.ipv4.ip_unprivileged_port_start=80`" in refused.fix


def test_an_authority_is_reached_and_its_date_is_near() -> None:
    silent = list(judge_authority("https://ca", HubAnswer(problem="connection refused")))
    assert [(check.name, check.status) for check in silent] == [("authority", "no")]
    good = list(judge_authority("https://ca", HubAnswer(200, ahead=timedelta(seconds=2))))
    assert [(check.name, check.status) for check in good] == [("authority", "ok")]
    late = list(judge_authority("https://ca", HubAnswer(200, ahead=timedelta(hours=-2))))
    assert [(check.name, check.status) for check in late] == [("authority", "ok"), ("authority clock", "no")]
    assert "7200 s behind" in late[1].saw


def test_without_a_domain_nothing_is_checked() -> None:
    facts = replace(RECORDED["cpu"], cpus=2)
    plan = plan_deployment(facts, Choice(profile="cpu", engine="llamacpp", runtime="native"), load_catalog())
    assert not list(network.domain(DoctorContext(facts, plan), plan))


def test_a_container_has_its_own_caddy_and_docker_may_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_deploy.doctor.network.may_listen_on", lambda host, port: False)
    ports = {"DFLASH_HTTPS_PORT": str(free_port()), "DFLASH_HTTP_PORT": str(free_port())}
    edited = {"DFLASH_DOMAIN": "127.0.0.1", **ports}
    for rootless, expected in ((False, "ok"), (True, "no")):
        facts = replace(RECORDED["cpu"], container_engine=replace(DOCKER, rootless=rootless))
        choice = Choice(profile="cpu", engine="llamacpp", runtime="compose", edited=edited)
        plan = plan_deployment(facts, choice, load_catalog())
        found = {check.name: check.status for check in network.domain(DoctorContext(facts, plan), plan)}
        assert "caddy" not in found
        assert {found[f"port {port}"] for port in ports.values()} == {expected}
