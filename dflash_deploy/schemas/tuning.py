"""The `data` of `tune`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import AcceptanceLength, Count, DocumentedDict, Rate, Seconds, Share
from dflash_deploy.schemas.measuring import Positive, Ratio, RowData, WorkloadData
from dflash_deploy.tuning.choose import Kind


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


class PointData(DocumentedDict):
    """One setting at one concurrency, as measured."""

    draft_tokens: Count
    """Draft tokens of one step; 0 without the drafter."""
    streams: Positive
    """Concurrency: requests at the same time."""
    tokens_per_s: Rate
    """Tokens per second of all requests together."""
    first_s: Seconds
    """Mean time to the first token, in seconds."""
    answer_tokens: Annotated[float, Field(gt=0)]
    """Mean length of an answer in tokens."""
    length: AcceptanceLength
    """Mean tokens per step."""
    by_position: list[Share]
    """Share of drafts whose token at each position was accepted; empty without the drafter."""
    step_s: Seconds
    """Time of one step in seconds."""


class StepTimeData(DocumentedDict):
    """The time of one step at one concurrency: a line through the measured numbers of draft tokens."""

    streams: Positive
    """Concurrency: requests at the same time."""
    base: Seconds
    """Seconds of a step with the drafter and 0 draft tokens."""
    each: Seconds
    """Further seconds for each draft token."""


class OptionData(DocumentedDict):
    """Settings that can be proposed, with their predicted speed."""

    kind: Kind
    """`off`: no drafter. `fixed`: one number of draft tokens. `mtp`: the MTP head. `schedule`: by concurrency."""
    draft_tokens: Count
    """Most draft tokens of one step; 0 without the drafter."""
    rates: list[Rate]
    """Predicted tokens per second by concurrency, in rising order."""
    ranges: list[Annotated[list[Count], Field(min_length=3, max_length=3)]]
    """The schedule: lowest concurrency, highest concurrency, draft tokens. Empty if there is none."""
    title: str
    """The option in words. The text may change."""
    settings: dict[str, str]
    """The lines of `.env` for it, by name."""
    score: Rate
    """Geometric mean of `rates`."""


class HeadData(DocumentedDict):
    """The best setting of the target's MTP head, compared with the best one of the drafter."""

    head: str
    """The setting of the MTP head, in words. The text may change."""
    drafter: str
    """The setting of the drafter, in words. The text may change."""
    gain: Ratio
    """Geometric mean, over the concurrencies, of the tokens/s of the MTP head divided by those of the drafter."""
    least: Ratio
    """The smallest of these ratios."""
    most: Ratio
    """The largest of these ratios."""
    better: bool
    """Whether the MTP head is faster overall by more than noise."""
    sentence: str
    """The comparison in words. The text may change."""


class TriedData(DocumentedDict):
    """One setting as measured."""

    title: str
    """The setting in words. The text may change."""
    settings: dict[str, str]
    """The lines of `.env` that were changed for it, by name."""
    rows: list[RowData]
    """One row for each concurrency, in rising order."""


class VerdictData(DocumentedDict):
    """The measured proposal compared with the present settings."""

    gain: Ratio
    """Geometric mean, over the concurrencies, of its tokens/s divided by those of the present settings."""
    least: Ratio
    """The smallest of these ratios."""
    noise: Annotated[float, Field(ge=0)]
    """Share by which two runs of one setting differ."""
    wins: bool
    """Whether the gain is larger than noise."""


class TunedData(DocumentedDict):
    """The result of `tune`. `.dflash/tune.json` has the same `data`."""

    measured: TuneMeasuredData
    """What was measured, and how."""
    workloads: list[WorkloadData]
    """The workloads, measured as one mixture."""
    points: list[PointData]
    """The measurements behind the predictions."""
    lengths: list[AcceptanceLength]
    """Predicted tokens per step by number of draft tokens, from 0 on."""
    steps: list[StepTimeData]
    """The time of one step by concurrency."""
    options: list[OptionData]
    """All settings that can be proposed."""
    head: HeadData | None
    """The target's MTP head compared with the drafter; null if it was not measured."""
    best: OptionData
    """The best option by prediction."""
    tried: list[TriedData]
    """All settings that were measured."""
    verdict: VerdictData | None
    """The best option compared with the present settings; null if it is not predicted to be faster."""
    proposal: OptionData | None
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

    workload: WorkloadData
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
