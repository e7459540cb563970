"""`fleet` on two hosts behind one router: real SMG and Caddy on the first, a llama.cpp on each, one door for both."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dflash_deploy.errors import ExitCode
from dflash_deploy.operations.key_file import key as run_key
from dflash_deploy.operations.keys import add_key, revoke_key
from tests.support.fleet_lab import FABRIC, Host, Lab, states

ASK = """\
import json, sys, urllib.error, urllib.request
url, model, text = sys.argv[1:]
key = sys.stdin.readline().strip()
body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
request = urllib.request.Request(url, json.dumps(body).encode() if model else None, headers)
try:
    answer = urllib.request.urlopen(request, timeout=60)
    print(answer.status)
    print(answer.read().decode())
except urllib.error.HTTPError as problem:
    print(problem.code)
except Exception as problem:
    print(type(problem).__name__, problem)
"""

COUNTED = "dflash_key_requests_total{"


class Clients:
    """Clients on one host. `key` reads the API key that they send, as late as they can."""

    def __init__(self, host: Host, key: Callable[[], str], model: str) -> None:
        self._host, self._key, self._model = host, key, model

    def ask(self, url: str, text: str = "hello", *, key: str | None = None) -> str:
        """Ask for one answer; return its status, or what went wrong."""
        return self._said(f"{url}/v1/chat/completions", self._model, text, key=key).splitlines()[0]

    def answered(self, url: str) -> int:
        """The answers of an engine since its start, by its own counters."""
        lines = self._said(f"{url}/metrics", "", "").splitlines()
        found = (line for line in lines if line.startswith(COUNTED) and 'status="200"' in line)
        return sum(int(float(line.split()[-1])) for line in found)

    @contextmanager
    def asking(self, url: str) -> Iterator[list[str]]:
        """Ask one question after the other while the block runs; the list has the statuses."""
        said: list[str] = []
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                said.append(self.ask(url, f"question {len(said)}"))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield said
        finally:
            ended.set()
            thread.join()

    def _said(self, url: str, model: str, text: str, *, key: str | None = None) -> str:
        command = ["ip", "netns", "exec", self._host.namespace, sys.executable, "-c", ASK, url, model, text]
        done = subprocess.run(
            command, input=self._key() if key is None else key, capture_output=True, text=True, check=True, timeout=90
        )
        return done.stdout


def key_of(hosts: Lab, name: str | None = None) -> str:
    """What `keys show --reveal` prints on the terminal now."""
    return run_key(hosts.directory, name).key.reveal()


def change_keys(hosts: Lab, clients: Clients, urls: tuple[str, ...]) -> None:
    """A key that was added or revoked counts on all hosts after `fleet up`, and no request fails meanwhile."""
    add_key(hosts.directory, "alice")
    alice = key_of(hosts, "alice")
    with clients.asking(urls[0]) as said:
        hosts.dflash("fleet", "up").succeeded()
        assert {clients.ask(url, key=alice) for url in urls} == {"200"}
        revoke_key(hosts.directory, "alice")
        hosts.dflash("fleet", "up").succeeded()
        assert {clients.ask(url, key=alice) for url in urls} == {"401"}
    assert set(said) == {"200"}, said


def lose_the_leader(hosts: Lab) -> None:
    """The host with the door is lost, and the other one takes its place."""
    first, second = hosts.hosts
    first.stop()
    lost = hosts.dflash("fleet", "up", "--json")
    assert lost.code is ExitCode.PREFLIGHT
    assert f"`role: leader` for {second.name}" in lost.document["error"]["hint"]
    hosts.write_fleet(router=True, leads=second.name)
    moved = hosts.dflash("fleet", "up", "--json")
    assert moved.code is ExitCode.PREFLIGHT
    assert moved.document["error"]["message"].startswith(f"{first.name}: ")
    assert (states(moved.document), moved.document["data"]["router"]) == (["failed", "ready"], second.name)


def test_one_door_for_two_hosts(hosts: Lab) -> None:
    hosts.write_fleet(router=True)
    first, second = hosts.hosts
    key = key_of(hosts)
    up = hosts.dflash("fleet", "up", "--json").succeeded()
    assert states(up.document) == ["ready", "ready"]
    assert up.document["data"]["router"] == first.name
    rows = up.document["data"]["hosts"]
    door, own, other = "http://127.0.0.1:8000", "http://127.0.0.1:8003", f"http://{second.fabric}:8000"
    assert [row["endpoint"] for row in rows] == [f"{door}/v1", f"{other}/v1"]
    clients = Clients(first, lambda: key_of(hosts), rows[0]["model"])

    assert clients.ask(door) == "200"
    assert clients.ask(door, key="") == "401"
    # the engine of the other host listens on the link between the hosts only, and not without a key
    assert clients.ask(other, key="") == "401"
    assert "refused" in Clients(second, lambda: key, rows[0]["model"]).ask(f"http://{second.address}:8000")
    assert key not in hosts.arguments() + up.err + up.out

    status = hosts.dflash("fleet", "status", "--json").succeeded()
    assert [row["routed"] for row in status.document["data"]["hosts"]] == [True, True]
    before = clients.answered(own), clients.answered(other)
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(lambda number: clients.ask(door, f"{number} " * 40), range(16))} == {"200"}
    assert clients.answered(own) > before[0]
    assert clients.answered(other) > before[1]
    tested = hosts.dflash("fleet", "test", "--json").succeeded()
    assert states(tested.document) == ["passed", "passed"]

    change_keys(hosts, clients, (door, own, other))

    with second.unplugged(FABRIC):
        assert {clients.ask(door, f"again {number}") for number in range(6)} == {"200"}

    lose_the_leader(hosts)
    assert Clients(second, lambda: key_of(hosts), rows[0]["model"]).ask(door) == "200"

    down = hosts.dflash("fleet", "down", "--json")
    assert states(down.document) == ["failed", "stopped"]
    assert "llamacpp_wheel" not in hosts.arguments()
