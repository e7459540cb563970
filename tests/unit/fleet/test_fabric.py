"""The link between two DGX Spark, and what the engines get of it.

Recorded: names, states and addresses from NVIDIA's playbook connect-two-sparks (a6da172: `ibdev2netdev`, netplan, `ip
addr show`). The files of /sys/class/infiniband are as the kernel documents them (ABI/stable/sysfs-class-infiniband).
"""

import json
from pathlib import Path

import pytest

from dflash_deploy.errors import HostUnfit
from dflash_deploy.features.fleet.file import Fleet, FleetHost
from dflash_deploy.features.fleet.prepare import find_fabric, judge_fabric, judge_hosts, questions_to_peers
from dflash_deploy.host.net import Link, links_of, read_sysfs

IBDEV2NETDEV = """\
roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)
roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)
rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)
rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)
"""

FLEET = Fleet(
    hosts=(FleetHost(name="spark-1", address="192.168.1.56"), FleetHost(name="spark-2", address="192.168.1.57"))
)


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


PAIR = {"spark-1": spark(10), "spark-2": spark(11)}


def test_the_links_of_a_spark() -> None:
    found = {link.interface: link for link in PAIR["spark-1"]}
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


@pytest.mark.parametrize("order", [1, -1])
def test_the_cable_is_found_and_both_twins_are_used(order: int) -> None:
    links = {name: found[::order] for name, found in PAIR.items()}
    fabric = find_fabric(FLEET, links)
    judge_fabric(FLEET, fabric)
    names = {
        "enp1s0f1np1": ("100", "rocep1s0f1", "roceP2p1s0f1"),
        "enP2p1s0f1np1": ("101", "roceP2p1s0f1", "rocep1s0f1"),
    }
    for host, last in zip(FLEET.hosts, (10, 11), strict=True):
        settings = fabric.settings(host)
        interface = settings["NCCL_SOCKET_IFNAME"]
        network, device, twin = names[interface]
        assert settings == {
            "VLLM_HOST_IP": f"192.168.{network}.{last}",
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "TP_SOCKET_IFNAME": interface,
            "UCX_NET_DEVICES": interface,
            "NCCL_IB_DISABLE": "0",
            "NCCL_IB_HCA": f"{device},{twin}",
            "NCCL_IB_GID_INDEX": "3",
            "NCCL_IGNORE_CPU_AFFINITY": "1",
        }


def test_an_interface_of_the_file_is_used() -> None:
    fleet = Fleet(hosts=tuple(host.model_copy(update={"fabric": "enP7s7"}) for host in FLEET.hosts))
    settings = find_fabric(fleet, PAIR).settings(fleet.hosts[0])
    assert settings["VLLM_HOST_IP"] == "192.168.1.56"
    assert "NCCL_IB_HCA" not in settings


def test_without_a_cable_the_network_of_ssh_is_used() -> None:
    lan = {name: tuple(link for link in found if link.interface == "enP7s7") for name, found in PAIR.items()}
    assert find_fabric(FLEET, lan).settings(FLEET.hosts[1])["VLLM_HOST_IP"] == "192.168.1.57"


def test_hosts_without_a_network_in_common_are_named() -> None:
    links = {"spark-1": spark(10)[3:4], "spark-2": spark(11)[4:]}
    with pytest.raises(HostUnfit, match="no network in common"):
        find_fabric(FLEET, links)
    with pytest.raises(HostUnfit, match="no network in common"):
        find_fabric(FLEET, {"spark-1": spark(10)[5:], "spark-2": spark(11)[5:]})


def test_an_interface_that_is_down_is_named() -> None:
    fleet = Fleet(hosts=(FLEET.hosts[0], FLEET.hosts[1].model_copy(update={"fabric": "enp1s0f0np0"})))
    with pytest.raises(HostUnfit, match="spark-2: the interface enp1s0f0np0 is down"):
        find_fabric(fleet, PAIR)


def test_ends_with_another_mtu_are_named() -> None:
    fabric = find_fabric(FLEET, {"spark-1": spark(10), "spark-2": spark(11, mtu=9000)})
    with pytest.raises(HostUnfit, match="the MTU of the link differs: spark-1 1500, spark-2 9000"):
        judge_fabric(FLEET, fabric)


def test_a_device_without_a_gid_that_routes_is_named() -> None:
    fabric = find_fabric(FLEET, {"spark-1": spark(10), "spark-2": spark(11, kind="RoCE v1")})
    with pytest.raises(HostUnfit, match=r"spark-2: roce\w+ has no GID of type RoCE v2 for 192.168.10[01].11"):
        judge_fabric(FLEET, fabric)


@pytest.mark.parametrize("text", ["", "{", "[]", "[[]]", '[{"ifname": "a b", "addr_info": [{"family": "inet"}]}]', "7"])
def test_what_is_not_an_output_of_ip_has_no_links(text: str) -> None:
    assert links_of(text, {}) == ()


def test_files_of_the_kernel_are_read_below_the_root(tmp_path: Path) -> None:
    for name, text in sysfs(10).items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if "/device/net/" in name else place.write_text(f"{text}\n")
    assert links_of(addresses(10), read_sysfs(tmp_path)) == spark(10)


DRIVERS = {"spark-1": ("580.142",), "spark-2": ("580.142",)}
PEERS = {"spark-1": {"192.168.100.11": True}, "spark-2": {"192.168.100.10": True}}


def test_hosts_with_the_same_driver_that_answer_each_other_pass() -> None:
    judge_hosts(DRIVERS, PEERS)
    # hosts without GPUs have no driver
    judge_hosts({"a": (), "b": ()}, {"a": {}, "b": {}})


@pytest.mark.parametrize(
    ("drivers", "peers", "said"),
    [
        (DRIVERS | {"spark-2": ("590.44",)}, PEERS, "the GPU drivers differ: spark-1 580.142, spark-2 590.44"),
        (DRIVERS | {"spark-2": ()}, PEERS, "the GPU drivers differ: spark-1 580.142, spark-2 none"),
        (DRIVERS, PEERS | {"spark-2": {"192.168.100.10": False}}, "spark-2: 192.168.100.10 does not answer"),
    ],
)
def test_what_differs_between_the_hosts_is_named(
    drivers: dict[str, tuple[str, ...]], peers: dict[str, dict[str, bool]], said: str
) -> None:
    with pytest.raises(HostUnfit, match=said):
        judge_hosts(drivers, peers)


def test_a_host_asks_all_others_over_the_link() -> None:
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
    asked = questions_to_peers(addresses, "b")
    assert asked == ("--source", "10.0.0.2", "--peer", "10.0.0.1", "--peer", "10.0.0.3")
