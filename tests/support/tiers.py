"""Which tier of the tests a run of pytest is: a folder of tests/, whole or in the halves by which `make` runs it."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

HALVES = {"", "restarts", "not restarts", "light", "slow", "not slow"}  # the marks by which `make` runs a tier in parts


def whole_tier(config: pytest.Config) -> str | None:
    """The name of the tier or part that runs, None if only some of its tests do."""
    tiers = [(config.invocation_params.dir / one).resolve() for one in config.args]
    if {one.parent for one in tiers} != {TESTS} or config.option.keyword or config.option.markexpr not in HALVES:
        return None
    return "-".join(filter(None, [*sorted(one.name for one in tiers), config.option.markexpr.replace(" ", "-")]))
