"""Which way weights take: from the figures of the Hub and of the link, or as fleet.yaml says."""

import pytest

from dflash_deploy.errors import HostUnfit
from dflash_deploy.features.fleet.file import Carriage, Fleet, FleetHost
from dflash_deploy.features.fleet.prepare import (
    ChosenWay,
    Fabric,
    HubRates,
    known_way,
    link_rate,
    measured_way,
    source_of,
)
from dflash_deploy.host.net import Link

FLEET = Fleet(hosts=(FleetHost(name="a", address="10.0.0.1"), FleetHost(name="b", address="10.0.0.2")))
PORT = Link(interface="fab0", address="192.168.100.1", prefix=24, up=True, mtu=9000, speed=10_000)
FABRIC = Fabric({"a": PORT, "b": PORT}, {"a": (), "b": ()})
BOTH = {"a": 35 * 10**9, "b": 35 * 10**9}
HUB = 100e6


def asks(way: Carriage) -> Fleet:
    """The fleet with this way in its file."""
    return FLEET.model_copy(update={"weights": way})


@pytest.mark.parametrize(
    ("fleet", "missing", "fabric", "expected"),
    [
        (FLEET, {"a": 0, "b": 0}, FABRIC, ChosenWay("present", "all hosts have the weights")),
        (FLEET, {"a": 10**10}, FABRIC, ChosenWay("hub", "there is one host to fetch for")),
        (FLEET, BOTH, None, ChosenWay("hub", "no link joins the hosts")),
        (FLEET, {"a": 0, "b": 10**9 - 1}, FABRIC, ChosenWay("hub", "each host lacks less than 1 GB")),
        (FLEET, BOTH, FABRIC, None),
        (asks("hub"), BOTH, FABRIC, ChosenWay("hub", "fleet.yaml asks for it")),
        (asks("fabric"), {"a": 1, "b": 1}, FABRIC, ChosenWay("fabric", "fleet.yaml asks for it", "a")),
        (asks("fabric"), {"a": 10, "b": 0}, FABRIC, ChosenWay("fabric", "fleet.yaml asks for it", "b")),
        (asks("fabric"), {"a": 0, "b": 0}, None, ChosenWay("present", "all hosts have the weights")),
        (
            asks("fabric"),
            {"a": 10},
            FABRIC,
            ChosenWay("hub", "`weights: fabric` of fleet.yaml needs a second host with dflash.lock"),
        ),
    ],
)
def test_what_follows_without_a_measurement(
    fleet: Fleet, missing: dict[str, int], fabric: Fabric | None, expected: ChosenWay | None
) -> None:
    assert known_way(fleet, missing, fabric) == expected


def test_a_fabric_that_was_asked_for_and_is_not_there_is_an_error() -> None:
    with pytest.raises(HostUnfit, match="asks for `weights: fabric`, but no link joins the hosts") as raised:
        known_way(asks("fabric"), BOTH, None)
    assert "weights: auto" in raised.value.hint


@pytest.mark.parametrize(
    ("missing", "rates", "way", "source", "said"),
    [
        # one line to the Hub for both: alone a host gets twice as much
        (BOTH, HubRates({"a": HUB / 2, "b": HUB / 2}, HUB), "fabric", "a", "10 min if a fetches and the others"),
        # each has a line of its own: carrying is an additional step
        (BOTH, HubRates({"a": HUB, "b": HUB}, HUB), "hub", "", "6 min if each downloads"),
        # one has everything, and the link is faster than the Hub
        ({"a": 0, "b": 35 * 10**9}, HubRates({"b": HUB}, None), "fabric", "a", "4 min if a fetches"),
        # the other host gets next to nothing while the first one downloads
        (BOTH, HubRates({"a": HUB, "b": 28.0}, HUB), "fabric", "a", "more than a day if each downloads"),
        # the first host is cut off from the Hub, and the other one is not
        (BOTH, HubRates({"a": None, "b": HUB}, HUB), "fabric", "b", "a gets nothing from the Hub"),
        # a line of 400 kbit/s for both
        (BOTH, HubRates({"a": 25e3, "b": 25e3}, 50e3), "fabric", "a", "more than a day if each downloads"),
        # the leader's way to the Hub is slow, and the other host's is not
        (BOTH, HubRates({"a": 50e3, "b": HUB}, HUB), "fabric", "b", "10 min if b fetches"),
        (BOTH, HubRates({"a": None, "b": None}, None), "hub", "", "no host gets anything from the Hub"),
    ],
)
def test_the_faster_way(missing: dict[str, int], rates: HubRates, way: str, source: str, said: str) -> None:
    chosen = measured_way(FLEET, missing, FABRIC, rates)
    assert (chosen.way, chosen.source) == (way, source)
    assert said in chosen.reason


def test_a_slow_link_carries_nothing() -> None:
    slow = Fabric({"a": replace_speed(100), "b": PORT}, {"a": (), "b": ()})
    assert link_rate(slow) == pytest.approx(11.25e6)
    assert measured_way(FLEET, BOTH, slow, HubRates({"a": HUB / 2, "b": HUB / 2}, HUB)).way == "hub"
    unknown = Fabric({"a": replace_speed(None), "b": PORT}, {"a": (), "b": ()})
    assert link_rate(unknown) == pytest.approx(112.5e6)


def replace_speed(speed: int | None) -> Link:
    """The port with another speed in Mbit/s."""
    return PORT.model_copy(update={"speed": speed})


def test_the_leader_fetches_among_equals() -> None:
    hosts = (FLEET.hosts[0], FLEET.hosts[1].model_copy(update={"role": "leader"}))
    assert source_of(FLEET.model_copy(update={"hosts": hosts}), {"a": 5, "b": 5}) == "b"
    assert source_of(FLEET, {"a": 5, "b": 4}) == "b"
