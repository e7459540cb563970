"""The pods of an exported folder as containers: a loader, engines of llama.cpp, and the router and door before them.

What a field of a manifest means here is in tests/support/kubelet. Kubernetes itself is scripted: it lists the pods.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from dflash_deploy.serve.drain import SETTLES
from dflash_deploy.serve.router.files import read_seen
from tests.support.askers import WHOLE, Askers, asking
from tests.support.cluster import pod
from tests.support.commands import checked, eventually
from tests.support.container_engine import Engine
from tests.support.exported_pods import CLAIM, ENGINES, NAME, ROOT, USER, Exported, exported
from tests.support.fleet_hub import FILES
from tests.support.kubelet.pods import Ended, Pod, running
from tests.support.pod_asked import ALL, CONFINED, HANGS, WRITABLE, answered, give, looked, streaming

CLIENTS = 4
SLOW = 0.05
"""Processors of a slow engine. With all of them, the tiny pair starts and answers within seconds."""

KILLED = 137
"""The exit code after SIGKILL."""


@pytest.fixture(scope="module")
def folder(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """The folder of two replicas with a claim, and the node on which its pods run."""
    with exported(tmp_path_factory.mktemp("pods")) as found:
        yield found


def test_the_lines_of_the_readme_fill_the_claim_through_the_loader(folder: Exported, tmp_path: Path) -> None:
    claim, gguf = folder.node.claims[CLAIM], ROOT / "models/tiny/gguf"
    readme = (folder.folder / "README.md").read_text()
    lines = [line.strip() for line in readme.splitlines() if line.startswith("    tar -C")]
    with running(folder.node, "loader", folder.document("loader.yaml")["spec"]) as pod:
        kubectl = tmp_path / "kubectl"
        # the words before the command are: exec -i POD --
        kubectl.write_text(f'#!/bin/sh\nshift 4\nexec docker exec -i {pod.containers["loader"]} "$@"\n')
        kubectl.chmod(0o755)
        for line in lines:
            checked("sh", "-c", f"PATH={tmp_path}:$PATH; {line}")
    for role, name in (("target", FILES[0]), ("target", FILES[1]), ("drafter", FILES[2])):
        assert (claim / role / name).read_bytes() == (gguf / name).read_bytes()
        assert (claim / role / name).stat().st_uid == USER


@dataclass(frozen=True)
class Pods:
    """The pods of a deployment with two replicas, and the one that replaces the first of them."""

    router: Pod
    engines: tuple[Pod, Pod, Pod]


@pytest.fixture(scope="module")
def pods(folder: Exported) -> Iterator[Pods]:
    """The pods, which have just been started. Kubernetes lists none yet."""
    with ExitStack() as stack:
        router = stack.enter_context(folder.running("router", "base/router.yaml", service=NAME))
        one, two, three = (
            stack.enter_context(folder.running(f"engine-{number}", "base/deployment.yaml", service=ENGINES))
            for number in (1, 2, 3)
        )
        yield Pods(router, (one, two, three))


def test_probes_fail_before_the_engine_answers_and_pass_then(folder: Exported, pods: Pods) -> None:
    # the one that was started last, which does not get ready while it is asked
    one = pods.engines[2]
    give(one, SLOW)
    assert not one.passes("engine", "startupProbe")
    early = one.execute("engine", *one.of("engine").probes["livenessProbe"].target)
    assert (early.returncode, early.stdout) == (1, "dflash: the engine does not listen\n")
    give(one, ALL)
    one.waits("engine", "startupProbe", HANGS)
    assert one.passes("engine", "readinessProbe")
    assert one.passes("engine", "livenessProbe")
    assert [answered(one, key) for key in (folder.key, "", "a-key-that-nobody-has")] == [200, 401, 401]


def test_the_container_can_do_what_the_manifest_says_and_no_more(folder: Exported, pods: Pods) -> None:
    one = pods.engines[0]
    found = looked(one)
    assert found["user"] == [USER, USER]
    assert found["writes"] == WRITABLE
    assert found["status"] == CONFINED
    assert found["shm"] == 1 << 30
    # the first process of a pod is the engine's own: there is no init
    assert "dflash_deploy.serve.door" in found["first"]
    assert folder.key not in json.dumps(one.inspected("engine")) + one.logs("engine")


LASTS = 10.0
"""Seconds that a stream takes at least: more than a pod waits without one."""

TOKENS = 500
"""Tokens of such a stream. A slow engine makes 20 a second at most; what is left then waits for a busy machine's
turns, and 1,500 took longer than a pod waits where four tiers of tests ran."""


def listed(folder: Exported) -> set[str]:
    """The addresses of the engines that SMG sends to."""
    try:
        seen = read_seen(folder.node.place / "pods/router/router/seen.json")[1]
    except (OSError, ValueError):
        return set()
    return {worker.url.split("/")[2].split(":")[0] for worker in seen if worker.healthy}


IN_VAIN = 40.0
"""A third of DRAIN_SECONDS, which a pod waits whose requests do not end. preStop starts late on a busy machine."""


def idle(ended: Ended) -> bool:
    """Whether it ended as a container without requests in flight."""
    return ended.stopped > SETTLES and ended.seconds < SETTLES + IN_VAIN and ended.code != KILLED


def test_requests_follow_the_pods_and_streams_end_whole(folder: Exported, pods: Pods) -> None:
    router, (one, _, three) = pods.router, pods.engines
    one.waits("engine", "readinessProbe", HANGS)
    folder.api.pods = [pod("e-1", one.address)]
    for name in ("router", "door"):
        router.waits(name, "readinessProbe", HANGS)
        assert router.passes(name, "livenessProbe")
    url = f"http://{router.address}:8000"
    eventually(lambda: listed(folder) == {one.address})
    askers = Askers(url, "tiny", lambda: folder.key, max_tokens=40, patience=HANGS)
    with asking(askers, CLIENTS):
        pods_come_and_go(folder, askers, *pods.engines)
    statuses = {path: httpx.get(f"{url}{path}", timeout=60).status_code for path in ("/health", "/workers", "/metrics")}
    assert statuses == {"/health": 200, "/workers": 401, "/metrics": 401}
    assert folder.key not in router.logs("router") + router.logs("door")
    with streaming(url, folder.key, three, SLOW, LASTS, TOKENS) as streamed:
        ended = router.end()
    assert streamed.whole
    assert ended["router"].stopped > SETTLES + 3, "the stream was too short to show anything"
    assert {name: one.code for name, one in ended.items() if one.code == KILLED} == {}
    # after SIGTERM there is nothing left to wait for; docker's own commands take seconds on a busy machine
    assert ended["router"].seconds < ended["router"].stopped + IN_VAIN, ended
    print(ended)
    assert idle(three.end()["engine"])


def pods_come_and_go(folder: Exported, askers: Askers, one: Pod, two: Pod, three: Pod) -> None:
    """A second pod is added, the first one is replaced by a third, and the second one is deleted by force."""
    api = folder.api
    api.pods = [pod("e-1", one.address), pod("e-2", two.address, ready=False), pod("e-3", three.address, ready=False)]
    two.waits("engine", "readinessProbe", HANGS)
    three.waits("engine", "readinessProbe", HANGS)
    assert listed(folder) == {one.address}
    api.pods = [pod("e-1", one.address), pod("e-2", two.address)]
    eventually(lambda: listed(folder) == {one.address, two.address})
    with streaming(f"http://{one.address}:8000", folder.key, one, SLOW, LASTS, TOKENS) as streamed:
        api.pods = [pod("e-1", one.address, ends=True), pod("e-2", two.address), pod("e-3", three.address)]
        ended = one.end()["engine"]
    assert streamed.whole
    assert ended.stopped > SETTLES + 3, "the stream was too short to show anything"
    assert ended.code != KILLED
    eventually(lambda: listed(folder) == {two.address, three.address})
    assert askers.outcomes().keys() == {WHOLE}
    checked("docker", "kill", two.containers["engine"])
    api.pods = [pod("e-3", three.address)]
    eventually(lambda: listed(folder) == {three.address})
    done = len(askers.asked)
    eventually(lambda: len(askers.asked) > done + CLIENTS)
    assert len(askers.errors()) <= CLIENTS, askers.outcomes()
    assert set(askers.outcomes()) <= {WHOLE, "stream ends with an error", "stream cut off"}
    print(askers.outcomes())
