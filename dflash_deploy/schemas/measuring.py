"""The `data` of `test` and `bench`."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field

from dflash_deploy.bench.agent_figures import Stage
from dflash_deploy.bench.figures import Beside, Row
from dflash_deploy.bench.workload import DescribedWorkload
from dflash_deploy.checks.check import CheckResult
from dflash_deploy.checks.soak import SoakSample
from dflash_deploy.document import AcceptanceLength, Positive, Rate
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import DocumentedDict


class TestData(DocumentedDict):
    """The result of `test`."""

    checks: list[CheckResult]
    """All checks that ran, in their order."""
    acceptance_length: AcceptanceLength | None
    """Acceptance length over the workloads of the check `drafts`, in tokens per step; null if it was not measured."""
    acceptance_by_workload: dict[str, AcceptanceLength]
    """The same by workload; empty if it was not measured."""
    tokens_per_second: Rate | None
    """Tokens per second of one request, prompt included; null if it was not measured."""
    soak: NotRequired[list[SoakSample]]
    """The engine during the load of `--soak`, whose verdicts are the checks."""


class BenchMeasuredData(DocumentedDict):
    """What `bench` measured, and how."""

    endpoint: NotRequired[str]
    """URL of the endpoint, if it was named with `--url`."""
    profile: NotRequired[str]
    """Name of the hardware profile. Missing with `--url`, as are pair, engine and runtime."""
    pair: NotRequired[str]
    """Name of the model: a target with its drafter."""
    engine: NotRequired[str]
    """Engine and its version."""
    runtime: NotRequired[RuntimeName]
    """What runs the engine: containers (`compose`) or a process on this machine (`native`)."""
    baseline_url: NotRequired[str]
    """URL of the endpoint that was measured without speculative decoding, if it was named with `--baseline-url`."""
    model: str
    """Name of the model in requests."""
    settings: dict[str, str]
    """The settings of `.env` that determine speed, by name; empty with `--url`."""
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
    max_tokens: Positive
    """Longest answer in tokens, unless a prompt has its own length."""
    agents: NotRequired[Positive]
    """Conversations at the same time, with `--agents`."""
    turns: NotRequired[Positive]
    """Turns of each conversation, with `--agents`."""
    context: NotRequired[Positive]
    """Tokens that a conversation grows to, with `--agents`."""
    trace: NotRequired[str]
    """File of the trace, with `--trace`."""


class AgentsData(DocumentedDict):
    """The result of `bench --agents` and `bench --trace`. `--save` writes the same `data`."""

    measured: BenchMeasuredData
    """What was measured, and how."""
    turns: list[Stage]
    """Figures of each turn, over all agents; of a trace all requests are one turn."""
    contexts: list[Stage]
    """The same figures by the length of the prompt."""
    verdicts: list[str]
    """What the figures mean, one line each."""


class BenchData(DocumentedDict):
    """The result of `bench`. `--save` writes the same `data`."""

    measured: BenchMeasuredData
    """What was measured, and how."""
    workloads: list[DescribedWorkload]
    """The workloads."""
    rows: list[Row]
    """One row for each workload, concurrency and way of decoding."""
    published: list[Beside]
    """Published measurements for the same hardware and models; empty if the catalog has none to compare."""
