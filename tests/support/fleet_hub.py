"""An imitation of the Hub in a network of its own, behind the terminal of the lab: both hosts share its slow cable."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import yaml

from dflash_deploy.assets import asset
from tests.support.commands import checked, run_command
from tests.support.fleet_lab import TO_TERMINAL, Lab, cable
from tests.support.hub import Hub

T = TypeVar("T")

ADDRESS, GATEWAY = "10.77.0.2", "10.77.0.1"
"""The Hub, and the terminal's end of its cable."""

CLONE_NEWNET = 0x40000000
"""setns(2): the kind of namespace."""

PAIR = "carried-gguf"
"""The tiny pair as GGUF, with its files on the Hub instead of in the package."""

FILES = ("target.gguf", "mmproj.gguf", "drafter.gguf")


def write_catalog(root: Path) -> Path:
    """Write a custom catalog with PAIR, and return its directory."""
    tiny = asset("models/tiny").parents[1] / "dflash_deploy/catalog/families/tiny.yaml"
    family = yaml.safe_load(tiny.read_text())
    (target,) = (one for one in family["targets"] if one["name"] == "tiny-gguf")
    for one in (target, target["drafter"]):
        del one["bundled"]
        one["repo"] = "o/gguf"
    family |= {"name": "carried", "targets": [target | {"name": PAIR}]}
    (root / "families").mkdir(parents=True)
    (root / "families" / "carried.yaml").write_text(yaml.safe_dump(family))
    return root


@contextmanager
def hub_behind(lab: Lab, megabits: int) -> Iterator[Hub]:
    """A Hub with the files of PAIR. Both hosts reach it over one cable, which carries so many Mbit/s from it."""
    network = f"{lab.terminal}h"
    checked("ip", "netns", "add", network)
    try:
        checked("ip", "-n", network, "link", "set", "lo", "up")
        cable((lab.terminal, "tohub", f"{GATEWAY}/24"), (network, "eth0", f"{ADDRESS}/24"))
        checked("ip", "-n", network, "route", "add", "default", "via", GATEWAY)
        rate = ("rate", f"{megabits}mbit", "burst", "64kb", "latency", "100ms")
        checked("tc", "-n", network, "qdisc", "add", "dev", "eth0", "root", "tbf", *rate)
        checked("ip", "netns", "exec", lab.terminal, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        for number, host in enumerate(lab.hosts, 1):
            route = ("route", "replace", "10.77.0.0/24", "via", f"10.77.{number}.1", "dev", TO_TERMINAL)
            checked("ip", "-n", host.namespace, *route)
        with within(network, lambda: Hub(address=ADDRESS)) as hub:
            hub.add("o/gguf", {name: asset(f"models/tiny/gguf/{name}") for name in FILES})
            yield hub
    finally:
        run_command("ip", "netns", "del", network)


def within(network: str, make: Callable[[], T]) -> T:
    """Return what `make` returns in a network namespace: a socket belongs to the one that it is made in."""
    made: list[T] = []

    def run() -> None:
        space = os.open(f"/run/netns/{network}", os.O_RDONLY)
        try:
            assert ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET) == 0
            made.append(make())
        finally:
            os.close(space)

    # the namespace is that of the thread, which ends here
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return made[0]
