"""Which `data` each command of the core prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.operations.ask import WholeAnswer
from dflash_deploy.schemas import explaining, images, keys, listing, measuring, planning, running, tuning, weights

PROGRESS = "progress"
"""The name of the schema of a line of `--json-stream` before the last one."""


@dataclass(frozen=True)
class CommandData:
    """The `data` of one command.

    `done` are the types of its results: one of them with status `ok`, and with `failed` if it failed with a result,
    such as a check that is not passed. `failed` are further types that only a failure has. `streams`: it has
    `--json-stream`.
    """

    done: tuple[type[Any], ...]
    failed: tuple[type[Any], ...] = ()
    streams: bool = False


CORE: Mapping[str, CommandData] = {
    "init": CommandData((planning.InitData,)),
    "plan": CommandData((planning.PlanData,)),
    "doctor": CommandData((planning.DoctorData,)),
    "pull": CommandData(
        (
            weights.PullData,
            weights.PullWrongData,
            weights.PullMovedData,
            weights.PullToData,
            weights.PullFromData,
        )
    ),
    "render": CommandData((planning.RenderData,)),
    "up": CommandData((running.UpData, running.WorkerData), (running.DiagnosisData,), streams=True),
    "restart": CommandData((running.RestartData,), streams=True),
    "rollback": CommandData((running.RollbackData,), streams=True),
    "test": CommandData((measuring.TestData,)),
    "bench": CommandData((measuring.BenchData,)),
    "tune": CommandData((tuning.TunedData, tuning.TunePlanData)),
    "ask": CommandData((WholeAnswer,)),
    "connect": CommandData((images.ConnectData, images.ConnectClientData)),
    "status": CommandData((running.StatusData, running.HistoryData, running.StatusUrlData)),
    "explain": CommandData((explaining.ExplainData,)),
    "down": CommandData((running.DownData,)),
    "profiles list": CommandData((listing.ProfilesListData,)),
    "profiles show": CommandData((Profile,)),
    "models list": CommandData((listing.ModelsListData,)),
    "models show": CommandData((listing.ModelsShowData,)),
    "models convert gguf": CommandData((weights.ConvertData,)),
    "keys show": CommandData((keys.KeysShowData,)),
    "keys add": CommandData((keys.KeyChangeData,)),
    "keys revoke": CommandData((keys.KeyChangeData,)),
    "keys list": CommandData((keys.KeysListData,)),
    "keys usage": CommandData((keys.KeysUsageData,)),
    "keys rotate": CommandData((keys.KeysRotateData,), streams=True),
    "image build": CommandData((images.ImageBuildData,)),
    "image verify": CommandData((images.ImageVerifyData,)),
    "image digest": CommandData((images.ImageDigestData,)),
}
"""Every command of the core with `--json`, by its full name."""
