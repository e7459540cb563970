"""Connections that hold a place without a request are closed, and never those that have one."""

import asyncio
import logging
from typing import Any

import pytest

from dflash_deploy.serve.gateway import IDLE_SECONDS, connections
from dflash_deploy.serve.gateway.connections import FIRST_SECONDS, MOST_HEAD, WaitingConnections


class Wire(asyncio.Transport):
    """The transport of a connection, which knows only its client and whether it was cut."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1)})
        self.cut = False

    def abort(self) -> None:
        self.cut = True


class House:
    """Connections behind one `WaitingConnections`, with a clock of its own."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.waiting = WaitingConnections(most, clock=lambda: self.now)
        self.wires: dict[Any, Wire] = {}

    def open(self, name: object, host: str = "10.0.0.1") -> None:
        self.wires[name] = Wire(host)
        self.waiting.opened(name, self.wires[name])

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        self.waiting.look()

    @property
    def cut(self) -> list[object]:
        return [name for name, wire in self.wires.items() if wire.cut]


def within(check: Any) -> None:
    async def run() -> None:
        check(House(3))

    asyncio.run(run())


def test_the_oldest_of_the_address_with_most_makes_room() -> None:
    def check(house: House) -> None:
        house.open("honest", "10.0.0.2")
        for number in range(6):
            house.open(number)
        assert house.cut == [0, 1, 2, 3]

    within(check)


def test_a_connection_with_a_request_is_never_closed() -> None:
    def check(house: House) -> None:
        house.open("busy")
        house.waiting.began("busy")
        for number in range(10):
            house.open(number)
        house.pass_seconds(10 * IDLE_SECONDS)
        assert not house.wires["busy"].cut
        assert len(house.cut) == 10
        house.waiting.ended("busy")
        house.pass_seconds(IDLE_SECONDS - 1)
        assert not house.wires["busy"].cut
        house.pass_seconds(1)
        assert house.wires["busy"].cut

    within(check)


def test_a_head_has_its_time_and_its_size() -> None:
    def check(house: House) -> None:
        house.open("slow")
        house.open("endless")
        for _ in range(4):
            house.waiting.received("endless", MOST_HEAD // 4)
        assert not house.cut
        house.waiting.received("endless", 1)
        assert house.cut == ["endless"]
        for _ in range(int(FIRST_SECONDS)):
            assert house.cut == ["endless"]
            house.waiting.received("slow", 1)
            house.pass_seconds(1)
        assert sorted(map(str, house.cut)) == ["endless", "slow"]

    within(check)


def test_a_body_has_no_size_of_a_head() -> None:
    def check(house: House) -> None:
        house.open("upload")
        house.waiting.began("upload")
        house.waiting.received("upload", 100 * MOST_HEAD)
        assert not house.cut
        # the next head begins anew
        house.waiting.ended("upload")
        house.waiting.received("upload", MOST_HEAD)
        assert not house.cut

    within(check)


def test_what_has_closed_is_forgotten() -> None:
    def check(house: House) -> None:
        for number in range(1000):
            house.open(number, f"10.0.{number % 256}.1")
            house.waiting.closed(number)
        assert not house.cut
        house.pass_seconds(1)
        assert not vars(house.waiting)["_open"]
        assert not vars(house.waiting)["_hosts"]

    within(check)


@pytest.mark.parametrize(("status", "lines"), [(401, 0), (200, 1), (403, 1)])
def test_the_servers_log_leaves_out_requests_without_a_key(status: int, lines: int) -> None:
    line = '%s - "%s %s HTTP/%s" %d'
    told = logging.LogRecord(
        "uvicorn.access", logging.INFO, "", 1, line, ("1.2.3.4:5", "GET", "/", "1.1", status), None
    )
    assert connections._is_admitted(told) is bool(lines)
