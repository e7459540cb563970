"""The `data` of `test` and `bench`."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field

from dflash_deploy.bench.agent_figures import Stage
from dflash_deploy.checks.soak import SoakSample
from dflash_deploy.plan.result import RuntimeName
from dflash_deploy.schemas.common import AcceptanceLength, CheckData, Count, DocumentedDict, Rate, Seconds, Share

Milliseconds = Annotated[float, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(ge=0)]


class TestData(DocumentedDict):
    """The result of `test`."""

    checks: list[CheckData]
    """All checks that ran, in their order."""
    acceptance_length: AcceptanceLength | None
    """Acceptance length over the workloads of the check `drafts`, in tokens per step; null if it was not measured."""
    acceptance_by_workload: dict[str, AcceptanceLength]
    """The same by workload; empty if it was not measured."""
    acceptance_by_engine: NotRequired[dict[str, AcceptanceLength]]
    """Acceptance length of each of several engines, by its name such as `engine 1`."""
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
    cores: NotRequired[Positive]
    """Processor cores of the engine, if several engines share those of the machine."""
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


class WorkloadData(DocumentedDict):
    """A set of prompts."""

    name: str
    """Name of the workload."""
    source: str
    """Where the prompts come from."""
    prompts: Positive
    """Number of prompts."""


class SpreadData(DocumentedDict):
    """The distribution of a time, in milliseconds."""

    mean: Milliseconds
    """Mean."""
    min: Milliseconds
    """Minimum."""
    p25: Milliseconds
    """25th percentile."""
    p50: Milliseconds
    """Median."""
    p75: Milliseconds
    """75th percentile."""
    p95: Milliseconds
    """95th percentile."""
    p99: Milliseconds
    """99th percentile."""
    max: Milliseconds
    """Maximum."""


class CountedData(DocumentedDict):
    """The engine's own counters during the measurement."""

    drafts: Count
    """Steps for which tokens were drafted."""
    draft_tokens: Count
    """Tokens that were drafted."""
    accepted_tokens: Count
    """Drafted tokens that the target accepted."""
    accepted_by_position: list[Count]
    """Accepted tokens by position in the draft, the first position first; empty if the engine has no such counters."""


class RowData(DocumentedDict):
    """One workload at one concurrency. Rates are those of all requests together, prompts included."""

    workload: str
    """Name of the workload."""
    concurrency: Positive
    """Requests at the same time."""
    drafter: bool | None
    """Whether tokens are drafted, by a drafter or by the target's MTP head; null if that is unknown."""
    mtp: bool
    """Whether the target's MTP head drafts them."""
    draft_tokens: Count | None
    """Draft tokens of one step, rounded; 0 if none were drafted, null if the engine does not report them."""
    tokens_per_s: Rate
    """Completion tokens per second: the median of `rounds`."""
    rounds: list[Rate]
    """Completion tokens per second of each repeat."""
    speedup: Ratio | None
    """`tokens_per_s` divided by that without speculative decoding; null if both were not measured."""
    requests: Count
    """Requests that were answered."""
    failed: Count
    """Requests that failed."""
    problem: str
    """Why the first of them failed; empty if none did."""
    duration_s: Seconds
    """Seconds of all repeats together."""
    requests_per_s: Rate
    """Answered requests per second."""
    input_tokens: Count
    """Tokens of all prompts."""
    output_tokens: Count
    """Tokens of all answers."""
    ttft_ms: SpreadData | None
    """Time to the first token, in milliseconds; null if no request was answered."""
    tpot_ms: SpreadData | None
    """Time per further token of a request, in milliseconds; null if no answer has two tokens."""
    itl_ms: SpreadData | None
    """Time between chunks of an answer, which can have several tokens, in milliseconds; null if there was one chunk."""
    acceptance_length: AcceptanceLength | None
    """Mean tokens per step, the target's own token included; null if nothing was drafted or counted."""
    acceptance_by_position: list[Share]
    """Share of drafts whose token at each position was accepted, the first position first."""
    counted: CountedData | None
    """The engine's own counters; null if it has none."""


class BesideData(DocumentedDict):
    """A published measurement, beside the most similar one of this run. Rates are tokens/s of all requests together."""

    workload: str
    """The published workload."""
    concurrency: Positive
    """Requests at the same time, in both."""
    draft_tokens: Positive
    """Published: draft tokens of one step."""
    plain: Rate | None
    """Published: tokens/s without speculative decoding; null if it was not published."""
    dflash: Rate
    """Published: tokens/s with the drafter."""
    acceptance_length: AcceptanceLength | None
    """Published: tokens per step; null if it was not published."""
    source: str
    """Who published it."""
    ours_workload: str
    """Here: the most similar workload."""
    ours_draft_tokens: Count | None
    """Here: draft tokens of one step; null if it was not measured."""
    ours_plain: Rate | None
    """Here: tokens/s without speculative decoding; null if it was not measured."""
    ours_dflash: Rate | None
    """Here: tokens/s with the drafter; null if it was not measured."""
    ours_acceptance_length: AcceptanceLength | None
    """Here: tokens per step; null if it was not measured."""


class BenchData(DocumentedDict):
    """The result of `bench`. `--save` writes the same `data`."""

    measured: BenchMeasuredData
    """What was measured, and how."""
    workloads: list[WorkloadData]
    """The workloads."""
    rows: list[RowData]
    """One row for each workload, concurrency and way of decoding."""
    published: list[BesideData]
    """Published measurements for the same hardware and models; empty if the catalog has none to compare."""
