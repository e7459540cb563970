"""What all tests need of the process that they run in."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.schemas import seen

# the default of 200 ms for each example fails on a machine that is busy with other tests
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


TESTS = Path(__file__).parent

HALVES = {"", "restarts", "not restarts"}
"""The marks by which `make` runs a tier in parts."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep which properties of documents in JSON were seen, if a whole tier ran: see tests/support/schemas."""
    config = session.config
    tiers = [(config.invocation_params.dir / one).resolve() for one in config.args]
    if {one.parent for one in tiers} == {TESTS} and not config.option.keyword and config.option.markexpr in HALVES:
        seen.save(
            "-".join(filter(None, [*sorted(one.name for one in tiers), config.option.markexpr.replace(" ", "-")]))
        )


def pytest_configure() -> None:
    """Let commands that the tests start be ended by Ctrl-C, also where a shell has started the tests in the background.

    Such a shell ignores SIGINT for them, and what is ignored stays so in every process that they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
