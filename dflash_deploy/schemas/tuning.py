"""The `data` of `tune`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dflash_deploy.bench.workload import DescribedWorkload
from dflash_deploy.document import AcceptanceLength, Count, Positive, Seconds
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import DocumentedDict
from dflash_deploy.tuning.choose import HeadComparison, Option, Verdict
from dflash_deploy.tuning.model import Point, StepTime
from dflash_deploy.tuning.run import Tried


class TuneMeasuredData(DocumentedDict):
    """What `tune` measured, and how."""

    profile: str
    """Name of the hardware profile."""
    pair: str
    """Name of the model: a target with its drafter."""
    engine: str
    """Engine and its version."""
    runtime: RuntimeName
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    model: str
    """Name of the model in requests."""
    settings: dict[str, str]
    """The settings of `.env` that determine speed, by name."""
    at: str
    """When the measurement ended, such as `2026-11-22 15:04 UTC`."""
    version: str
    """Version of dflash-deploy."""
    repeats: Positive
    """Repeats of each measurement."""
    temperature: Annotated[float, Field(ge=0)]
    """Temperature of sampling; 0 is greedy."""
    thinking: bool
    """Whether the model may think."""
    context: Count
    """Tokens of a conversation before each prompt."""
    seconds_of_starts: list[Seconds]
    """Seconds of each restart of the engine."""


class TunedData(DocumentedDict):
    """The result of `tune`. `.dflash/tune.json` has the same `data`."""

    measured: TuneMeasuredData
    """What was measured, and how."""
    workloads: list[DescribedWorkload]
    """The workloads, measured as one mixture."""
    points: list[Point]
    """The measurements behind the predictions."""
    lengths: list[AcceptanceLength]
    """Predicted tokens per step by number of draft tokens, from 0 on."""
    steps: list[StepTime]
    """The time of one step by concurrency."""
    options: list[Option]
    """All settings that can be proposed."""
    head: HeadComparison | None
    """The target's MTP head compared with the drafter; null if it was not measured."""
    best: Option
    """The best option by prediction."""
    tried: list[Tried]
    """All settings that were measured."""
    verdict: Verdict | None
    """The best option compared with the present settings; null if it is not predicted to be faster."""
    proposal: Option | None
    """The option to use; null if the present settings are kept."""
    changes: dict[str, str]
    """The settings of the proposal that differ from `.env`."""
    written: bool
    """Whether they were written into `.env`."""


class TuneStepData(DocumentedDict):
    """One setting that `tune` would measure."""

    title: str
    """The setting in words. The text may change."""
    settings: dict[str, str]
    """The lines of `.env` that would be changed for it, by name."""


class TunePlanData(DocumentedDict):
    """What `tune --dry-run` would measure."""

    workload: DescribedWorkload
    """The workload."""
    concurrency: list[Positive]
    """Requests at the same time, one measurement for each number."""
    repeats: Positive
    """Repeats of each measurement."""
    context: Count
    """Tokens of a conversation before each prompt."""
    steps: list[TuneStepData]
    """The settings, in the order of their measurement; the engine restarts for each one."""
    schedules: bool
    """Whether a schedule may be proposed."""
    estimate_s: Seconds
    """Longest expected duration in seconds."""
