"""DFLASH_DOMAIN in the settings and the plan: one-line errors, its URL, who signs, and the command of a Caddy."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.door import Site
from dflash_deploy.errors import ExitCode, SettingsRefused
from dflash_deploy.plan.command import engine_environment
from dflash_deploy.plan.result import Choice, Plan, RuntimeName
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.field import domain_in
from dflash_deploy.startup.engine import published_of, whole_url
from tests.support.machines import RECORDED

BOX = Deployment(Path("/box"))


def planned(runtime: RuntimeName = "compose", **edited: str) -> Plan:
    choice = Choice(profile="cpu", engine="llamacpp", runtime=runtime, edited=edited)
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


@given(st.text(max_size=40))
def test_any_text_is_a_plain_host_or_refused(text: str) -> None:
    """A Caddyfile and a shell take it as one word, without quotes."""
    if (host := domain_in(text)) is not None:
        assert not set(host) & set("{}\"`\\$' \t\n")


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("llm.example.com", False),
        ("local.example.com", False),
        *((name, True) for name in ("localhost", "spark", "box.internal", "a.home.arpa", "x.lan", "10.0.0.1", "::1")),
    ],
)
def test_private_names_and_addresses_have_caddys_own_certificate(host: str, private: bool) -> None:
    assert Site(host).is_private is private
    assert Site(host).variables == {"DFLASH_DOMAIN": host, "DFLASH_ISSUER": "internal" if private else "acme"}


def test_a_name_is_in_the_form_of_the_requests_of_clients() -> None:
    plan = planned(DFLASH_DOMAIN="LLM.Example.com.", DFLASH_BIND="0.0.0.0", DFLASH_PORT="8001")
    assert whole_url(BOX, plan) == "https://llm.example.com"
    assert whole_url(BOX, planned(DFLASH_DOMAIN="2001:DB8:0:0::5")) == "https://[2001:db8::5]"


def test_clients_trust_caddys_own_authority_or_a_public_one() -> None:
    own, public = (published_of(BOX, planned(DFLASH_DOMAIN=host)) for host in ("192.168.1.5", "llm.example.com"))
    assert own is not None
    assert own.root is not None
    assert own.root.relative_to("/box/.dflash/door/data").name == "root.crt"
    assert public is not None
    assert public.root is None


def test_a_domain_changes_no_engine() -> None:
    assert engine_environment(planned()) == engine_environment(planned(DFLASH_DOMAIN="box.internal"))


def test_a_native_engine_is_refused_with_the_command_of_a_caddy_of_your_own() -> None:
    edited = {"DFLASH_BIND": "0.0.0.0", "DFLASH_PORT": "8001", "MAX_BODY_MIB": "3"}
    edited["ALLOWED_ORIGINS"] = "https://a.org http://b.org"
    (error,) = planned("native", DFLASH_DOMAIN="llm.example.com", **edited).errors
    assert (error.id, "DFLASH_RUNTIME=native" in error.message) == ("domain-needs-containers", True)
    *variables, caddy, run, option, file = shlex.split(error.fix.partition("`")[2].removesuffix("`"))
    assert (caddy, run, option) == ("caddy", "run", "--config")
    assert Path(file).read_text().startswith("# The door of a domain")
    assert dict(word.split("=", 1) for word in variables) == {
        "DFLASH_DOMAIN": "llm.example.com",
        "DFLASH_ISSUER": "acme",
        "DFLASH_GATEWAY": "127.0.0.1:8001",
        "MAX_BODY_MIB": "3",
        "ALLOWED_ORIGINS": "https://a.org,http://b.org",
    }
    assert not planned(DFLASH_DOMAIN="llm.example.com").errors
