"""The link between several machines, as `doctor` judges it."""

import pytest

from dflash_deploy.doctor.network import judge_leader, judge_link, link, port_to
from dflash_deploy.host.net import Link
from dflash_deploy.plan.result import Plan
from tests.support.examined import a_plan, a_subject

LAN = Link(interface="enP7s7", address="192.168.1.56", prefix=24, up=True, mtu=1500, speed=1000)
PORT = Link(interface="enp1s0f1np1", address="192.168.100.10", prefix=24, up=True, mtu=9000, rdma="rocep1s0f1", gid=3)


def leader(nccl: str = "", gloo: str = "") -> Plan:
    return a_plan(NODES="2", MASTER_ADDR="192.168.100.10", NCCL_SOCKET_IFNAME=nccl, GLOO_SOCKET_IFNAME=gloo)


def worker(master: str) -> Plan:
    return a_plan(NODES="2", NODE_RANK="1", MASTER_ADDR=master)


@pytest.mark.parametrize(
    ("plan", "links", "status", "said"),
    [
        (leader(), (LAN, PORT), "ok", "enp1s0f1np1 has 192.168.100.10, rocep1s0f1 with GID 3 (RoCE v2), MTU 9000"),
        (leader(nccl="enp1s0f1np1"), (LAN, PORT), "ok", "GID 3"),
        (leader(), (LAN,), "no", "no interface is up in the network"),
        (leader(), (LAN, PORT.model_copy(update={"up": False})), "no", "no interface is up in the network"),
        (leader(), (PORT.model_copy(update={"rdma": "", "gid": None}),), "ok", "without RDMA"),
        (leader(), (PORT.model_copy(update={"gid": None}),), "no", "rocep1s0f1 has no GID of type RoCE v2"),
        (leader(), (PORT.model_copy(update={"address": "192.168.100.11"}),), "no", "this machine is rank 0, but"),
        (leader(gloo="enP7s7"), (LAN, PORT), "no", "GLOO_SOCKET_IFNAME=enP7s7, but"),
        (worker("192.168.100.11"), (LAN, PORT), "ok", "192.168.100.10"),
        (worker("spark-a"), (LAN, PORT), "no", "no interface is up in the network"),
    ],
)
def test_the_link_of_a_rank(plan: Plan, links: tuple[Link, ...], status: str, said: str) -> None:
    check = judge_link(plan, links)
    assert (check.name, check.status) == ("link", status)
    assert said in check.saw
    assert bool(check.fix) == (status != "ok")


def test_the_leader_answers_or_not() -> None:
    plan = worker("192.168.100.11")
    port = port_to("192.168.100.11", (LAN, PORT))
    assert port == PORT
    assert judge_leader(plan, PORT, answered=True).status == "ok"
    check = judge_leader(plan, PORT, answered=False)
    assert check.status == "no"
    assert "192.168.100.11 does not answer over enp1s0f1np1" in check.saw
    assert "ping -I enp1s0f1np1" in check.fix


def test_one_machine_has_no_link() -> None:
    assert not list(link(a_subject(), a_plan()))
