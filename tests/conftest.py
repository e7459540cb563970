"""What all tests need of the process that they run in."""

import os
import signal
from typing import Any

import pytest
from hypothesis import settings

from tests.support import times
from tests.support.schemas import seen
from tests.support.tiers import whole_tier

# the default of 200 ms for each example fails on a machine that is busy with other tests
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep which properties of documents in JSON were seen, if a whole tier ran: see tests/support/schemas."""
    tier = whole_tier(session.config)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["seen"] = {name: sorted(paths) for name, paths in seen.SEEN.items()}
    elif tier is not None:
        seen.save(tier)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: what it saw was seen in this run."""
    for name, paths in getattr(node, "workeroutput", {}).get("seen", {}).items():
        seen.SEEN.setdefault(name, set()).update(paths)


def pytest_configure(config: pytest.Config) -> None:
    """Let commands that the tests start be ended by Ctrl-C, also where a shell has started the tests in the background.

    Such a shell ignores SIGINT for them, and what is ignored stays so in every process that they start.
    """
    config.pluginmanager.register(times.Recorder())
    # a worker of pytest-xdist has them, and commands would take their pipes for a terminal of that width
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
