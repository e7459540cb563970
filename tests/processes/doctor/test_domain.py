"""What `doctor` says of the name of a domain."""

from dataclasses import replace

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.doctor import network
from dflash_deploy.doctor.check import DoctorContext
from dflash_deploy.doctor.network import judge_name
from dflash_deploy.door import Site
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED

PUBLIC, INTERNAL = Site("llm.example.com"), Site("box.internal")


def test_a_name_that_does_not_resolve_keeps_an_authority_from_signing() -> None:
    public, internal = judge_name(PUBLIC, ()), judge_name(INTERNAL, ())
    assert (public.status, internal.status) == ("no", "warning")
    assert "A or AAAA record" in public.fix
    assert "/etc/hosts" in internal.fix


def test_a_name_is_this_machine_or_another_one() -> None:
    assert judge_name(PUBLIC, ("192.0.2.7", "127.0.0.1")).status == "ok"
    elsewhere = judge_name(PUBLIC, ("192.0.2.7",))
    assert (elsewhere.status, elsewhere.saw) == (
        "warning",
        "llm.example.com is 192.0.2.7, not an address of this machine",
    )
    address = Site("192.0.2.7")
    assert judge_name(address, ("192.0.2.7",)).status == "warning"
    assert judge_name(Site("127.0.0.1"), ("127.0.0.1",)).status == "ok"


def test_without_a_domain_nothing_is_checked() -> None:
    facts = replace(RECORDED["cpu"], cpus=2)
    plan = plan_deployment(facts, Choice(profile="cpu", engine="llamacpp", runtime="native"), load_catalog())
    assert not list(network.domain(DoctorContext(facts, plan), plan))
