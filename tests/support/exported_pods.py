"""A deployment exported for Kubernetes, and the machine as the node on which its pods run as containers."""

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.operations import KubernetesExport, export_kubernetes
from tests.support.cli import dflash, edit_env
from tests.support.cluster import Kubernetes, kubernetes
from tests.support.commands import checked
from tests.support.fleet_hub import FILES, PAIR, write_catalog
from tests.support.hub import Hub
from tests.support.kubelet.node import Node
from tests.support.kubelet.pods import Pod, running, secret_of
from tests.support.manifests import kubectl, pod_of
from tests.support.standin_llamacpp import DEBIAN, ensure_server_image

ROOT = Path(__file__).parents[2]
IMAGE, ROUTER = "dflash-deploy/llamacpp:pods-under-test", "dflash-deploy/router:pods-under-test"
USER = 1000
NAME, CLAIM, ENGINES = "vision", "vision-weights-shared", "vision-engines"


@dataclass
class Folder:
    """An exported folder, the node on which its pods run, and the owner's key."""

    folder: Path
    node: Node
    key: str

    def document(self, name: str) -> dict[str, Any]:
        """A file of the folder."""
        document: dict[str, Any] = yaml.safe_load((self.folder / name).read_text())
        return document

    def running(self, name: str, file: str, *, service: str = "") -> AbstractContextManager[Pod]:
        """A pod of the Deployment in a file. `service`: the Service that other pods find it by."""
        return running(self.node, name, pod_of(self.document(file)), service=service)

    def apply(self, files: Iterable[str], *secrets: str) -> None:
        """Give the node the ConfigMaps of these files, and the Secrets that these lines of the README create."""
        for line in secrets:
            name, contents = secret_of(line, kubectl())
            self.node.secrets[name] = contents
        for file in files:
            document = self.document(file)
            self.node.config_maps[document["metadata"]["name"]] = document["data"]


@dataclass
class Exported(Folder):
    """The same, with the Kubernetes that its router asks."""

    api: Kubernetes


@contextmanager
def exported(place: Path) -> Iterator[Exported]:
    """`init`, `pull` and `export kubernetes` of two replicas with a claim, for the user 1000; the claim is empty."""
    build("llamacpp", IMAGE, ensure_server_image())
    build("router", ROUTER, DEBIAN)
    account, claim = place / "account", place / "claim"
    account.mkdir()
    claim.mkdir()
    with ExitStack() as stack:
        name, address = stack.enter_context(network(f"dflash-pods-{os.getpid()}"))
        hub = stack.enter_context(Hub())
        hub.add("o/gguf", {name: ROOT / "models/tiny/gguf" / name for name in FILES})
        api = stack.enter_context(kubernetes(account, address))
        deployment = _deployed(place, hub)
        made = _export(place, deployment)
        node = Node(place, name, DEBIAN, (address, api.port))
        node.claims[CLAIM], node.accounts[f"{NAME}-router"] = claim, account
        found = Exported(place / "out", node, deployment.key.reveal(), api)
        files = ("base/settings.yaml", "base/router-files.yaml")
        found.apply(files, made.secret_command, made.router_secret_command)
        yield found


def build(image: str, tag: str, base: str, context: Path = ROOT) -> None:
    """Build one of the project's images on a base."""
    dockerfile = ROOT / "images" / image / "Dockerfile"
    options = ("-f", str(dockerfile), "--build-arg", f"BASE_IMAGE={base}", "-t", tag)
    checked("docker", "build", *options, str(context), timeout=900)


@contextmanager
def network(name: str) -> Iterator[tuple[str, str]]:
    """A network of Docker, and the address that this machine has in it."""
    checked("docker", "network", "create", name)
    try:
        template = "{{(index .IPAM.Config 0).Gateway}}"
        yield name, checked("docker", "network", "inspect", "--format", template, name).strip()
    finally:
        checked("docker", "network", "rm", name)


def _deployed(place: Path, hub: Hub) -> Deployment:
    """A deployment with locked weights, whose `.env` belongs to the user 1000."""
    directory = place / "deployment"
    directory.mkdir()
    write_catalog(place / "catalog")
    environment = {"DFLASH_CATALOG": str(place / "catalog"), "HF_HOME": str(place / "hf")}
    told = ("--profile", "cpu", "--engine", "llamacpp", "--model", PAIR, "--runtime", "compose")
    dflash("init", *told, "--models-dir", str(place / "models"), at=directory, environment=environment).succeeded()
    edit_env(directory, DFLASH_IMAGE=IMAGE)
    dflash("pull", at=directory, environment={**environment, "HF_ENDPOINT": hub.endpoint}).succeeded()
    os.chown(directory / ".env", USER, USER)
    return Deployment(directory)


def _export(place: Path, deployment: Deployment) -> KubernetesExport:
    chosen = Cluster(name=NAME, replicas=2, weights="claim", router_image=ROUTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DFLASH_CATALOG", str(place / "catalog"))
        return export_kubernetes(deployment.directory, place / "out", chosen)
