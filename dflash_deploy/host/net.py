"""Reads the links of this machine, and asks whether others answer over them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dflash_deploy.errors import FileRefused
from dflash_deploy.host.ask import ask
from dflash_deploy.intake.answers import ForeignDocument
from dflash_deploy.intake.files import read_text
from dflash_deploy.intake.parse import Invalid, parse_json

SYS = Path("/sys/class")

# Files and directories of /sys/class that `links_of` takes.
PATTERNS = (
    "net/*/speed",
    "infiniband/*/device/net/*",
    "infiniband/*/ports/*/gids/*",
    "infiniband/*/ports/*/gid_attrs/types/*",
)

MOST_FILES = 4000

PEER_TIMEOUT = 5.0  # seconds for an answer of another host


def read_links() -> tuple[Link, ...]:
    """Return the links of this machine; none if `ip` is missing."""
    shown = ask("ip", "-j", "address", timeout=10)
    return links_of(shown.out, read_sysfs()) if shown.good else ()


def read_sysfs(root: Path = SYS) -> dict[str, str]:
    """Return the files of /sys/class that PATTERNS match, by their path below it. A directory is an empty text."""
    found: dict[str, str] = {}
    for pattern in PATTERNS:
        for path in sorted(root.glob(pattern))[:MOST_FILES]:
            text = ""
            # the kernel refuses the speed of an interface that is down, and empty rows of the table of GIDs
            with suppress(FileRefused):
                text = "" if path.is_dir() else read_text(path, lossy=True).strip()
            found[str(path.relative_to(root))] = text
    return found


def answers(address: str, *, source: str, port: int = 22) -> bool:
    """Whether another host answers on the network of `source`: it accepts a connection, or refuses it."""
    try:
        socket.create_connection((address, port), PEER_TIMEOUT, (source, 0)).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


ROCE_V2 = "RoCE v2"  # the type of a GID that routes, as the kernel writes it
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
        with suppress(ValueError):
            if sysfs.get(f"{owner}/gid_attrs/types/{index}") == ROCE_V2 and ipaddress.IPv6Address(text) == wanted:
                return int(index)
    return None
