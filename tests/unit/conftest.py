"""Unit tests start no process and open no socket: what needs one belongs to `tests/cli`, `tests/hub` or
`tests/processes`."""

import gc
import sys
from collections.abc import Generator

import pytest

# Events of https://docs.python.org/3/library/audit_events.html.
FORBIDDEN = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "pty.spawn",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "subprocess.Popen",
    }
)

_running: list[pytest.Item] = []
_broken: list[str] = []


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in FORBIDDEN and _running:
        _broken.append(f"{event}{arguments}")
        raise AssertionError(f"a unit test called {event}{arguments}: move it out of tests/unit")


sys.addaudithook(_watch)  # an audit hook stays for the life of the process; outside a unit test it does nothing


def pytest_collection_finish() -> None:
    """Let the garbage collector search less, and not what was imported: that took half a second each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Begin to watch."""
    _broken.clear()
    _running.append(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Stop to watch. A test whose code swallowed the error fails here."""
    try:
        return (yield)
    finally:
        _running.clear()
        assert not _broken, "\n".join(_broken)
