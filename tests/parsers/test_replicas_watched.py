"""Two real llama.cpp servers brought into twelve states, each of which is an alert at a real webhook.

A real Prometheus reads engines, router and endpoint every five seconds, and a real Alertmanager sends. Rates are those
of twenty seconds, a condition must hold for twelve seconds only, and Alertmanager waits one second for further alerts
of a group. The thresholds are those that a deployment has.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue

import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.features.monitoring.api import MonitoringApi
from dflash_deploy.features.monitoring.operations import ALERTMANAGER, BY_COMMAND, address_of
from dflash_deploy.features.monitoring.project import DEPLOYMENT
from dflash_deploy.plan.replicas import router_metrics_port
from tests.support.caddy import expiring
from tests.support.cli import dflash, edit_env
from tests.support.commands import eventually
from tests.support.llamacpp_native import server_of
from tests.support.monitored import HANGS, Project, Received, fired, webhook, webhook_config
from tests.support.monitored import watched as watched_project
from tests.support.prometheus import Prometheus, blackbox_exporter, conditions
from tests.support.two_engines import door, engines, router_of

USUAL: Mapping[str, float] = {}
WITHOUT_AGREEMENT: Mapping[str, float] = {"temperature": 100, "top_k": 0, "top_p": 1, "min_p": 0}
"""Sampling for which no draft token is right."""

HEALTHY_FOR = 20.0
"""Seconds of load before anything happens to the deployment: a condition that holds for twelve of them is an alert."""


@pytest.fixture(scope="module")
def received() -> Received:
    """The notifications that the webhook got."""
    return Queue()


@pytest.fixture(scope="module")
def caddy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a Caddy whose certificate expires within an hour, and the root of its authority."""
    with expiring(tmp_path_factory.mktemp("expiring")) as made:
        yield made


