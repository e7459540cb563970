"""The profiles, pairs, engines and recipes of the catalog, planned for a machine of that profile.

Profiles with more GPUs of a kind often differ in the number of GPUs only. Of these, the plans are left out that a
profile with fewer GPUs already has: their commands and files differ in a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.plan.choose import best
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import combinations, plan_deployment
from dflash_deploy.serve.settings import Settings
from tests.support.machines import MACHINES
from tests.support.parsers import Engine

# The finding with which memory says no: it needs figures that only a plan has.
TOO_LARGE = frozenset({"weights-do-not-fit"})

# Settings in which plans for more GPUs of one kind may differ and still be the same for a parser.
SAME_BUT = frozenset(
    field.name for field in (Settings.tensor_parallel_size, Settings.gpu_memory_utilization, Settings.max_num_seqs)
)

# Which parsers a list of arguments is shown to. The buun fork publishes none; its own flags stand in test_fork.py.
PARSERS: dict[str, tuple[Engine, ...]] = {
    "vllm": ("vllm-0.32", "vllm-0.33"),
    "sglang": ("sglang-0.5.23",),
    "llamacpp": ("llamacpp-b11434",),
}


@cache
def planned() -> tuple[Plan, ...]:
    """The plans of all combinations that are allowed."""
    return tuple(_planned())


def _planned() -> Iterator[Plan]:
    catalog = load_catalog()
    seen: set[tuple[object, ...]] = set()
    firsts = {name: next(best(profile, catalog)).pair.name for name, profile in catalog.profiles.items()}
    for profile, pair, engine in sorted(combinations(catalog), key=lambda one: one[0].gpus):
        repeats = _alike(profile, pair, engine)
        if repeats in seen and pair.name != firsts[profile.name]:
            continue
        master = "10.0.0.1" if profile.hardware.machines > 1 else None
        choice = Choice(
            profile=profile.name, model=pair.name, engine=engine.name, runtime="compose", master_addr=master
        )
        plan = plan_deployment(MACHINES[profile.name], choice, catalog)
        if not TOO_LARGE & {finding.id for finding in plan.errors}:
            seen.add(repeats)
            yield plan
    for profile, recipe in ((one, recipe) for one in catalog.profiles.values() for recipe in one.recipes):
        if recipe.settings:
            choice = Choice(profile=profile.name, recipe=recipe.name, runtime="compose")
            yield plan_deployment(MACHINES[profile.name], choice, catalog)


def _alike(profile: Profile, pair: ModelPair, engine: EngineRelease) -> tuple[object, ...]:
    """What the plan's command depends on, apart from the numbers in which profiles of one kind of GPU differ."""
    settings = profile.settings_for(engine.name)
    values = tuple(sorted((name, str(one.value)) for name, one in settings.items() if name not in SAME_BUT))
    gpu = (profile.match.compute_capability, profile.match.memory_gib, profile.hardware.machines)
    return *gpu, engine.name, pair.name, values
