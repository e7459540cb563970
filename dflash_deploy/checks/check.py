"""What a check of `test` is: a function of the endpoint under test, with a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflash_deploy.checks.outcome import CheckOutcome
from dflash_deploy.checks.under_test import EndpointUnderTest

CheckFunction = Callable[[EndpointUnderTest], CheckOutcome]


@dataclass(frozen=True)
class EndpointCheck:
    """A check by name. `run` raises CheckSkipped and EndpointError.

    `quick`: fast even on a slow engine, so that `up` ends with it.
    """

    name: str
    run: CheckFunction
    quick: bool = False


def check(name: str, *, quick: bool = False) -> Callable[[CheckFunction], EndpointCheck]:
    """Return a decorator that makes a function the check `name`; see EndpointCheck."""

    def decorated(run: CheckFunction) -> EndpointCheck:
        return EndpointCheck(name, run, quick)

    return decorated
