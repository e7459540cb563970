"""The door of a domain as a service of compose.yaml: what it publishes, reads and keeps, and what it leaves alone."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import compose_text, create, render
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import door_directory, door_files, storage_of, write_door
from dflash_deploy.door.caddyfile import caddyfile
from dflash_deploy.errors import BadInput
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import RECORDED

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIBozCCAUmgAwIBAgIR\n-----END CERTIFICATE-----\n"


def planned(runtime: str = "compose", **edited: str) -> Plan:
    choice = Choice(profile="cpu", engine="llamacpp", runtime=runtime, edited=edited)  # type: ignore[arg-type]
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
    assert door["ports"] == ["${DFLASH_HTTPS_PORT:-443}:8443", "${DFLASH_HTTP_PORT:-80}:8080"]
    assert (door["read_only"], door["cap_drop"]) == (True, ["ALL"])
    assert not {"secrets", "cap_add", "sysctls", "networks"} & set(door)
    assert {mount["target"]: mount.get("read_only", False) for mount in door["volumes"]} == {
        "/run/dflash/door": True,
        "/run/dflash/certificates": False,
    }
    assert door["build"] == {"context": "./.dflash/build", "dockerfile": "images/door/Dockerfile"}


def test_the_caddyfile_listens_inside_and_names_the_ports_outside(box: Deployment) -> None:
    plan = planned(DFLASH_DOMAIN="box.internal", DFLASH_HTTPS_PORT="8000", DFLASH_PORT="9000", MAX_BODY_MIB="3")
    text = door_files(box, plan.settings)["Caddyfile"]
    assert "https://box.internal:8443 {" in text
    assert "http://box.internal:8080 {\n\tredir https://box.internal:8000{uri} 308" in text
    assert "https_port 8443" in text
    assert "reverse_proxy engine:8000 {" in text
    assert 'storage file_system "/run/dflash/certificates"' in text
    assert "max_size 50331648" in text


def test_render_writes_what_the_container_mounts(box: Deployment) -> None:
    render(box, planned(DFLASH_DOMAIN="box.internal"))
    assert (door_directory(box) / "Caddyfile").read_text().startswith("# Generated")
    assert storage_of(box).is_dir()
    assert not [path for path in (door_directory(box), storage_of(box)) if path.stat().st_mode & 0o077]
    assert (box.state / "build/images/door/Dockerfile").is_file()


def test_render_leaves_the_files_of_a_native_door_alone(box: Deployment) -> None:
    render(box, planned("native", DFLASH_DOMAIN="box.internal"))
    assert not door_directory(box).exists()


def test_only_certificates_of_the_root_file_reach_the_container(box: Deployment) -> None:
    """Root reads the file that `.env` names, and the owner of `.env` gets what is copied."""
    root = box.directory / "ca.pem"
    key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n-----END PRIVATE KEY-----\n"
    root.write_text(f"root:x:0:0\n{CERTIFICATE}{key}{CERTIFICATE}")
    plan = planned(DFLASH_DOMAIN="box.internal", DFLASH_ACME_URL="https://ca/x", DFLASH_ACME_ROOT="ca.pem")
    write_door(box, plan.settings)
    assert (door_directory(box) / "acme-root.crt").read_text() == CERTIFICATE * 2
    text = (door_directory(box) / "Caddyfile").read_text()
    assert 'trusted_roots "/run/dflash/door/acme-root.crt"' in text
    label = services(box, plan)["door"]["labels"]["dev.dflash.door"]
    assert label == hashlib.sha256(f"{text}{CERTIFICATE * 2}".encode()).hexdigest()
    root.write_text(CERTIFICATE)
    assert services(box, plan)["door"]["labels"]["dev.dflash.door"] != label
    root.unlink()
    assert door_files(box, plan.settings)["acme-root.crt"] == ""


def test_the_door_is_created_again_for_what_its_configuration_is_made_of(
    box: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def door(**edited: str) -> tuple[str, str]:
        plan = planned(DFLASH_DOMAIN="box.internal", **edited)
        label = services(box, plan)["door"]["labels"]["dev.dflash.door"]
        return label, "".join(door_files(box, plan.settings).values())

    labels, texts = zip(door(), door(MAX_BODY_MIB="7"), door(ALLOWED_ORIGINS="https://chat.example"), strict=True)
    assert len(set(labels)) == len(set(texts)) == 3
    assert door(MAX_NUM_SEQS="3") == (labels[0], texts[0])
    # as a newer release writes it, for the same settings
    monkeypatch.setattr("dflash_deploy.door.caddyfile.caddyfile", lambda door: f"# newer\n{caddyfile(door)}")
    label, text = door()
    assert text != texts[0]
    assert label not in labels


def test_a_directory_of_certificates_that_is_a_link_is_refused(box: Deployment, tmp_path: Path) -> None:
    door_directory(box).mkdir(parents=True)
    storage_of(box).symlink_to(tmp_path)
    with pytest.raises(BadInput, match="is a link"):
        write_door(box, planned(DFLASH_DOMAIN="box.internal").settings)
