"""What a custom catalog may hold can be planned: every number that the schema accepts, the extremes included."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import Catalog, load_catalog
from dflash_deploy.catalog.models import Family, ModelPair
from dflash_deploy.errors import DeployError
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import H100, machine
from tests.support.rows import each_of

EXAMPLES = Path(__file__).parents[3] / "docs" / "reference" / "catalog"
FAMILY: dict[str, Any] = yaml.safe_load((EXAMPLES / "families/example.yaml").read_text())
PROFILE: dict[str, Any] = yaml.safe_load((EXAMPLES / "profiles/l40s.yaml").read_text())
CATALOG = load_catalog()

Place = tuple[str | int, ...]


def numbers(node: object, at: Place = ()) -> Iterator[Place]:
    """The places of all numbers in an entry."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from numbers(value, (*at, key))
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield at


def edited(entry: dict[str, Any], place: Place, value: float) -> dict[str, Any]:
    """The entry with another number at that place."""
    changed = copy.deepcopy(entry)
    node: Any = changed
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    return changed


def accepted(kind: type[BaseModel], entry: dict[str, Any]) -> Any:
    """The entry, `None` if the schema refuses it."""
    try:
        return kind.model_validate(entry)
    except ValidationError:
        return None


def with_family(entry: dict[str, Any]) -> Catalog | None:
    family = accepted(Family, entry)
    pairs = {target.name: ModelPair(family, target) for target in family.targets} if family else {}
    return replace(CATALOG, pairs={**CATALOG.pairs, **pairs}) if family else None


def with_profile(entry: dict[str, Any]) -> Catalog | None:
    profile = accepted(Profile, entry)
    return replace(CATALOG, profiles={**CATALOG.profiles, profile.name: profile}) if profile else None


def planned(choice: Choice, catalog: Catalog) -> None:
    """Plan it; a refusal that people can read is an answer too."""
    with suppress(DeployError):
        plan_deployment(machine(H100), choice, catalog)


@each_of(product(numbers(FAMILY), (0, 1, -1)))
def test_every_number_of_a_family_is_refused_or_can_be_planned(row: tuple[Place, int]) -> None:
    place, value = row
    if catalog := with_family(edited(FAMILY, place, value)):
        for engine in (None, "sglang", "llamacpp"):
            planned(Choice(profile="h100", model="example-27b-fp8", engine=engine), catalog)


@each_of(product(numbers(PROFILE), (0, 1, -1)))
def test_every_number_of_a_profile_is_refused_or_can_be_planned(row: tuple[Place, int]) -> None:
    place, value = row
    if catalog := with_profile(edited(PROFILE, place, value)):
        planned(Choice(profile=PROFILE["name"]), catalog)


def test_a_kind_of_layer_that_a_model_does_not_have_takes_no_memory() -> None:
    absent = copy.deepcopy(FAMILY)
    del absent["shape"]["sliding_attention"], absent["shape"]["latent_attention"]
    memory = []
    for entry in (FAMILY, absent):
        catalog = with_family(entry)
        assert catalog is not None
        choice = Choice(profile="h100", model="example-27b-fp8")
        memory.append(plan_deployment(machine(H100), choice, catalog).memory)
    assert memory[0] == memory[1]
