"""The network of our own engine: a bridge, addresses that nobody else uses, and the rules that let containers out."""

import contextlib
import json
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from tests.support.commands import checked, run_command


class Bridge:
    """A bridge that holds an address pool for the engine's networks.

    While it exists, another engine's search for a free pool sees its route. So nothing with an address of the pool is
    touched once the bridge is gone.
    """

    def __init__(self, name: str, record: Path) -> None:
        self.name = name
        self.moved = False
        """Whether the pool is another one than before, so that what the engine remembers of its networks is wrong."""
        self._record = record

    def create(self) -> IPv4Network:
        """Make the bridge and its rules, and return the half of the pool that Compose networks are to be cut from."""
        self.remove()
        before = self._recorded_pool()
        pool = _free_pool(before)
        self.moved = before not in {None, pool}
        self._record.write_text(str(pool), encoding="utf-8")
        # a bridge that was deleted by hand leaves its rules
        _drop_rules(pool)
        checked("ip", "link", "add", "name", self.name, "type", "bridge")
        checked("ip", "address", "add", f"{pool[1]}/24", "dev", self.name)
        checked("ip", "link", "set", self.name, "up")
        for table, chain, *rule in _rules(pool):
            checked("iptables", "-w", "-t", table, "-I", chain, *rule)
        _, for_projects = pool.subnets(prefixlen_diff=1)
        return for_projects

    def remove(self) -> None:
        """Delete the rules, the bridges that Compose networks left, and at last the bridge that holds the pool.

        The bridge itself says what its pool is: a run that was killed may have left it without a record, as where the
        directory was made anew at the same place.
        """
        addresses = _addresses()
        if self.name not in addresses:
            return
        pools = [IPv4Network((address, 16), strict=False) for address in addresses[self.name]]
        for pool in pools:
            _drop_rules(pool)
        ours = {name for name, held in addresses.items() if any(one in pool for one in held for pool in pools)}
        for interface in (*sorted(ours - {self.name}), self.name):
            run_command("ip", "link", "delete", interface)

    def _recorded_pool(self) -> IPv4Network | None:
        """The pool of this run or, where the bridge is gone, of the one before."""
        with contextlib.suppress(OSError, ValueError):
            return IPv4Network(self._record.read_text(encoding="utf-8").strip())
        return None


def _rules(pool: IPv4Network) -> Iterator[tuple[str, ...]]:
    """The table, the chain and the rule itself, of each rule that the pool needs."""
    addresses = str(pool)
    yield "nat", "POSTROUTING", "-s", addresses, "!", "-d", addresses, "-j", "MASQUERADE"
    yield "filter", "FORWARD", "-s", addresses, "-j", "ACCEPT"
    answers = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
    yield "filter", "FORWARD", "-d", addresses, *answers, "-j", "ACCEPT"


def _drop_rules(pool: IPv4Network) -> None:
    """Delete the rules of a pool, each as often as it is there."""
    for table, chain, *rule in _rules(pool):
        while run_command("iptables", "-w", "-t", table, "-D", chain, *rule).returncode == 0:
            pass


def _free_pool(preferred: IPv4Network | None) -> IPv4Network:
    """Pick a /16 that no address or route of this machine touches.

    The preferred one is that of an earlier run, which networks in the data root may still refer to.
    """
    routes = json.loads(checked("ip", "-json", "-4", "route", "show", "table", "all"))
    destinations = {str(route.get("dst", "default")) for route in routes} - {"default"}
    used = [IPv4Network(one, strict=False) for one in destinations]
    candidates = [IPv4Network(f"10.{second}.0.0/16") for second in range(210, 250)]
    for candidate in [preferred, *candidates]:
        if candidate is not None and not any(candidate.overlaps(one) for one in used):
            return candidate
    raise RuntimeError("No free address range for containers lies between 10.210.0.0 and 10.249.255.255.")


def _addresses() -> dict[str, list[IPv4Address]]:
    """The IPv4 addresses of each interface; one that was killed on its way has none."""
    done = run_command("ip", "-json", "address", "show")
    return {
        str(interface["ifname"]): [
            IPv4Address(one["local"]) for one in interface.get("addr_info", []) if one["family"] == "inet"
        ]
        for interface in json.loads(done.stdout or "[]")
    }