@pytest.fixture(scope="module")
def project(
    two_engines: Path, received: Received, caddy: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """The project of the engines, which run again afterwards."""
    _, root = caddy
    with (
        blackbox_exporter(tmp_path_factory.mktemp("blackbox"), root) as blackbox,
        webhook(received) as url,
        watched_project(
            two_engines, webhook_config(url), interval=5, blackbox=int(blackbox.rpartition(":")[2])
        ) as running,
    ):
        running.shorten(window="20s", lasts="12s")
        yield running
    dflash("keys", "revoke", "prometheus", at=two_engines).succeeded()
    dflash("up", at=two_engines).succeeded()


@pytest.fixture
def watched(project: Project) -> Prometheus:
    """Its Prometheus."""
    return Prometheus(project.url())


@contextmanager
def repeated(do: Callable[[], object], clients: int = 1) -> Iterator[None]:
    """Do something again and again, as long as the block runs; that it fails is a state of the engine."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.05):
            try:
                do()
            except httpx.HTTPError:
                continue

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(HANGS)


def asking(
    directory: Path, url: str, key: str = "", sampling: Mapping[str, float] = USUAL, patience: float = 10
) -> Callable[[], object]:
    """A function that sends one request for an answer, and waits `patience` seconds: an engine may hang."""
    sent = key or Deployment.existing(directory).key.reveal()
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Count from 1 to 20."}], "max_tokens": 48}

    def ask() -> object:
        headers = {"Authorization": f"Bearer {sent}"}
        return httpx.post(f"{url}/v1/chat/completions", json={**body, **sampling}, headers=headers, timeout=patience)

    return ask


@contextmanager
def endpoint_at(project: Project, url: str) -> Iterator[None]:
    """The endpoint that the blackbox exporter asks is another one, as long as the block runs."""
    config = project.folder / "prometheus.yml"
    usual = config.read_text()
    other = usual.replace(f"{door(project.directory)}/", f"{url}/")
    assert other != usual
    config.write_text(other)
    project.reload()
    try:
        yield
    finally:
        config.write_text(usual)
        project.reload()


def address(url: str) -> str:
    return url.removeprefix("http://")


def test_a_healthy_deployment_under_load_fires_nothing(two_engines: Path, watched: Prometheus) -> None:
    names = ["dflash:router:engine_used", "dflash:router:failed", "dflash:endpoint:up", "dflash:refused_per_second"]
    with repeated(asking(two_engines, door(two_engines)), clients=2):
        assert not watched.missing(names)
        until = time.monotonic() + HEALTHY_FOR
        while time.monotonic() < until:
            # two engines that share their processors with the tests differ for a while
            assert not watched.firing() - {"EnginesDiffer"}
            time.sleep(1)
    for condition in conditions().values():
        # a condition that does not hold yields no sample; an error of types or labels raises
        watched.samples(condition)


def test_overload_lost_acceptance_wrong_keys_and_an_old_certificate_are_alerts(
    two_engines: Path, project: Project, received: Received, caddy: tuple[str, Path]
) -> None:
    first, second = engines(two_engines)
    with ExitStack() as load:
        load.enter_context(endpoint_at(project, caddy[0]))
        # a request that is cancelled leaves the queue
        load.enter_context(repeated(asking(two_engines, first, patience=120)))
        without = asking(two_engines, second, sampling=WITHOUT_AGREEMENT, patience=120)
        load.enter_context(repeated(without, clients=12))
        load.enter_context(repeated(asking(two_engines, first, key="sk-that-was-revoked"), clients=2))
        wanted = {"QueueGrows", "AcceptanceFell", "EnginesDiffer", "RequestsRefused", "CertificateExpires"}
        found = fired(received, wanted)
    assert found["QueueGrows"] == found["AcceptanceFell"] == {address(second)}
    assert address(second) in found["EnginesDiffer"]
    assert found["RequestsRefused"] == {address(first)}
    assert found["CertificateExpires"] == {f"{caddy[0]}/health"}


def test_engines_that_hang_or_were_killed_are_alerts(
    two_engines: Path, watched: Prometheus, received: Received
) -> None:
    first, second = engines(two_engines)
    hung = server_of(two_engines, 2)
    with repeated(asking(two_engines, door(two_engines)), clients=2):
        try:
            os.kill(hung, signal.SIGSTOP)
            os.kill(server_of(two_engines, 1), signal.SIGKILL)
            # /metrics of an engine that hangs does not answer either
            before = fired(received, {"EngineDown", "RouterLostEngine"})
        finally:
            os.kill(hung, signal.SIGKILL)
        # while one engine is left, some of them may come already
        found = before | fired(received, {"RouterNoEngine", "RouterErrors", "EndpointDown"} - before.keys())
    assert found["EngineDown"] <= {address(first), address(second)}
    assert found["EndpointDown"] == {f"{door(two_engines)}/health"}
    firing = 'ALERTS{alertname="EngineDown",alertstate="firing"}'
    both = {address(first), address(second)}
    eventually(lambda: {one["metric"]["instance"] for one in watched.samples(firing)} == both)


def test_alerts_of_the_router_end_after_up_and_engines_without_drafts_are_one(
    two_engines: Path, watched: Prometheus, received: Received
) -> None:
    of_engines = {"RouterLostEngine", "RouterNoEngine"}
    eventually(lambda: watched.firing() >= of_engines)
    drafter = Deployment(two_engines).values["DFLASH_DRAFTER"]
    edit_env(two_engines, DFLASH_DRAFTER="off")
    dflash("up", at=two_engines).succeeded()
    # the engines run without it until the next `up`, behind the back of the limits that Prometheus has
    edit_env(two_engines, DFLASH_DRAFTER=drafter)
    # what `up` silences lasts longer than the command, and the next test waits for an alert
    deployment = Deployment(two_engines)
    with MonitoringApi(address_of(deployment, ALERTMANAGER)) as api:
        api.end_silences({DEPLOYMENT: deployment.project_name}, BY_COMMAND)
    both = set(engines(two_engines))
    eventually(lambda: {one["metric"]["worker"] for one in watched.samples("dflash:router:engine_used == 1")} == both)
    with repeated(asking(two_engines, door(two_engines)), clients=2):
        eventually(lambda: not watched.firing() & of_engines)
        found = fired(received, {"DraftsStopped"})
    assert found["DraftsStopped"] <= {address(url) for url in both}


def test_a_killed_router_is_an_alert(two_engines: Path, watched: Prometheus, received: Received) -> None:
    os.kill(router_of(two_engines), signal.SIGKILL)
    port = int(Deployment.existing(two_engines).values["DFLASH_PORT"])
    assert fired(received, {"RouterDown"})["RouterDown"] == {f"127.0.0.1:{router_metrics_port(port)}"}
    assert "RouterDown" in watched.firing()
