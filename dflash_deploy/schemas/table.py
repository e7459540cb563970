"""Which `data` each command prints."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import Drafter, Family, Target
from dflash_deploy.document import CommandData
from dflash_deploy.operations import connect, described, image, keys, models, pull, status
from dflash_deploy.operations.ask import WholeAnswer
from dflash_deploy.operations.bench import Benchmark
from dflash_deploy.operations.bundle import IssueReport
from dflash_deploy.operations.doctor import Examined
from dflash_deploy.operations.down import Stopped
from dflash_deploy.operations.explain import ExplainedLog
from dflash_deploy.operations.foreign import ForeignPlan
from dflash_deploy.operations.here import Deployments
from dflash_deploy.operations.key_file import KeyFile
from dflash_deploy.operations.models import ModelProfile
from dflash_deploy.operations.plan import Created, Planned, Rendered
from dflash_deploy.operations.set import SettingRows, SettingsChanged
from dflash_deploy.operations.test import Tested
from dflash_deploy.operations.tune import Tuned, TunePlan
from dflash_deploy.operations.up import Started, Unready, Worker
from dflash_deploy.operations.upgrade import Upgraded
from dflash_deploy.registry import features

PROGRESS = "progress"  # the name of the schema of a line of `--json-stream` before the last one


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


# Every command of the core with `--json`, by its full name.
CORE: Mapping[str, CommandData] = {
    "init": CommandData((Created,), (ForeignPlan,)),
    "plan": CommandData((Planned,)),
    "doctor": CommandData((Examined, IssueReport)),
    "pull": CommandData((pull.Pulled, pull.Wrong, pull.Moved)),
    "render": CommandData((Rendered,)),
    "up": CommandData((Started, Worker), (Unready,), streams=True),
    "restart": CommandData((Started,), streams=True),
    "rollback": CommandData((Started,), streams=True),
    "test": CommandData((Tested,)),
    "bench": CommandData((Benchmark,)),
    "tune": CommandData((Tuned, TunePlan)),
    "ask": CommandData((WholeAnswer,)),
    "connect": CommandData((connect.ConnectClients, connect.ConnectClient)),
    "list": CommandData((Deployments,)),
    "status": CommandData((status.Status, status.History, status.EndpointStatus)),
    "explain": CommandData((ExplainedLog, ForeignPlan)),
    "down": CommandData((Stopped,)),
    "set": CommandData((SettingsChanged, SettingRows)),
    "upgrade": CommandData((Upgraded,)),
    "profiles list": CommandData((models.Profiles,)),
    "profiles show": CommandData((Profile,)),
    "models list": CommandData((models.Models,)),
    "models show": CommandData((ModelsShowData,)),
    "models use": CommandData((Upgraded,)),
    "models add": CommandData((described.AddedModel,)),
    "models rm": CommandData((models.Removal,)),
    "models prune": CommandData((models.Removal,)),
    "models convert gguf": CommandData((pull.Converted,)),
    "keys show": CommandData((KeyFile,)),
    "keys add": CommandData((keys.KeyChange,)),
    "keys revoke": CommandData((keys.KeyChange,)),
    "keys list": CommandData((keys.Keys,)),
    "keys usage": CommandData((keys.UsageByName,)),
    "keys rotate": CommandData((keys.Replaced,), streams=True),
    "image build": CommandData((image.Image,)),
    "image verify": CommandData((image.Verified,)),
    "image digest": CommandData((image.Digest,)),
}


# Every command with `--json`, by its full name.
DOCUMENTS: Mapping[str, CommandData] = {
    **CORE,
    **{name: data for feature in features() for name, data in import_module(feature.documents).DOCUMENTS.items()},
}

NAMES = (*DOCUMENTS, PROGRESS)  # the name of each schema: a command, or `progress` for a line of `--json-stream`
