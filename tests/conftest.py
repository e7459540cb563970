"""What all tests need of the process that they run in."""

import signal

from hypothesis import settings

# the default of 200 ms for each example fails on a machine that is busy with other tests
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_configure() -> None:
    """Let commands that the tests start be ended by Ctrl-C, also where a shell has started the tests in the background.

    Such a shell ignores SIGINT for them, and what is ignored stays so in every process that they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
