"""The restarts that commands cause: until when RestartLoop stays silenced because of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dflash_deploy.intake.documents import JournalEvent
from dflash_deploy.monitoring.alerts import RESTART_WINDOW, RESTARTS

STARTS = frozenset({"up", "restart", "rollback", "keys rotate"})
"""Commands that start an engine once."""

MEASURES = {"test": 2, "bench": 3, "tune": RESTARTS + 1}
"""The restarts of a command that measures, at most; `tune` may restart it more often. A failed one restarts it too."""


def restarts_of(event: str, command: str) -> int:
    """The restarts behind a line of the journal that Prometheus may have seen, at most.

    None of a start that failed: that engine answered no request for its counters, if it was started at all. Of several
    engines, those before it may have been restarted. They are not counted: settings that fail do so at the first one,
    and a count that is too high would silence an engine that ends again and again.
    """
    if command in STARTS:
        return int(event in {"ready", "rolled-back"})
    return MEASURES.get(command, 0) if event in {"measured", "failed"} else 0


def counted_until(lines: Iterable[JournalEvent]) -> datetime | None:
    """When the alert has forgotten enough restarts of these commands; `None` if they are not more than it allows.

    `lines` are those of the journal in their order.
    """
    seen = 0
    for line in reversed(list(lines)):
        seen += restarts_of(line.event, line.command)
        if seen > RESTARTS:
            return datetime.fromisoformat(line.at) + RESTART_WINDOW
    return None
