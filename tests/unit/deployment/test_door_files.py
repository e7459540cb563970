"""The door of a domain as a service of compose.yaml: what it publishes, reads and keeps, and what it leaves alone."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import compose_text, create, render
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import storage_of
from dflash_deploy.errors import BadInput
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED


def planned(**edited: str) -> Plan:
    choice = Choice(profile="cpu", engine="llamacpp", runtime="compose", edited=edited)
    return plan_deployment(RECORDED["cpu"], choice, load_catalog())


def services(deployment: Deployment, plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(compose_text(deployment, plan))
    return document["services"]  # type: ignore[no-any-return]


@pytest.fixture
def box(tmp_path: Path) -> Deployment:
    create(Deployment(tmp_path), planned())
    return Deployment(tmp_path)


def test_a_domain_adds_a_door_and_changes_no_engine(box: Deployment) -> None:
    without, under = services(box, planned()), services(box, planned(DFLASH_DOMAIN="box.internal"))
    assert set(without) == {"engine"}
    assert set(under) == {"engine", "door"}
    # Compose creates a service again if anything of it changes
    assert under["engine"] == without["engine"]
    assert services(box, planned(DFLASH_DOMAIN="other.internal"))["engine"] == without["engine"]
    assert without["engine"]["ports"] == ["${DFLASH_BIND:-127.0.0.1}:${DFLASH_PORT:-8000}:8000"]


def test_the_door_has_the_ports_of_the_domain_and_few_rights(box: Deployment) -> None:
    door = services(box, planned(DFLASH_DOMAIN="box.internal"))["door"]
    assert door["ports"] == ["443:8443", "80:8080"]
    assert (door["read_only"], door["cap_drop"]) == (True, ["ALL"])
    assert not {"secrets", "cap_add", "sysctls", "networks"} & set(door)
    assert {mount["target"]: mount.get("read_only", False) for mount in door["volumes"]} == {"/data": False}
    assert door["build"] == {"context": "./.dflash/build", "dockerfile": "images/door/Dockerfile"}


def test_the_door_has_its_host_and_what_the_gateway_has(box: Deployment) -> None:
    def environment(**edited: str) -> dict[str, str]:
        found: dict[str, str] = services(box, planned(**edited))["door"]["environment"]
        return found

    public, own = environment(DFLASH_DOMAIN="LLM.example.com"), environment(DFLASH_DOMAIN="box.internal")
    assert (public["DFLASH_DOMAIN"], public["DFLASH_ISSUER"]) == ("llm.example.com", "acme")
    assert (own["DFLASH_DOMAIN"], own["DFLASH_ISSUER"]) == ("box.internal", "internal")
    assert own["DFLASH_GATEWAY"] == "engine:8000"
    # variables of .env: Compose creates the door again if they change
    assert own["MAX_BODY_MIB"].startswith("${MAX_BODY_MIB:-")
    assert own["ALLOWED_ORIGINS"].startswith("${ALLOWED_ORIGINS:-")


def test_render_makes_the_directory_of_certificates_and_the_build_context(box: Deployment) -> None:
    render(box, planned(DFLASH_DOMAIN="box.internal"))
    assert storage_of(box).is_dir()
    assert not storage_of(box).stat().st_mode & 0o077
    assert {path.name for path in (box.state / "build/images/door").iterdir()} == {"Dockerfile", "Caddyfile"}


def test_a_directory_of_certificates_that_is_a_link_is_refused(box: Deployment, tmp_path: Path) -> None:
    storage_of(box).parent.mkdir(parents=True)
    storage_of(box).symlink_to(tmp_path)
    with pytest.raises(BadInput, match="is a link"):
        render(box, planned(DFLASH_DOMAIN="box.internal"))
