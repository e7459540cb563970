"""What a run that was killed left on the machine keeps no later one from its engine."""

import json
from pathlib import Path

import pytest

from tests.support.bridge import Bridge
from tests.support.commands import checked, run_command
from tests.support.container_engine import Engine

NAME = "dfl-left"


def interfaces() -> set[str]:
    return {one["ifname"] for one in json.loads(checked("ip", "-json", "link", "show"))}


def rules(pool: str) -> list[str]:
    """The rules of the packet filter that name the pool."""
    said = checked("iptables-save", "-t", "nat") + checked("iptables-save", "-t", "filter")
    return [line for line in said.splitlines() if pool in line]


@pytest.fixture
def bridge(engine: Engine, tmp_path: Path) -> Bridge:
    """A bridge that no engine uses."""
    if not engine.ours:
        pytest.skip("NO BRIDGE WAS MADE: the daemon is somebody else's, and these tests may not be root")
    return Bridge(NAME, record=tmp_path / "network")


def test_a_bridge_without_its_record_is_replaced(bridge: Bridge, tmp_path: Path) -> None:
    bridge.create()
    try:
        pool = (tmp_path / "network").read_text()
        assert len(rules(pool)) == 3
        checked("ip", "link", "add", "name", f"{NAME}-net", "type", "bridge")
        checked("ip", "address", "add", f"{pool.replace('0.0/16', '129.1/24')}", "dev", f"{NAME}-net")
        (tmp_path / "network").unlink()
        bridge.create()
        assert NAME in interfaces()
        assert f"{NAME}-net" not in interfaces()
        assert len(rules((tmp_path / "network").read_text())) == 3
    finally:
        bridge.remove()
    assert NAME not in interfaces()
    assert not rules(pool)


def test_a_pool_that_another_engine_has_taken_is_left_to_it(bridge: Bridge, tmp_path: Path) -> None:
    bridge.create()
    bridge.remove()
    pool = (tmp_path / "network").read_text()
    checked("ip", "link", "add", "name", f"{NAME}-net", "type", "bridge")
    checked("ip", "address", "add", pool.replace("0.0/16", "0.1/24"), "dev", f"{NAME}-net")
    checked("ip", "link", "set", f"{NAME}-net", "up")
    try:
        assert not bridge.moved
        bridge.create()
        assert bridge.moved
        assert (tmp_path / "network").read_text() != pool
    finally:
        bridge.remove()
        run_command("ip", "link", "delete", f"{NAME}-net")


def test_a_bridge_that_has_no_address_yet_is_replaced(bridge: Bridge) -> None:
    checked("ip", "link", "add", "name", NAME, "type", "bridge")
    try:
        assert bridge.create().prefixlen == 17
    finally:
        bridge.remove()
        run_command("ip", "link", "delete", NAME)
