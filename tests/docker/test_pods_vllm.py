"""The pod of an exported vLLM as a container: the real engine with the tiny models and their drafter, started once."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from dflash_deploy.serve.drain import SETTLES
from tests.support.engine_pod import CACHE, SILENT, EnginePod, confined, engine_pod
from tests.support.exported_pods import build
from tests.support.pod_asked import HANGS, answered, bearer, streaming

IMAGE = "dflash-deploy/vllm:pods-under-test"
SLOW, LASTS, TOKENS = 0.3, 10.0, 500
"""Processors of a slow engine, the seconds that it is slow, and the tokens of a stream."""

IN_VAIN = 40.0
"""A third of DRAIN_SECONDS, which a pod waits whose requests do not end. Docker takes seconds on a busy machine."""


@pytest.fixture(scope="module")
def running(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePod]:
    """The pod, which is ready."""
    build("vllm", IMAGE, base_image)
    with engine_pod(tmp_path_factory.mktemp("pod-vllm"), IMAGE, base_image, "--profile", "cpu") as started:
        started.pod.waits("engine", "startupProbe", HANGS)
        yield started


def test_probes_fail_before_the_engine_answers_and_pass_then(running: EnginePod) -> None:
    assert running.early == SILENT
    assert running.pod.passes("engine", "readinessProbe")
    assert running.pod.passes("engine", "livenessProbe")


def test_drafts_are_accepted(running: EnginePod) -> None:
    key = running.key
    assert answered(running.pod, key) == 200
    text = httpx.get(f"{running.url}/metrics", headers=bearer(key), timeout=HANGS).text
    counted = {
        name: float(value)
        for name, value in re.findall(r"^vllm:spec_decode_num_(\w+)_tokens_total\{[^}]*} (\S+)$", text, re.MULTILINE)
    }
    assert 0 < counted["accepted"] <= counted["draft"], counted


def test_only_health_is_open_without_a_key(running: EnginePod) -> None:
    assert [answered(running.pod, key) for key in ("", "a-key-that-nobody-has")] == [401, 401]
    with httpx.Client(base_url=running.url, timeout=HANGS) as client:
        described = client.get("/openapi.json", headers=bearer(running.key)).json()["paths"]
        routes = [(method, path) for path, methods in described.items() for method in methods]
        assert {"/v1/chat/completions", "/v1/models", "/tokenize", "/version"} <= described.keys()
        opened = {route for route in [*routes, ("get", "/metrics")] if client.request(*route).status_code != 401}
    assert opened == {("get", "/health")}


def test_the_container_can_do_what_the_manifest_says_and_no_more(running: EnginePod) -> None:
    found = confined(running.pod)
    # the first process of a pod is the engine's own: there is no init
    assert "serve" in found["first"]
    key = running.key
    assert key not in json.dumps([running.pod.inspected("engine"), found]) + running.pod.logs("engine")
    # compiled kernels are in the claim, which outlives the pod
    assert any(running.folder.node.claims[CACHE].iterdir())


def test_a_pod_that_ends_waits_for_its_stream(running: EnginePod) -> None:
    with streaming(running.url, running.key, running.pod, SLOW, LASTS, TOKENS) as streamed:
        ended = running.pod.end()["engine"]
    print(ended, streamed)
    assert streamed.whole
    assert ended.stopped > SETTLES + 3, "the stream was too short to show anything"
    assert ended.code != 137
    assert ended.seconds < ended.stopped + IN_VAIN
