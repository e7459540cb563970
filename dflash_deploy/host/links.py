"""The network interfaces of this machine and their RoCE devices; pure. `interfaces` reads what this takes.

A port of a DGX Spark is two interfaces and two RoCE devices (twins), each with an address in another network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dflash_deploy.intake import Invalid, parse_json
from dflash_deploy.intake.answers import ForeignDocument

ROCE_V2 = "RoCE v2"
"""The type of a GID that routes, as the kernel writes it."""

Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,15}$")]
Device = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,63}$")]


class Link(ForeignDocument):
    """One network interface with an IPv4 address.

    `speed` is in Mbit/s, `None` if unknown. `rdma` is its RoCE device, `gid` the index of the GID of type RoCE v2 for
    `address`; empty and `None` without.
    """

    interface: Interface
    address: Annotated[str, Field(max_length=15), AfterValidator(lambda text: str(ipaddress.IPv4Address(text)))]
    prefix: Annotated[int, Field(ge=0, le=32)]
    up: bool
    mtu: Annotated[int, Field(ge=0, lt=2**31)]
    speed: Annotated[int | None, Field(ge=0, lt=2**31)] = None
    rdma: Device = ""
    gid: Annotated[int | None, Field(ge=0, lt=2**16)] = None

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The network of its address."""
        return ipaddress.IPv4Network(f"{self.address}/{self.prefix}", strict=False)

    def document(self) -> dict[str, object]:
        """One of `links` in `fleet facts --json`."""
        return self.model_dump()


def links_of(addresses: str, sysfs: Mapping[str, str]) -> tuple[Link, ...]:
    """Return the links in the output of `ip -j address` and in files of /sys/class, by their path below it."""
    try:
        found = parse_json(addresses)
    except Invalid:
        return ()
    entries = found if isinstance(found, list) else ()
    return tuple(link for entry in entries if isinstance(entry, dict) for link in _links_in(entry, sysfs))


def _links_in(entry: Mapping[str, Any], sysfs: Mapping[str, str]) -> Iterator[Link]:
    name = str(entry.get("ifname", ""))
    device = next((path.split("/")[1] for path in sysfs if path.endswith(f"/device/net/{name}")), "")
    speed = sysfs.get(f"net/{name}/speed", "")
    for info in entry.get("addr_info", ()):
        if not isinstance(info, dict) or info.get("family") != "inet":
            continue
        address = str(info.get("local", ""))
        try:
            yield Link(
                interface=name,
                address=address,
                prefix=int(info.get("prefixlen", 32)),
                up=entry.get("operstate") in {"UP", "UNKNOWN"} and "LOWER_UP" in entry.get("flags", ("LOWER_UP",)),
                mtu=int(entry.get("mtu", 0)),
                speed=int(speed) if speed.isdigit() else None,
                rdma=device,
                gid=_gid(device, address, sysfs),
            )
        except ValueError:
            continue


def _gid(device: str, address: str, sysfs: Mapping[str, str]) -> int | None:
    """The index of the GID of type RoCE v2 that an IPv4 address has on a RoCE device."""
    if not device:
        return None
    try:
        wanted = ipaddress.IPv6Address(f"::ffff:{address}")
    except ValueError:
        return None
    for path, text in sysfs.items():
        owner, _, index = path.rpartition("/gids/")
        if not (owner.startswith(f"infiniband/{device}/ports/") and index.isdigit()):
            continue
        if sysfs.get(f"{owner}/gid_attrs/types/{index}") == ROCE_V2 and _ipv6(text) == wanted:
            return int(index)
    return None


def _ipv6(text: str) -> ipaddress.IPv6Address | None:
    try:
        return ipaddress.IPv6Address(text)
    except ValueError:
        return None
