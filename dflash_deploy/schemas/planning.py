"""The `data` of `models show`, which is the catalog's own entry."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from dflash_deploy.catalog.models import Drafter, Family, Target
from dflash_deploy.operations.models import ModelProfile


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
    profiles: Annotated[list[ModelProfile], Field(description="all hardware profiles, and whether they can serve it")]
