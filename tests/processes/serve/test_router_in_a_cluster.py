"""The containers of an exported router pod, as processes: real SMG and Caddy before the pods of a scripted cluster."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dflash_deploy.door.caddy import find_caddy
from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.objects import DOOR_FILES, FILES, ROUTER_PORT, router_objects
from dflash_deploy.features.export.pods import PORT
from dflash_deploy.serve.router.files import RouterKeys, keys_document_of, read_seen
from dflash_deploy.serve.router.pods import SELECTOR, PodWatcher, asker
from tests.support.cluster import NAMESPACE, Kubernetes, engines, kubernetes, pod
from tests.support.door import until
from tests.support.manifests import plan_for, pod_of, source_for
from tests.support.ports import free_port, free_run

CLIENT = "key-of-a-client-0123456789"
KEYS = RouterKeys("admin-key-of-the-router", "probe-key-of-the-router")
ONE, TWO = "127.0.0.2", "127.0.0.3"

START = """\
import sys
from pathlib import Path
from dflash_deploy.serve.router import __main__, pods
pods.ACCOUNT, pods.ENGINE_PORT = Path(sys.argv[1]), int(sys.argv[2])
sys.exit(__main__.main())
"""
"""The router's module, with the places of this machine in place of those of a pod."""


def of_pod(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"]}


class Routed:
    """A router pod that runs here: its door's URL, the two processes, and what its engines were asked."""

    def __init__(self, url: str, router: int, seen: list[tuple[str, str, str]], files: Path) -> None:
        self.url, self.router, self.seen, self.files = url, router, seen, files

    def ask(self, path: str = "/v1/chat/completions", key: str = CLIENT, **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], **body}
        return httpx.post(f"{self.url}{path}", headers=headers, json=asked, timeout=60)

    def listed(self) -> set[str]:
        try:
            return {worker.url.split("/")[2].split(":")[0] for worker in read_seen(self.files / "seen.json")[1]}
        except (OSError, ValueError):
            return set()

    def answers(self) -> str:
        answer = self.ask()
        return str(answer.json()["choices"][0]["message"]["content"]) if answer.status_code == 200 else ""


@contextmanager
def running(*command: str, environment: dict[str, str], log: Path) -> Iterator[int]:
    with log.open("w") as written:
        process = subprocess.Popen(command, env=environment, stdout=written, stderr=written)
        try:
            yield process.pid
        finally:
            process.kill()
            process.wait()


@contextmanager
def routed(place: Path, api: Kubernetes) -> Iterator[Routed]:
    plan = plan_for("h100")
    source = source_for(plan)
    made = router_objects(source, Cluster(replicas=2))
    router, door = pod_of(made["router.yaml"])["containers"]
    engine, published, smg = free_port(), free_port(), free_run(2)
    files = place / "files"
    files.mkdir()
    (files / "keys.json").write_text(keys_document_of(KEYS))
    text = made["router-files.yaml"]["data"]["Caddyfile"]
    for here, there in (
        (f"dflash-engines:{PORT}", f"{TWO}:{engine}"),
        (f":{PORT}", f":{published}"),
        (f":{ROUTER_PORT}", f":{smg}"),
        ("0.0.0.0", "127.0.0.1"),
        ("/tmp/caddy", str(place / "caddy")),
    ):
        assert here in text
        text = text.replace(here, there)
    (place / "Caddyfile").write_text(text)
    own = {
        **of_pod(router),
        "DFLASH_PORT": str(smg),
        "DFLASH_ROUTER_DIRECTORY": str(files),
        "SERVED_MODEL_NAME": "tiny",
    }
    assert of_pod(router)["DFLASH_ROUTER_DIRECTORY"] == FILES
    cluster = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
    environment = {**os.environ, **own, **cluster}
    command = [part.replace(DOOR_FILES, str(place)) for part in door["command"]]
    with ExitStack() as stack:
        seen = stack.enter_context(engines(engine, ONE, TWO, client=CLIENT, probe=KEYS.probe))
        started = (sys.executable, "-c", START, str(api.account), str(engine))
        pid = stack.enter_context(running(*started, environment=environment, log=place / "router.log"))
        caddy = (str(find_caddy().program), *command[1:])
        homes = {name: str(place / "caddy") for name in of_pod(door)}
        stack.enter_context(running(*caddy, environment={**os.environ, **homes}, log=place / "door.log"))
        yield Routed(f"http://127.0.0.1:{published}", pid, seen, files)


def test_requests_follow_the_pods_and_streams_end_whole(tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    with kubernetes(account) as api, routed(tmp_path, api) as router:
        api.pods = [pod("e-1", ONE), pod("e-2", TWO, ready=False)]
        until(lambda: _now(router) == ONE)
        until(lambda: router.listed() == {ONE})
        labels = "app.kubernetes.io/instance=dflash,app.kubernetes.io/component=engine"
        assert api.asked[0].startswith(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=")
        assert labels in api.asked[0]
        # evicted pods stay in the list
        assert "&fieldSelector=status.phase=Running&" in api.asked[0]
        # it holds no key of a client, and shows none of its own
        shown = Path(f"/proc/{router.router}/cmdline").read_bytes().decode()
        assert not [key for key in (KEYS.admin, KEYS.probe) if key in shown]
        answers: list[httpx.Response] = []
        stream = threading.Thread(target=lambda: answers.append(router.ask(stream=True)))
        stream.start()
        until(lambda: len([one for one in router.seen if one[1] == "/v1/chat/completions"]) > 1)
        api.pods = [pod("e-1", ONE, ends=True), pod("e-2", TWO)]
        until(lambda: router.listed() == {TWO})
        assert {router.answers() for _ in range(5)} == {TWO}
        stream.join(60)
        assert answers[0].text.count(ONE) == 10
        assert "[DONE]" in answers[0].text
        # a Kubernetes that does not answer takes no engine away
        api.status = 503
        before = len(api.asked)
        until(lambda: len(api.asked) > before + 2)
        assert router.answers() == TWO
        closed = {router.ask(path, "").status_code for path in ("/workers", "/engine_metrics", "/v1/chat/completions")}
        assert closed == {401}
        assert {router.ask(path).status_code for path in ("/workers", "/engine_metrics", "/generate")} == {404}
        assert router.ask(key="another-key-0123456789").status_code == 403
        probed = {key for _, path, key in router.seen if path == "/metrics"}
        assert probed == {KEYS.probe}
        log = (tmp_path / "router.log").read_text() + (tmp_path / "door.log").read_text()
        assert not [key for key in (KEYS.admin, KEYS.probe, CLIENT) if key in log]
        print(json.dumps({"asked": len(api.asked), "requests": len(router.seen)}))


def _now(router: Routed) -> str:
    try:
        return router.answers()
    except httpx.HTTPError:
        return ""


@pytest.mark.parametrize("damaged", ["token", "ca.crt", "namespace"])
def test_a_broken_account_is_one_line_and_no_engine(
    damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kubernetes(tmp_path) as api:
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api.port),
            SELECTOR: "a=b",
        }
        (tmp_path / damaged).unlink()
        watcher = PodWatcher(tmp_path, asker(environment, tmp_path), ("tiny",))
        watcher.step()
        watcher.step()
    assert not (tmp_path / "workers.json").exists()
    said = capsys.readouterr().err
    assert said.startswith("dflash: Kubernetes does not list the engines: ")
    assert said.count("\n") == 1
