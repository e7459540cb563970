"""The pod of an exported SGLang as a container without a GPU: the released SGLang starts as the manifest says.

It needs a GPU, so it answers nothing here: it ends where it looks for one, after its own parser took the arguments.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dflash_deploy import operations
from dflash_deploy.deployment import Deployment
from tests.support.cli import edit_env, initialise
from tests.support.commands import checked, wait_until
from tests.support.exported_pods import NAME, USER, Folder, build, network
from tests.support.kubelet.node import Node
from tests.support.kubelet.pods import Pod
from tests.support.pod_asked import CONFINED, HANGS, WRITABLE, looked
from tests.support.standin_sglang import ensure_base

IMAGE = "dflash-deploy/sglang:pods-under-test"
CACHE = f"{NAME}-cache"

ARGUMENTS = (
    "--model-path /models/target --served-model-name tiny --host 0.0.0.0 --port 8000 --enable-metrics",
    "--speculative-algorithm DFLASH --speculative-draft-model-path /models/drafter --speculative-num-draft-tokens 8",
)
"""Words that the command line must have."""


@dataclass(frozen=True)
class Began:
    """The pod when its container had just been started, and the key. `early`: what its probes said."""

    pod: Pod
    key: str
    early: tuple[bool, int, str]


@pytest.fixture(scope="module")
def began(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Began]:
    """`init` for an H100 and `export kubernetes`; the pod runs on a node that ignores that it needs a GPU."""
    place = tmp_path_factory.mktemp("pod-sglang")
    build("sglang", IMAGE, ensure_base(base_image, tmp_path_factory.mktemp("sglang")))
    deployment, claim = place / "deployment", place / "claim"
    deployment.mkdir()
    claim.mkdir()
    chosen = ("--profile", "h100", "--engine", "sglang", "--model", "tiny", "--runtime", "compose")
    initialise(*chosen, at=deployment)
    edit_env(deployment, DFLASH_IMAGE=IMAGE)
    os.chown(deployment / ".env", USER, USER)
    made = operations.export_kubernetes(deployment, place / "out", operations.Cluster(name=NAME))
    with network("dflash-pod-sglang") as (name, _):
        node = Node(place, name, base_image, claims={CACHE: claim}, ignores_gpus=True)
        folder = Folder(place / "out", node, Deployment(deployment).key.reveal())
        folder.apply(["base/settings.yaml"], made.secret_command)
        with folder.running("engine", "base/deployment.yaml", service=NAME) as pod:
            live = pod.execute("engine", *pod.of("engine").probes["livenessProbe"].target)
            yield Began(pod, folder.key, (pod.passes("engine", "startupProbe"), live.returncode, live.stdout))


def test_the_container_can_do_what_the_manifest_says_and_no_more(began: Began) -> None:
    server = "dflash_deploy.serve.engines.sglang_server"
    assert wait_until(lambda: server in looked(began.pod)["first"], HANGS)
    found = looked(began.pod)
    assert found["user"] == [USER, USER]
    assert found["writes"] == WRITABLE
    assert found["status"] == CONFINED
    memory = next(one for one in began.pod.spec.volumes if one.kind == "memory")
    assert found["shm"] == int(memory.source)
    assert began.pod.of("engine").gpus == 1


def test_probes_fail_while_nothing_listens(began: Began) -> None:
    assert began.early == (False, 1, "dflash: the engine does not listen\n")


def test_sglang_takes_the_arguments_and_ends_where_it_looks_for_a_gpu(began: Began) -> None:
    code = int(checked("docker", "wait", began.pod.containers["engine"], timeout=HANGS))
    log = began.pod.logs("engine")
    begun = next(line for line in log.splitlines() if line.startswith("dflash: SGLang 0.5.23: "))
    assert [words for words in ARGUMENTS if words not in begun] == []
    assert code == 1
    assert "No accelerator" in log.splitlines()[-1], log[-2000:]
    # its own parser returned before it looked for one
    assert "usage:" not in log
    assert began.key not in json.dumps(began.pod.inspected("engine")) + log
