"""The exported pod of one engine as a container on a node with the weights of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.operations import export_kubernetes
from tests.support.cli import edit_env, initialise
from tests.support.exported_pods import NAME, USER, Folder, network
from tests.support.kubelet.node import Node
from tests.support.kubelet.pods import Pod
from tests.support.pod_asked import CONFINED, WRITABLE, looked

CACHE = f"{NAME}-cache"
"""The claim for compiled kernels."""

SILENT = (False, 1, "dflash: the engine does not listen\n")
"""What the probes say before the engine listens."""


@dataclass(frozen=True)
class EnginePod:
    """The folder of one replica, and its pod. `early`: what the probes said when its container had just been started.

    These are whether the startup probe passes, and the exit code and the output of the liveness probe.
    """

    folder: Folder
    pod: Pod
    early: tuple[bool, int, str]

    @property
    def key(self) -> str:
        """The API key of the deployment."""
        return self.folder.key

    @property
    def url(self) -> str:
        """The pod's address."""
        return f"http://{self.pod.address}:8000"


@contextmanager
def engine_pod(place: Path, image: str, base: str, *chosen: str, ignores_gpus: bool = False) -> Iterator[EnginePod]:
    """`init` with the options `chosen` and `export kubernetes` for the user 1000; the pod's container is started.

    `base` is any image of Debian: it keeps the pod's address.
    """
    deployment, claim = place / "deployment", place / "claim"
    deployment.mkdir()
    claim.mkdir()
    initialise(*chosen, "--runtime", "compose", at=deployment)
    edit_env(deployment, DFLASH_IMAGE=image)
    os.chown(deployment / ".env", USER, USER)
    made = export_kubernetes(deployment, place / "out", Cluster(name=NAME))
    with network(f"dflash-{place.name}") as (name, _):
        node = Node(place, name, base, claims={CACHE: claim}, ignores_gpus=ignores_gpus)
        folder = Folder(place / "out", node, Deployment(deployment).key.reveal())
        folder.apply(["base/settings.yaml"], made.secret_command)
        with folder.running("engine", "base/deployment.yaml", service=NAME) as pod:
            live = pod.execute("engine", *pod.of("engine").probes["livenessProbe"].target)
            yield EnginePod(folder, pod, (pod.passes("engine", "startupProbe"), live.returncode, live.stdout))


def confined(pod: Pod) -> Mapping[str, Any]:
    """Check that the engine's container can do what the manifest says and no more; return what it sees of itself."""
    found = looked(pod)
    assert found["user"] == [USER, USER]
    assert found["writes"] == WRITABLE
    assert found["status"] == CONFINED
    memory = next(one for one in pod.spec.volumes if one.kind == "memory")
    assert found["shm"] == int(memory.source)
    return found
