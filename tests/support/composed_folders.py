"""A plan of every profile and one of every engine, in the shapes of `export compose`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.plan.command import read_settings
from dflash_deploy.plan.result import Decision, Plan
from tests.support.manifests import plan_for

SHAPES: Mapping[str, set[str]] = {
    "single": set(),
    "replicas": {"router", "door"},
    "domain": {"door"},
    "replicas and domain": {"router", "door"},
}
"""The shapes, and the services beside engines."""

_SETTINGS: Mapping[str, dict[str, str]] = {
    "single": {},
    "replicas": {"REPLICAS": "2"},
    "domain": {"DFLASH_DOMAIN": "llm.example.com"},
    "replicas and domain": {"REPLICAS": "2", "DFLASH_DOMAIN": "10.0.0.7"},
}


def shaped(plan: Plan, shape: str) -> Plan:
    """The plan with the settings of a shape, as a person writes them to `.env`."""
    own = _SETTINGS[shape]
    kept = tuple(decision for decision in plan.decisions if decision.name not in own)
    decisions = (*kept, *(Decision(name, value, ".env", "") for name, value in own.items()))
    read = read_settings({one.name: one.value for one in decisions}, plan.engine.kind)
    return replace(plan, decisions=decisions, settings=read)


@cache
def _single() -> Mapping[str, Plan]:
    catalog = load_catalog()
    chosen = {name: profile.engines[0].release for name, profile in catalog.profiles.items()}
    listed = {one.release: name for name, profile in catalog.profiles.items() for one in profile.engines}
    pairs = [*chosen.items(), *((name, engine) for engine, name in listed.items() if engine not in chosen.values())]
    return {
        f"{profile}-{engine}": plan_for(
            profile, engine, **({"master_addr": "10.0.0.1"} if catalog.profiles[profile].hardware.machines > 1 else {})
        )
        for profile, engine in pairs
    }


@cache
def plans_in(shape: str) -> Mapping[str, Plan]:
    """The plans of a shape, by profile and engine. Several machines have one shape only."""
    return {
        name: shaped(plan, shape)
        for name, plan in _single().items()
        if shape == "single" or plan.profile.hardware.machines == 1
    }
