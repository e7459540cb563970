"""The `data` of `plan`, `init`, `pull` and `models show`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from dflash_deploy.catalog.models import Drafter, Family, Target
from dflash_deploy.operations.foreign import ForeignPlan
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import DocumentedDict


class InitData(DocumentedDict):
    """The deployment that `init` wrote."""

    directory: str
    """The deployment directory."""
    profile: str
    """Name of the hardware profile."""
    pair: str
    """Name of the model: a target with its drafter."""
    engine: str
    """Name of the engine release."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    recipe: ForeignPlan | None
    """What became of each item of the recipe of `--from`; null without it."""


class ModelProfileData(DocumentedDict):
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


class PullWrongData(DocumentedDict):
    """What `--offline` and `--verify` found."""

    wrong: dict[str, str]
    """Each file that differs from dflash.lock, with the problem; empty if all match."""


class PullMovedData(DocumentedDict):
    """What `--check` found."""

    moved: dict[str, list[str]]
    """Each repository with a newer commit, with the locked files that it changes; empty if there is none."""


class PullToData(DocumentedDict):
    """What `--to` copied."""

    to: str
    """Directory that has the weights and dflash.lock now."""


PullFromData = TypedDict(
    "PullFromData", {"from": Annotated[str, Field(description="Directory that the weights and dflash.lock came from.")]}
)
PullFromData.__doc__ = "What `--from` copied."
