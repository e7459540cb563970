"""The `data` of `tune`."""

from __future__ import annotations

from dflash_deploy.bench.workload import DescribedWorkload
from dflash_deploy.document import AcceptanceLength, Count, Positive, Rate, Ratio
from dflash_deploy.operations.tune import Tried
from dflash_deploy.schemas.common import DocumentedDict
from dflash_deploy.schemas.measuring import BenchMeasuredData


class TunedData(DocumentedDict):
    """The result of `tune`. `.dflash/tune.json` has the same `data`."""

    measured: BenchMeasuredData
    """What was measured, and how."""
    workloads: list[DescribedWorkload]
    """The workloads, measured as one mixture."""
    lengths: list[AcceptanceLength]
    """Predicted tokens per step by number of draft tokens, from 0 on."""
    tried: list[Tried]
    """All settings that were measured; the settings of `.env` are the first."""
    predicted: dict[str, list[Rate]]
    """Tokens per second by concurrency of each setting that can be proposed, by its title."""
    best: str
    """Title of the best setting by prediction."""
    gain: Ratio | None
    """Mean of its tokens/s divided by those of `.env`, both measured; null if it is not predicted to be faster."""
    noise: Ratio | None
    """Share by which two runs of one setting differed; a proposal gains more. Null as `gain`."""
    changes: dict[str, str]
    """The settings of the proposal that differ from `.env`; empty if the settings of `.env` are kept."""
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
