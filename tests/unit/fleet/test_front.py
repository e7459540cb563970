"""The router in front of all hosts: when there is one, what each host gets for it, and who restarts when."""

import pytest

from dflash_deploy.errors import FleetRefused
from dflash_deploy.features.fleet.file import (
    Chosen,
    Fleet,
    FleetHost,
    Front,
    Install,
    check_front,
    front_of,
    has_front,
    in_turns,
    kept_addresses,
    routed_hosts,
)

A, B, C = (FleetHost(name=name, address=f"10.0.0.{number}") for number, name in enumerate("abc", 1))
LINK = {"a": "10.9.0.1", "b": "10.9.0.2", "c": "10.9.0.3"}
REPLICAS = Chosen("replicas", "")


@pytest.mark.parametrize(
    ("fleet", "chosen", "expected"),
    [
        (Fleet(hosts=(A, B)), REPLICAS, True),
        (Fleet(hosts=(A, B), router=False), REPLICAS, False),
        (Fleet(hosts=(A,)), REPLICAS, False),
        (Fleet(hosts=(A, B)), Chosen("one-engine", ""), False),
    ],
)
def test_replicas_on_several_hosts_share_a_router(fleet: Fleet, chosen: Chosen, *, expected: bool) -> None:
    assert has_front(fleet, chosen) is expected


def test_the_native_runtime_needs_the_router_among_the_extras() -> None:
    fleet = Fleet(hosts=(A, B), install=Install(extras=("llamacpp",)))
    with pytest.raises(FleetRefused) as raised:
        check_front(fleet, 1, native=True)
    assert "extras: [llamacpp, router]" in raised.value.hint
    assert "router: off" in raised.value.hint
    check_front(fleet, 1, native=False)
    check_front(fleet.model_copy(update={"install": Install(extras=("llamacpp", "router"))}), 1, native=True)
    own = FleetHost(name="a", address="x", program="/usr/bin/dflash-deploy")
    check_front(Fleet(hosts=(own, B)), 1, native=True)


def test_a_host_with_several_engines_is_refused() -> None:
    with pytest.raises(FleetRefused, match="a: REPLICAS=2"):
        check_front(Fleet(hosts=(A, B)), 2, native=False)
    two = FleetHost(name="b", address="x", settings={"REPLICAS": 2})
    with pytest.raises(FleetRefused, match="b: REPLICAS=2"):
        check_front(Fleet(hosts=(A, two)), 1, native=False)


def test_the_leader_gets_the_addresses_and_the_others_listen_on_the_link() -> None:
    front = front_of(Fleet(hosts=(A, B, C)), LINK, 8000)
    assert front.settings(A) == {"ROUTER_ENGINES": "10.9.0.2:8000,10.9.0.3:8000"}
    assert front.settings(B) == {"DFLASH_BIND": "10.9.0.2", "DFLASH_DOMAIN": ""}


def test_the_role_decides_who_leads() -> None:
    lead = FleetHost(name="b", address="x", role="leader")
    front = front_of(Fleet(hosts=(A, lead)), LINK, 8000)
    assert front.host is lead
    assert front.engines == {"a": "10.9.0.1:8000"}


def test_settings_for_one_host_win_over_those_of_the_router_and_those_for_all_do_not() -> None:
    host = FleetHost(name="b", address="x", settings={"DFLASH_BIND": "10.8.0.2", "DFLASH_PORT": 9000})
    every = FleetHost(name="c", address="x", settings={"DFLASH_BIND": "0.0.0.0"})
    fleet = Fleet(hosts=(A, host, every), settings={"DFLASH_BIND": "0.0.0.0", "DFLASH_DOMAIN": "llm.example.com"})
    front = front_of(fleet, LINK, 8000)
    assert front.engines == {"b": "10.8.0.2:9000", "c": "10.9.0.3:8000"}
    assert front.settings(host) == {"DFLASH_DOMAIN": ""}
    assert front_of(Fleet(hosts=(A, B), settings=fleet.settings), LINK, 8000).settings(B)["DFLASH_BIND"] == "10.9.0.2"


@pytest.mark.parametrize("bind", ["127.0.0.1", "localhost"])
def test_an_engine_that_only_its_host_reaches_is_refused(bind: str) -> None:
    host = FleetHost(name="b", address="x", settings={"DFLASH_BIND": bind})
    with pytest.raises(FleetRefused, match="b: DFLASH_BIND"):
        front_of(Fleet(hosts=(A, host)), LINK, 8000)


def test_a_host_that_does_not_answer_keeps_its_place_on_the_list() -> None:
    front = front_of(Fleet(hosts=(A, B, C)), {"a": "10.9.0.1", "b": "10.9.0.2"}, 8000)
    assert front.settings(C) == {}
    known = front.with_unknown(["10.9.0.3:8000", "10.9.0.2:8000"])
    assert known.settings(A) == {"ROUTER_ENGINES": "10.9.0.2:8000,10.9.0.3:8000"}


def test_addresses_that_the_router_has_stay_while_a_host_is_missing() -> None:
    own = {"a": ["10.0.0.1", "10.9.0.1"], "b": ["10.0.0.2", "10.9.0.2"]}
    found = {"a": "10.0.0.1", "b": "10.0.0.2"}
    assert kept_addresses(found, own, ["10.9.0.2:8000", "10.9.0.3:8000"]) == {"a": "10.0.0.1", "b": "10.9.0.2"}
    assert kept_addresses(found, own, []) == found


def test_a_public_address_is_refused_unless_the_host_asks_for_it() -> None:
    link = {"a": "8.8.8.1", "b": "8.8.8.2"}
    with pytest.raises(FleetRefused, match=r"b: its engine would listen on the public address 8\.8\.8\.2") as raised:
        front_of(Fleet(hosts=(A, B), settings={"DFLASH_BIND": "8.8.8.2"}), link, 8000)
    assert "`fabric`" in raised.value.hint
    assert "`router: off`" in raised.value.hint
    asked = FleetHost(name="b", address="x", settings={"DFLASH_BIND": "8.8.8.2"})
    assert front_of(Fleet(hosts=(A, asked)), link, 8000).engines == {"b": "8.8.8.2:8000"}
    # addresses of an overlay network are not public
    assert front_of(Fleet(hosts=(A, B)), {"a": "100.64.0.1", "b": "100.64.0.2"}, 8000).engines


def test_engines_that_restart_do_so_one_after_the_other_the_leader_first() -> None:
    assert in_turns((A, B, C), A, ()) == ((A, B, C), ())
    assert in_turns((A, B, C), C, {"b", "c"}) == ((A,), (C, B))


@pytest.mark.parametrize(
    ("urls", "found"),
    [
        (("http://127.0.0.1:8003", "http://10.9.0.2:8000"), {"a", "b"}),
        (("http://10.9.0.2:8000",), {"b"}),
        (("http://127.0.0.1:8003",), {"a"}),
        # a host that does not answer over SSH
        (("http://10.9.0.3:8000",), set()),
        ((), set()),
    ],
)
def test_who_gets_requests(urls: tuple[str, ...], found: set[str]) -> None:
    front = Front(A, {"b": "10.9.0.2:8000"}, ("10.9.0.3:8000",))
    assert routed_hosts(front, urls) == found


def test_without_hosts_that_answer_the_leader_has_no_list() -> None:
    assert Front(A, {}).settings(A) == {"ROUTER_ENGINES": ""}
