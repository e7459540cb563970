"""What all tests need of the process that they run in."""

import signal


def pytest_configure() -> None:
    """Let commands that the tests start be ended by Ctrl-C, also where a shell has started the tests in the background.

    Such a shell ignores SIGINT for them, and what is ignored stays so in every process that they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
