"""`image build`, `verify` and `digest` against a real engine, a real registry, and the real Dockerfile."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash, edit_env, initialise
from tests.support.commands import checked
from tests.support.container_engine import Engine
from tests.support.registry import registry

IMAGE = "dflash-deploy/vllm:image-verbs"


def init(directory: Path, base_image: str, image: str = IMAGE) -> Deployment:
    initialise("--profile", "cpu", "--runtime", "compose", at=directory)
    edit_env(directory, DFLASH_BASE_IMAGE=base_image, DFLASH_IMAGE=image)
    return Deployment(directory)


@pytest.fixture(scope="module")
def built(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    directory = tmp_path_factory.mktemp("image")
    deployment = init(directory, base_image)
    subprocess.run(["docker", "image", "rm", "--force", IMAGE], check=False, capture_output=True)
    before = dflash("image", "verify", at=directory)
    assert before.code is ExitCode.PREFLIGHT
    assert "is not on this machine" in before.err
    dflash("image", "build", at=directory).succeeded()
    return deployment


def test_a_built_image_is_what_it_should_be(built: Deployment) -> None:
    data = dflash("image", "verify", "--json", at=built.directory).succeeded().document["data"]
    checks = {check["name"]: check["passed"] for check in data["checks"]}
    names = ["user", "entry point", "health check", "base image", "secrets", "drafter"]
    assert checks == dict.fromkeys(names, True)


def test_an_image_that_is_not_ours_is_found_out(built: Deployment, base_image: str, tmp_path: Path) -> None:
    """Built by hand: as root, with the key in a variable, without the project's entry point, on something else."""
    (tmp_path / "Dockerfile").write_text(f"FROM {base_image}\nENV KEY={built.key.reveal()}\n")
    checked("docker", "build", "-q", "-t", "dflash-standin/not-ours", str(tmp_path))
    edit_env(built.directory, DFLASH_IMAGE="dflash-standin/not-ours")
    ran = dflash("image", "verify", "--json", at=built.directory)
    edit_env(built.directory, DFLASH_IMAGE=IMAGE)
    assert ran.code is ExitCode.PREFLIGHT
    data = ran.document["data"]
    assert not any(check["passed"] for check in data["checks"])
    assert built.key.reveal() not in ran.out + ran.err


@pytest.fixture
def address(engine: Engine, tmp_path: Path) -> Iterator[str]:
    with registry(tmp_path) as address:
        yield address


def publish(tag: str, place: Path, content: str) -> str:
    """A small image under that tag; returns its digest, and leaves none of it on this machine."""
    (place / "file").write_text(content)
    (place / "Dockerfile").write_text("FROM scratch\nCOPY file /file\n")
    checked("docker", "build", "-q", "-t", tag, str(place))
    checked("docker", "push", "-q", tag)
    listed = checked("docker", "image", "inspect", "--format", "{{index .RepoDigests 0}}", tag).strip()
    checked("docker", "image", "rm", tag)
    return listed.rsplit("@", 1)[1]


def test_a_tag_is_pinned_to_what_the_registry_has_now(address: str, tmp_path: Path) -> None:
    tag = f"{address}/vllm/vllm-openai-cpu:v0.32.0"
    directory = tmp_path / "deployment"
    directory.mkdir()
    first = publish(tag, tmp_path, "first")
    init(directory, tag)
    data = dflash("image", "digest", "--pin", "--json", at=directory).succeeded().document["data"]
    assert data["digest"] == first
    second = publish(tag, tmp_path, "second")
    assert second != first
    assert Deployment(directory).values["DFLASH_BASE_IMAGE"] == f"{tag}@{first}"
    # a pinned one is not asked for again
    assert dflash("image", "digest", "--json", at=directory).succeeded().document["data"]["digest"] == first
    edit_env(directory, DFLASH_BASE_IMAGE=tag)
    assert dflash("image", "digest", "--json", at=directory).succeeded().document["data"]["digest"] == second


def test_a_digest_that_nobody_knows_is_said(address: str, tmp_path: Path) -> None:
    init(tmp_path, f"{address}/vllm/absent:1")
    ran = dflash("image", "digest", at=tmp_path)
    assert ran.code is ExitCode.DOWNLOAD
    assert "the registry did not return the digest" in ran.err


def test_a_tag_that_does_not_exist_is_found_before_the_build(address: str, tmp_path: Path) -> None:
    publish(f"{address}/vllm/vllm-openai-cpu:v0.32.0", tmp_path, "first")
    directory = tmp_path / "deployment"
    directory.mkdir()
    init(directory, f"{address}/vllm/vllm-openai-cpu:v0.33.0", image="dflash-deploy/vllm:absent")
    instead = f"`dflash-deploy set DFLASH_BASE_IMAGE={address}/vllm/vllm-openai-cpu:v0.32.0`"
    ran = dflash("up", at=directory)
    assert ran.code is ExitCode.PREFLIGHT
    assert f"{address} does not have" in ran.err
    assert instead in " ".join(ran.err.split())
    checks = dflash("doctor", "--json", at=directory).document["data"]["checks"]
    assert [check["fix"] for check in checks if check["name"] == "base image"] == [instead]
