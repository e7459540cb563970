"""How weights reach the hosts: each downloads them, or one does and the others take them over the fabric; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dflash_deploy.errors import HostUnfit
from dflash_deploy.fleet.fabric import Fabric
from dflash_deploy.fleet.file import FILE, Fleet

Way = Literal["present", "hub", "fabric"]
"""`present`: no host, or only one, lacks weights. `hub`: each host downloads. `fabric`: one does, and offers them."""

SMALL = 10**9
"""Bytes below which nothing is measured: each host downloads them in less time than measuring and carrying take."""

UNKNOWN_SPEED = 1000
"""Mbit/s that a link counts with if it does not state its speed."""

SENDS = 1.5e8
"""Bytes a second that one host sends and another one writes and checks, at most. Measured: a core of a Xeon needs
7 s for a GB that it takes, most of it for receiving and for the digest."""

MUCH_SLOWER = 4
"""A host that gets less than this part of what the fastest one gets from the Hub does not fetch for the others."""

GB = 10**9

DAY = 86_400


@dataclass(frozen=True)
class HubRates:
    """What the Hub sends in bytes a second: to each host while all download, and to the first one while only it does.

    `None`: nothing arrived.
    """

    together: Mapping[str, float | None]
    alone: float | None


@dataclass(frozen=True)
class ChosenWay:
    """How weights reach the hosts, and why. `source` is the host that offers them; empty unless `way` is `fabric`."""

    way: Way
    reason: str
    source: str = ""


@dataclass(frozen=True)
class MovedWeights:
    """How weights reached the hosts: bytes that went over the fabric, and seconds until all hosts had them."""

    way: ChosenWay
    size: int = 0
    seconds: float = 0.0

    def document(self) -> dict[str, object]:
        """The `weights` in the document of `fleet up`."""
        return {
            "way": self.way.way,
            "reason": self.way.reason,
            "source": self.way.source or None,
            "carried_bytes": self.size,
            "seconds": round(self.seconds, 1),
        }


def source_of(fleet: Fleet, missing: Mapping[str, int], rates: Mapping[str, float | None] | None = None) -> str:
    """Return the host that fetches for the others: not one that is MUCH_SLOWER, and of these the one that lacks least.

    The leader comes first among equals. `missing` are bytes by name of the hosts that are ready and have dflash.lock.
    """
    known = {name: rate or 0.0 for name, rate in (rates or {}).items()}
    fastest = max(known.values(), default=0.0)

    def order(name: str) -> tuple[bool, int, bool]:
        slow = missing[name] > 0 and MUCH_SLOWER * known.get(name, 0.0) < fastest
        return slow, missing[name], name != fleet.leader.name

    return min(missing, key=order)


def known_way(fleet: Fleet, missing: Mapping[str, int], fabric: Fabric | None) -> ChosenWay | None:
    """Return the way if it follows without a measurement; `None` if the Hub has to be measured.

    Raises HostUnfit if `fleet.yaml` asks for the fabric and there is none: only `auto` may choose the Hub instead.
    """
    if not any(missing.values()):
        return ChosenWay("present", "all hosts have the weights")
    if fleet.weights == "fabric":
        if len(missing) == 1:
            return ChosenWay("hub", f"`weights: fabric` of {FILE} needs a second host with dflash.lock")
        if fabric is None:
            raise HostUnfit(
                f"{FILE} asks for `weights: fabric`, but no link joins the hosts",
                hint=f"check the cable and `fabric` of each host in {FILE}, or write `weights: auto`",
            )
        return ChosenWay("fabric", f"{FILE} asks for it", source_of(fleet, missing))
    reasons = {
        "there is one host to fetch for": len(missing) == 1,
        f"{FILE} asks for it": fleet.weights == "hub",
        "no link joins the hosts": fabric is None,
        f"each host lacks less than {SMALL / GB:g} GB": max(missing.values()) < SMALL,
    }
    reason = next((text for text, holds in reasons.items() if holds), "")
    return ChosenWay("hub", reason) if reason else None


def measured_way(fleet: Fleet, missing: Mapping[str, int], fabric: Fabric, rates: HubRates) -> ChosenWay:
    """Return the faster way, from what the Hub sends and what the link carries."""
    source = source_of(fleet, missing, rates.together)
    lacking = {name: size for name, size in missing.items() if size}
    cut_off = [name for name in lacking if rates.together.get(name) is None]
    if source in cut_off:
        return ChosenWay("hub", "no host gets anything from the Hub")
    link = fabric.ports[source].interface
    if cut_off:
        return ChosenWay("fabric", f"{cut_off[0]} gets nothing from the Hub", source)
    hub = max(size / (rates.together[name] or 1.0) for name, size in lacking.items())
    others = sum(size for name, size in lacking.items() if name != source)
    carried = min(link_rate(fabric), SENDS)
    own = missing[source] / (rates.alone or rates.together[source] or 1.0) if missing[source] else 0.0
    both = own + others / carried
    said = f"{_minutes(both)} if {source} fetches and the others take it over {link}, {_minutes(hub)} if each downloads"
    return ChosenWay("fabric", said, source) if both < hub else ChosenWay("hub", said)


def link_rate(fabric: Fabric) -> float:
    """Bytes a second of the link: the slowest port counts. A tenth is for the headers of its protocols."""
    return 0.9 * 125_000 * min(port.speed or UNKNOWN_SPEED for port in fabric.ports.values())


def _minutes(seconds: float) -> str:
    if seconds > DAY:
        return "more than a day"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
