"""DFLASH_DOMAIN in the settings and the plan: one-line errors, ports, and what the door gets."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.door.site import Site
from dflash_deploy.errors import ExitCode, SettingsRefused
from dflash_deploy.plan.command import engine_environment
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime.domain import root_of
from dflash_deploy.runtime.native import door_of
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.published import published_of, whole_url
from tests.support.machines import RECORDED

BOX = Deployment(Path("/box"))


def planned(**edited: str) -> Plan:
    choice = Choice(profile="cpu", engine="llamacpp", runtime="native", edited=edited)
    return plan_deployment(replace(RECORDED["cpu"], cpus=4), choice, load_catalog())


@pytest.mark.parametrize(
    "text", ["https://llm.example.com", "a b", "llm.example.com:8443", "10.1", "*.x.org", "0.0.0.0", "::", "a_b.org"]
)
def test_what_is_no_domain_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SettingsRefused, match="is not a valid domain name or IP address") as refusal:
        planned(DFLASH_DOMAIN=text)
    assert "DFLASH_DOMAIN" in refusal.value.message
    assert "llm.example.com" in refusal.value.hint
    assert refusal.value.exit_code == ExitCode.USAGE


def test_the_url_of_an_authority_needs_tls() -> None:
    for text in ("http://ca.internal/directory", "ca.internal", "https://user:secret@ca/x", "https://ca/{env.KEY}"):
        with pytest.raises(SettingsRefused, match="is not a valid HTTPS URL"):
            planned(DFLASH_DOMAIN="box.internal", DFLASH_ACME_URL=text)


def test_three_ports_must_differ() -> None:
    with pytest.raises(SettingsRefused, match="must be three different ports"):
        planned(DFLASH_DOMAIN="box.internal", DFLASH_PORT="443")
    assert planned(DFLASH_PORT="443").settings.dflash_port == 443


def test_the_engine_is_behind_the_door_on_this_machine() -> None:
    plan = planned(DFLASH_DOMAIN="LLM.Example.com.", DFLASH_BIND="0.0.0.0", DFLASH_PORT="8001")
    door = door_of(BOX, plan.settings)
    assert door.site == Site("llm.example.com")
    assert (door.upstream, door.local) == ("127.0.0.1:8001", None)
    assert whole_url(BOX, plan) == "https://llm.example.com"


def test_clients_trust_caddys_own_authority_or_the_one_that_is_named() -> None:
    own = root_of(BOX, planned(DFLASH_DOMAIN="192.168.1.5").settings)
    assert own is not None
    assert own.relative_to("/box/.dflash/door").name == "root.crt"
    assert root_of(BOX, planned(DFLASH_DOMAIN="llm.example.com").settings) is None
    named = planned(DFLASH_DOMAIN="box.internal", DFLASH_ACME_URL="https://ca/x", DFLASH_ACME_ROOT="ca.crt").settings
    assert root_of(BOX, named) == Path("/box/ca.crt")
    assert door_of(BOX, named).authority.root == "/box/ca.crt"


def test_a_domain_changes_no_engine() -> None:
    assert engine_environment(planned()) == engine_environment(planned(DFLASH_DOMAIN="box.internal"))


def test_containers_have_the_domain_too() -> None:
    choice = Choice(profile="cpu", engine="llamacpp", runtime="compose", domain="box.internal")
    plan = plan_deployment(RECORDED["cpu"], choice, load_catalog())
    assert "domain-in-containers" not in {finding.id for finding in plan.findings}
    published = published_of(BOX, plan)
    assert published is not None
    # where the native door keeps it too
    assert (published.url, published.root) == ("https://box.internal", root_of(BOX, planned_under("box.internal")))


def planned_under(domain: str) -> Settings:
    return planned(DFLASH_DOMAIN=domain).settings
