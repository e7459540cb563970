"""Reading this machine."""

import socket

from dflash_deploy.host.machine import read_facts
from dflash_deploy.host.ports import is_address_here, listener_on


def test_a_listener_is_seen_and_its_absence_too() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert listener_on("127.0.0.1", port)
    assert not listener_on("127.0.0.1", port)


def test_addresses_of_this_machine_are_told_from_others() -> None:
    assert all(map(is_address_here, ("127.0.0.1", "0.0.0.0", "::")))
    assert is_address_here("localhost")
    # addresses that RFC 5737 and RFC 3849 keep for texts, one without its interface, and a name without an address
    assert not any(map(is_address_here, ("192.0.2.7", "203.0.113.9", "2001:db8::1", "fe80::1", "nowhere.invalid")))


def test_facts_of_this_machine() -> None:
    facts = read_facts()
    assert facts.cpus >= 1
    assert facts.memory_total is not None
    assert facts.memory_available is not None
    assert 0 < facts.memory_available <= facts.memory_total
