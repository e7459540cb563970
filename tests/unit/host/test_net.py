"""The links of a DGX Spark that is connected to another one.

Recorded: names, states and addresses from NVIDIA's playbook connect-two-sparks (a6da172: `ibdev2netdev`, netplan, `ip
addr show`). The files of /sys/class/infiniband are as the kernel documents them (ABI/stable/sysfs-class-infiniband).
"""

import json
from pathlib import Path

import pytest

from dflash_deploy.host.net import Link, links_of, read_sysfs

IBDEV2NETDEV = """\
roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)
roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)
rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)
rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)
"""


def addresses(last: int, *, mtu: int = 1500) -> str:
    """`ip -j address` of a Spark whose addresses end with this number, beside an LAN interface and Docker's bridge."""

    def entry(name: str, address: str, prefix: int, *, up: bool = True) -> dict[str, object]:
        info = {"family": "inet", "local": address, "prefixlen": prefix, "scope": "global", "label": name}
        flags = ["BROADCAST", "MULTICAST", "UP", *(["LOWER_UP"] if up else [])]
        return {"ifname": name, "flags": flags, "mtu": mtu, "operstate": "UP" if up else "DOWN",
                "addr_info": [info, {"family": "inet6", "local": "fe80::1", "prefixlen": 64}]}  # fmt: skip

    return json.dumps(
        [
            entry("lo", "127.0.0.1", 8),
            entry("enP7s7", f"192.168.1.{last + 46}", 24),
            entry("enp1s0f0np0", "169.254.60.178", 16, up=False),
            entry("enp1s0f1np1", f"192.168.100.{last}", 24),
            entry("enP2p1s0f1np1", f"192.168.101.{last}", 24),
            entry("docker0", "172.17.0.1", 16),
        ]
    )


def sysfs(last: int, *, kind: str = "RoCE v2") -> dict[str, str]:
    """The files of /sys/class that belong to it. The GID of an IPv4 address is the address mapped into IPv6."""
    files = {"net/enP7s7/speed": "1000"}
    for line in IBDEV2NETDEV.splitlines():
        device, _, _, _, name, state = line.split()
        files[f"infiniband/{device}/device/net/{name}"] = ""
        files[f"net/{name}/speed"] = "200000" if state == "(Up)" else ""
        if state == "(Up)":
            third = 101 if "P2" in device else 100
            gid = f"0000:0000:0000:0000:0000:ffff:c0a8:{third:02x}{last:02x}"
            for index, of_kind in ((0, "RoCE v1"), (1, kind)):
                files[f"infiniband/{device}/ports/1/gids/{index}"] = "fe80:0000:0000:0000:3e6d:66ff:fecc:b3b7"
                files[f"infiniband/{device}/ports/1/gid_attrs/types/{index}"] = of_kind
            for index, of_kind in ((2, "RoCE v1"), (3, kind)):
                files[f"infiniband/{device}/ports/1/gids/{index}"] = gid
                files[f"infiniband/{device}/ports/1/gid_attrs/types/{index}"] = of_kind
    return files


def spark(last: int, *, kind: str = "RoCE v2", mtu: int = 1500) -> tuple[Link, ...]:
    return links_of(addresses(last, mtu=mtu), sysfs(last, kind=kind))


def test_the_links_of_a_spark() -> None:
    found = {link.interface: link for link in spark(10)}
    port = found["enp1s0f1np1"]
    assert (port.address, port.prefix, port.speed, port.rdma, port.gid) == (
        "192.168.100.10",
        24,
        200000,
        "rocep1s0f1",
        3,
    )
    assert found["enP2p1s0f1np1"].rdma == "roceP2p1s0f1"
    assert (found["enP7s7"].speed, found["enP7s7"].rdma, found["enP7s7"].gid) == (1000, "", None)
    assert not found["enp1s0f0np0"].up


@pytest.mark.parametrize("text", ["", "{", "[]", "[[]]", '[{"ifname": "a b", "addr_info": [{"family": "inet"}]}]', "7"])
def test_what_is_not_an_output_of_ip_has_no_links(text: str) -> None:
    assert links_of(text, {}) == ()


def test_files_of_the_kernel_are_read_below_the_root(tmp_path: Path) -> None:
    for name, text in sysfs(10).items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if "/device/net/" in name else place.write_text(f"{text}\n")
    assert links_of(addresses(10), read_sysfs(tmp_path)) == spark(10)
