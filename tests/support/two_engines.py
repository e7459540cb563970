"""Two llama.cpp servers behind the router and the door: their addresses, states and counters, clients, and keys."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from dflash_deploy.client.metrics import KeyUsage
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.front import seen_workers, write_workers, written_workers
from dflash_deploy.operations.key_file import key
from dflash_deploy.operations.keys import usage_of_keys
from dflash_deploy.operations.status import MemberStatus, status
from dflash_deploy.plan.replicas import engine_port, router_port
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.router.files import RoutedEngine
from dflash_deploy.startup.engine import endpoint_of
from tests.support.askers import Askers, asking
from tests.support.cli import Ran, dflash
from tests.support.commands import eventually
from tests.support.llamacpp_native import processes
from tests.support.proxies import Proxy, before

HANGS = 300.0
"""Seconds after which something counts as hung."""

CLIENTS = 8

COUNTERS = {
    # of a prompt, llama.cpp counts what it read and what it had in its cache apart
    "llamacpp:prompt_tokens_total": "prompt",
    "llamacpp:prompt_tokens_cached_total": "prompt",
    "llamacpp:tokens_predicted_total": "generation",
}


def door(directory: Path) -> str:
    """The URL that is published."""
    return f"http://127.0.0.1:{_port(directory)}"


def router(directory: Path) -> str:
    """The URL of the router behind the door."""
    return f"http://127.0.0.1:{router_port(_port(directory))}"


def engines(directory: Path) -> list[str]:
    """The URL of each engine."""
    return [f"http://127.0.0.1:{engine_port(_port(directory), number)}" for number in (1, 2)]


def router_of(directory: Path) -> int:
    """The PID of the router itself, behind its supervisor."""
    session = json.loads((directory / ".dflash" / "router" / "run.json").read_text())["pid"]
    (found,) = [pid for pid in processes(directory) if pid != session and os.getsid(pid) == session]
    return found


def _port(directory: Path) -> int:
    return int(Deployment.existing(directory).values["DFLASH_PORT"])


def engine_tokens(url: str, directory: Path) -> Counter[str]:
    """The counters of one engine, without those of the gateway."""
    found = Counter[str]()
    headers = {"Authorization": f"Bearer {Deployment.existing(directory).key.reveal()}"}
    for line in httpx.get(f"{url}/metrics", headers=headers, timeout=HANGS).text.splitlines():
        name, _, value = line.rpartition(" ")
        if name in COUNTERS:
            found[COUNTERS[name]] += int(float(value))
    return found


def askers_of(directory: Path) -> Askers:
    """Clients that ask through the door with the owner's key."""

    def key() -> str:
        return Deployment(directory).key.reveal()

    deployment = Deployment.existing(directory)
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        return Askers(endpoint.url, endpoint.model, key, patience=HANGS)


def answered(directory: Path, key: str) -> int:
    """The status of a generation through the door, as `answered_at` has it."""
    deployment = Deployment.existing(directory)
    with endpoint_of(deployment, plan_of(deployment)) as endpoint:
        return answered_at(endpoint.url, key, endpoint.model)


def answered_at(url: str, key: str, model: str = "tiny") -> int:
    """The status of a generation with a key; an empty one is not sent. A refusal generates nothing."""
    body = {"model": model, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=HANGS)
    assert ("choices" in answer.text) == (answer.status_code == 200)
    return answer.status_code


def members(directory: Path) -> dict[int, MemberStatus]:
    """Each engine as `status` sees it, by its number."""
    return {member.number: member for member in status(directory).members}


def healthy(directory: Path, number: int) -> bool:
    """Whether the router sends requests to an engine and sees it healthy."""
    deployment = Deployment.existing(directory)
    port = engine_port(int(deployment.values["DFLASH_PORT"]), number)
    return (f"http://127.0.0.1:{port}", True) in _healthy(deployment)


def under_load(
    directory: Path, command: Callable[[], Ran], *, least: int, clients: int = CLIENTS
) -> tuple[Ran, Askers]:
    """Run a command while clients ask, until they have asked `least` times."""
    askers = askers_of(directory)
    with asking(askers, clients):
        ran = command()
        eventually(lambda: len(askers.asked) >= least)
    return ran, askers


def used(directory: Path, name: str) -> KeyUsage:
    """What a key used on both engines together."""
    found = {each.name: each for each in usage_of_keys(directory).keys}
    return found.get(name, KeyUsage(name))


@contextmanager
def keys(directory: Path, *names: str, limits: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """New keys of these names, for as long as the block runs."""
    for name in names:
        dflash("keys", "add", name, *limits, at=directory).succeeded()
    try:
        yield [key(directory, name).key.reveal() for name in names]
    finally:
        for name in names:
            dflash("keys", "revoke", name, at=directory).succeeded()


@contextmanager
def first_engine_behind(directory: Path, kind: type[Proxy]) -> Iterator[None]:
    """The router reaches the first engine through a proxy of this kind, as long as the block runs."""
    deployment = Deployment.existing(directory)
    listed = written_workers(deployment)

    def sends_to(workers: tuple[RoutedEngine, ...]) -> None:
        write_workers(deployment, workers)
        wanted = {(worker.url, True) for worker in workers}
        eventually(lambda: _healthy(deployment) == wanted)

    with before(listed[0].url, kind) as url:
        sends_to((replace(listed[0], url=url), *listed[1:]))
        try:
            yield
        finally:
            sends_to(listed)


def _healthy(deployment: Deployment) -> set[tuple[str, bool]]:
    """The address of each engine that the router spoke of last, and whether it is healthy."""
    seen = seen_workers(deployment)
    return set() if seen is None else {(worker.url, worker.healthy) for worker in seen[1]}
