"""What clients of an engine's pod see, and what its container can do."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.commands import checked, wait_until
from tests.support.kubelet.pods import Pod

HANGS = 300.0
"""Seconds after which something counts as hung."""

ALL = float(os.cpu_count() or 1)
"""Processors of this machine."""

_LOOK = """
import json, os, pathlib
def writes(place):
    try:
        pathlib.Path(place, "written").write_text("x")
        return True
    except OSError:
        return False
places = ("/", "/opt/dflash", "/models/target", "/models/drafter", "/run/secrets", "/cache", "/tmp", "/dev/shm")
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/1/status").read_text().splitlines())
shm = os.statvfs("/dev/shm")
print(json.dumps({
    "user": [os.getuid(), os.getgid()],
    "writes": [place for place in places if writes(place)],
    "status": {name: status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")},
    "shm": shm.f_blocks * shm.f_frsize,
    "first": pathlib.Path("/proc/1/cmdline").read_text().split("\\0"),
}))
"""

CONFINED = {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
"""The rights of the first process of a container, in its `status`."""

WRITABLE = ["/cache", "/tmp", "/dev/shm"]


def looked(pod: Pod) -> Mapping[str, Any]:
    """What the engine's container is and can do, seen from inside: user, writable places, rights, first process."""
    done = pod.execute("engine", "python3", "-c", _LOOK)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def bearer(key: str) -> dict[str, str]:
    """The headers of a request with a key; an empty one is not sent."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def answered(pod: Pod, key: str) -> int:
    """The status of a generation with a key."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    url = f"http://{pod.address}:8000/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=bearer(key), timeout=HANGS)
    assert ("Paris" in answer.text) == (answer.status_code == 200), answer.text
    return answer.status_code


def give(pod: Pod, processors: float) -> None:
    """Let an engine have so many processors from now on."""
    checked("docker", "update", "--cpus", str(processors), pod.containers["engine"])


@dataclass
class Streamed:
    """A streamed answer, read in a thread: how many events it had, and whether it was whole."""

    tokens: int
    events: int = 0
    whole: bool = False

    def read(self, url: str, key: str) -> None:
        """Read it to its end."""
        body = {"model": "tiny", "prompt": "Once", "max_tokens": self.tokens, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=bearer(key), timeout=HANGS) as got:
            for line in got.iter_lines():
                self.events += line.startswith("data: {")
                self.whole = line == "data: [DONE]" or self.whole


@contextmanager
def streaming(url: str, key: str, engine: Pod, slow: float, lasts: float, tokens: int) -> Iterator[Streamed]:
    """A stream that has begun, and has ended after the block. For `lasts` seconds its engine has `slow` processors."""
    streamed = Streamed(tokens)
    thread = threading.Thread(target=streamed.read, args=(url, key))
    faster = threading.Timer(lasts, give, (engine, ALL))
    give(engine, slow)
    thread.start()
    assert wait_until(lambda: streamed.events > 0, HANGS), "the stream did not begin"
    faster.start()
    yield streamed
    thread.join()
    faster.join()
