"""The `data` of `profiles` and `models`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from dflash_deploy.catalog.models import Drafter, Family, Target
from dflash_deploy.catalog.read import Evidence
from dflash_deploy.schemas.common import Count, Documented


class ProfileRowData(Documented):
    """One hardware profile."""

    name: str
    """Name, as `--profile` takes it."""
    title: str
    """The machine in words."""
    pair: str
    """Name of the model that it serves by default."""
    engines: list[str]
    """Names of the engine releases, in order of preference."""
    evidence: Evidence
    """`verified`: this project has run it. `reported`: the named source has. `untested`: no report is known."""
    fits: bool
    """Whether the profile fits this machine."""
    why_not: str
    """What this machine lacks for it; empty if it fits."""


class ProfilesListData(Documented):
    """The hardware that the catalog knows."""

    profiles: list[ProfileRowData]
    """All hardware profiles."""


class ModelRowData(Documented):
    """One model: a target with its drafter."""

    name: str
    """Name, as `--model` takes it."""
    title: str
    """The model in words."""
    target: str
    """The target's repository on the Hugging Face Hub, or its path in the package."""
    drafter: str
    """The drafter's repository on the Hugging Face Hub, or its path in the package."""
    bytes: Count
    """Size of both on disk in bytes."""
    engine: str | None
    """Name of the engine release that would serve it; null if it is not compatible."""
    compatible: bool
    """Whether the profile can serve it."""
    why_not: str
    """Why it cannot; empty if it can."""


class ModelsListData(Documented):
    """The models that the catalog knows."""

    profile: str
    """Name of the hardware profile that they were compared with."""
    models: list[ModelRowData]
    """All models, also those that are not compatible."""


class ModelProfileData(Documented):
    """Whether one kind of hardware can serve a model."""

    name: str
    """Name of the hardware profile."""
    compatible: bool
    """Whether the profile can serve the model."""
    why_not: str
    """Why it cannot; empty if it can."""


def _without_targets(schema: dict[str, Any]) -> None:
    """Take out what the document has elsewhere."""
    for name in ("targets", "drafter"):
        del schema["properties"][name]
        schema["required"].remove(name)


class FamilyData(Family):
    """The base model."""

    model_config = ConfigDict(json_schema_extra=_without_targets)


class ModelsShowData(Target):
    """One model: the target's entry in the catalog, its drafter, its base model, and the hardware that can serve it."""

    drafter: Drafter
    family: FamilyData
    profiles: Annotated[
        list[ModelProfileData], Field(description="all hardware profiles, and whether they can serve it")
    ]
