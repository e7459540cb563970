"""Every profile, pair and engine that the catalog lets go together, planned for a machine of that profile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from dflash_deploy.catalog import load_catalog
from dflash_deploy.plan import Choice, Plan
from dflash_deploy.rules import plan_deployment
from dflash_deploy.rules.survey import combinations
from tests.support.machines import MACHINES
from tests.support.parsers import Engine

TOO_LARGE = frozenset({"weights-do-not-fit"})
"""The finding with which memory says no: it needs figures that only a plan has."""

PARSERS: dict[str, tuple[Engine, ...]] = {
    "vllm": ("vllm-0.32", "vllm-0.33"),
    "sglang": ("sglang-0.5.23",),
    "llamacpp": ("llamacpp-b11434",),
}
"""Which parsers a list of arguments is shown to. The buun fork publishes none; its own flags stand in test_fork.py."""


@cache
def planned() -> tuple[Plan, ...]:
    """The plans of all combinations that are allowed."""
    return tuple(_planned())


def _planned() -> Iterator[Plan]:
    catalog = load_catalog()
    for profile, pair, engine in combinations(catalog):
        master = "10.0.0.1" if profile.hardware.machines > 1 else None
        choice = Choice(
            profile=profile.name, model=pair.name, engine=engine.name, runtime="compose", master_addr=master
        )
        plan = plan_deployment(MACHINES[profile.name], choice, catalog)
        if not TOO_LARGE & {finding.id for finding in plan.errors}:
            yield plan
