"""The files of `monitor up` beside the real llama.cpp: the real Prometheus and Alertmanager, and a webhook.

Rates are those of twenty seconds, a condition must hold for five seconds only, and Alertmanager waits one second for
further alerts of a group. The thresholds are those that a deployment has.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue

import httpx
import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.key_file import key
from tests.support.caddy import expiring
from tests.support.cli import dflash, edit_env
from tests.support.llamacpp_native import connect, init, processes, server_of
from tests.support.monitored import HANGS, Project, Received, fired, watched, webhook, webhook_config
from tests.support.prometheus import Prometheus, blackbox_exporter, load, read_from

USUAL: Mapping[str, float] = {}
# Sampling for which no draft token is right.
WITHOUT_AGREEMENT: Mapping[str, float] = {"temperature": 100, "top_k": 0, "top_p": 1, "min_p": 0}

# Alerts that depend on the memory and disks of the machine that runs the tests.
OF_THE_MACHINE = {name for name, needs in read_from().items() if "exporter" in needs}


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
def project(tmp_path_factory: pytest.TempPathFactory, received: Received, caddy: tuple[str, Path]) -> Iterator[Project]:
    """The project of a deployment that runs, and is monitored."""
    directory = tmp_path_factory.mktemp("monitored")
    init(directory)
    dflash("up", at=directory).succeeded()
    with (
        blackbox_exporter(tmp_path_factory.mktemp("blackbox"), caddy[1]) as blackbox,
        webhook(received) as url,
        watched(directory, webhook_config(url), interval=1, BLACKBOX_PORT=int(blackbox.rpartition(":")[2])) as running,
    ):
        running.shorten(window="20s", lasts="5s")
        yield running
    dflash("down", at=directory).succeeded()
    assert not processes(directory)


@pytest.fixture
def watching(project: Project) -> Prometheus:
    """Its Prometheus."""
    return Prometheus(project.url())


@pytest.fixture
def monitored(project: Project) -> Path:
    """The directory of that deployment."""
    return project.directory


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


def asking(directory: Path, secret: str = "", sampling: Mapping[str, float] = USUAL) -> Callable[[], object]:
    """A function that sends one request for an answer."""
    deployment = Deployment.existing(directory)
    url = f"http://127.0.0.1:{deployment.values['DFLASH_PORT']}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {secret or deployment.key.reveal()}"}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Count from 1 to 20."}], "max_tokens": 48}
    # a request that is cancelled leaves the queue
    return lambda: httpx.post(url, json={**body, **sampling}, headers=headers, timeout=120)


def test_the_engine_is_read_and_nothing_fires(monitored: Path, watching: Prometheus) -> None:
    with connect(monitored) as endpoint, load(endpoint):
        assert not watching.missing(["dflash:up == 1", "dflash:acceptance_length", "dflash:refused_per_second"])
        assert not watching.firing() - OF_THE_MACHINE


def test_the_key_is_in_its_file_only(monitored: Path) -> None:
    value = key(monitored, "prometheus").key.reveal()
    folder = monitored / ".dflash" / "monitor"
    holders = [path for path in folder.glob("*") if path.is_file() and value in path.read_text()]
    assert [path.name for path in holders] == ["metrics.key"]
    assert holders[0].stat().st_mode & 0o777 == 0o600
    logs = [path.read_text() for path in folder.glob("*.log")]
    assert len(logs) == 2
    assert not [text for text in logs if value in text]


def test_overload_lost_acceptance_wrong_keys_and_an_old_certificate_are_alerts(
    project: Project, received: Received, caddy: tuple[str, Path]
) -> None:
    config, url = project.folder / "prometheus.yml", f"{caddy[0]}/health"
    before, job, after = config.read_text().partition("job_name: dflash-endpoint")
    config.write_text(before + job + after.replace("targets: []", f"targets: [{url}]", 1))
    project.reload()
    with ExitStack() as clients:
        without = asking(project.directory, sampling=WITHOUT_AGREEMENT)
        clients.enter_context(repeated(without, clients=12))
        clients.enter_context(repeated(asking(project.directory, "sk-that-was-revoked"), clients=2))
        found = fired(received, {"QueueGrows", "AcceptanceFell", "RequestsRefused", "CertificateExpires"})
    assert found["QueueGrows"] == found["AcceptanceFell"] == found["RequestsRefused"]
    assert found["CertificateExpires"] == {url}


def test_an_engine_without_its_drafter_is_an_alert(monitored: Path, received: Received) -> None:
    drafter = Deployment(monitored).values["DFLASH_DRAFTER"]
    edit_env(monitored, DFLASH_DRAFTER="off")
    dflash("up", at=monitored).succeeded()
    # the engine runs without it, behind the back of the limits that Prometheus has
    edit_env(monitored, DFLASH_DRAFTER=drafter)
    with repeated(asking(monitored), clients=2):
        fired(received, {"DraftsStopped"})


def test_a_killed_engine_is_an_alert_and_in_the_journal(
    monitored: Path, watching: Prometheus, received: Received
) -> None:
    os.kill(server_of(monitored), signal.SIGKILL)
    fired(received, {"EngineDown"})
    assert "EngineDown" in watching.firing()
    data = dflash("status", "--since", "1h", "--json", at=monitored).succeeded().document["data"]
    told = [(one["event"], one["command"]) for one in data["events"]]
    assert ("ready", "up") in told
    assert told.index(("key", "keys add")) < told.index(("ended", ""))
    assert "the engine ended with exit code 137" in [one["text"] for one in data["events"]]
    assert (monitored / ".dflash" / "journal.jsonl").stat().st_mode & 0o777 == 0o600
    assert key(monitored).key.reveal() not in (monitored / ".dflash" / "journal.jsonl").read_text()
