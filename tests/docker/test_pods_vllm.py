"""The pod of an exported vLLM as a container: the real engine with the tiny models and their drafter, started once."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from dflash_deploy import operations
from dflash_deploy.deployment import Deployment
from dflash_deploy.export.pod import ENDS
from dflash_deploy.serve.drain import SETTLES
from tests.support.cli import edit_env, initialise
from tests.support.exported_pods import NAME, USER, Folder, build, network
from tests.support.kubelet.node import Node
from tests.support.kubelet.pods import Pod
from tests.support.pod_asked import CONFINED, HANGS, WRITABLE, answered, bearer, looked, streaming

IMAGE = "dflash-deploy/vllm:pods-under-test"
SLOW, LASTS, TOKENS = 0.3, 10.0, 500
"""Processors of a slow engine, the seconds that it is slow, and the tokens of a stream."""

CACHE = f"{NAME}-cache"


@dataclass
class Running:
    """The folder of one replica, and its pod. `early`: what the probes said before the engine answered."""

    folder: Folder
    pod: Pod
    early: tuple[bool, int, str]

    @property
    def url(self) -> str:
        """The pod's address."""
        return f"http://{self.pod.address}:8000"


@pytest.fixture(scope="module")
def running(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`init` and `export kubernetes` for the user 1000, with the weights of this machine; the pod is ready."""
    place = tmp_path_factory.mktemp("pod-vllm")
    build("vllm", IMAGE, base_image)
    deployment = place / "deployment"
    deployment.mkdir()
    initialise("--profile", "cpu", "--runtime", "compose", at=deployment)
    edit_env(deployment, DFLASH_IMAGE=IMAGE)
    os.chown(deployment / ".env", USER, USER)
    made = operations.export_kubernetes(deployment, place / "out", operations.Cluster(name=NAME))
    with network("dflash-pod-vllm") as (name, _):
        claim = place / "claim"
        claim.mkdir()
        # any image of Debian keeps the address
        node = Node(place, name, base_image, claims={CACHE: claim})
        folder = Folder(place / "out", node, Deployment(deployment).key.reveal())
        folder.apply(["base/settings.yaml"], made.secret_command)
        with folder.running("engine", "base/deployment.yaml", service=NAME) as pod:
            live = pod.execute("engine", *pod.of("engine").probes["livenessProbe"].target)
            early = (pod.passes("engine", "startupProbe"), live.returncode, live.stdout)
            pod.waits("engine", "startupProbe", HANGS)
            yield Running(folder, pod, early)


def test_probes_fail_before_the_engine_answers_and_pass_then(running: Running) -> None:
    assert running.early == (False, 1, "dflash: the engine does not listen\n")
    assert running.pod.passes("engine", "readinessProbe")
    assert running.pod.passes("engine", "livenessProbe")


def test_drafts_are_accepted(running: Running) -> None:
    key = running.folder.key
    assert answered(running.pod, key) == 200
    text = httpx.get(f"{running.url}/metrics", headers=bearer(key), timeout=HANGS).text
    counted = {
        name: float(value)
        for name, value in re.findall(r"^vllm:spec_decode_num_(\w+)_tokens_total\{[^}]*} (\S+)$", text, re.MULTILINE)
    }
    assert 0 < counted["accepted"] <= counted["draft"], counted


def test_only_health_is_open_without_a_key(running: Running) -> None:
    assert [answered(running.pod, key) for key in ("", "a-key-that-nobody-has")] == [401, 401]
    with httpx.Client(base_url=running.url, timeout=HANGS) as client:
        described = client.get("/openapi.json", headers=bearer(running.folder.key)).json()["paths"]
        routes = [(method, path) for path, methods in described.items() for method in methods]
        assert {"/v1/chat/completions", "/v1/models", "/tokenize", "/version"} <= described.keys()
        opened = {route for route in [*routes, ("get", "/metrics")] if client.request(*route).status_code != 401}
    assert opened == {("get", "/health")}


def test_the_container_can_do_what_the_manifest_says_and_no_more(running: Running) -> None:
    found = looked(running.pod)
    assert found["user"] == [USER, USER]
    assert found["writes"] == WRITABLE
    assert found["status"] == CONFINED
    memory = next(one for one in running.pod.spec.volumes if one.kind == "memory")
    assert found["shm"] == int(memory.source)
    # the first process of a pod is the engine's own: there is no init
    assert "serve" in found["first"]
    key = running.folder.key
    assert key not in json.dumps([running.pod.inspected("engine"), found]) + running.pod.logs("engine")
    # compiled kernels are in the claim, which outlives the pod
    assert any(running.folder.node.claims[CACHE].iterdir())


def test_a_pod_that_ends_waits_for_its_stream(running: Running) -> None:
    with streaming(running.url, running.folder.key, running.pod, SLOW, LASTS, TOKENS) as streamed:
        ended = running.pod.end()["engine"]
    print(ended, streamed)
    assert streamed.whole
    assert ended.stopped > SETTLES + 3, "the stream was too short to show anything"
    assert ended.code != 137
    assert ended.seconds < ended.stopped + ENDS
