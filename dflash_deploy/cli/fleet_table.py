"""The hosts of a fleet as a table: what a command did on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.cli.shown import Grid

if TYPE_CHECKING:
    from dflash_deploy.operations import FleetResult


def table(done: FleetResult) -> Grid:
    """One row for each host."""
    drawn = Grid("host", "state", "seconds", "endpoint", "remark")
    for one in done.hosts:
        row = one.row()
        passed, failed = row["checks_passed"], row["checks_failed"]
        checks = f"{passed} checks passed" if passed else ""
        wrong = f"failed: {', '.join(map(str, failed))}" if isinstance(failed, list) and failed else ""
        unrouted = "the router sends it no requests" if one.routed is False else ""
        words = (checks, wrong, str(row["cause"] or ""), unrouted)
        said = one.error.message if one.error else "; ".join(filter(None, words))
        drawn.add_row(one.host.name, one.state, f"{one.seconds:.1f}", str(row["endpoint"] or "-"), said)
    return drawn
