"""The `data` of `capacity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from dflash_deploy.features.capacity.operations import Basis
from dflash_deploy.schemas.common import Count, DocumentedDict, Rate, Seconds
from dflash_deploy.schemas.table import CommandData


class SimulatedData(DocumentedDict):
    """One replica with a number of users, as simulated."""

    users: Annotated[int, Field(ge=1)]
    """Users of this replica."""
    requests: Count
    """Requests that were counted."""
    ttft_p50_s: Seconds
    """Median time to the first token, in seconds."""
    ttft_p95_s: Seconds
    """95th percentile of the time to the first token, in seconds."""
    answer_p50_s: Seconds
    """Median time to the last token, in seconds."""
    answer_p95_s: Seconds
    """95th percentile of the time to the last token, in seconds."""
    answer_mean_s: Seconds
    """Mean time to the last token, in seconds."""
    tokens_per_s: Rate
    """Completion tokens per second."""
    requests_per_s: Rate
    """Answered requests per second."""
    sequences: Annotated[float, Field(ge=0)]
    """Mean number of requests in flight, waiting ones included."""


class ReplicasData(DocumentedDict):
    """The replicas that a load needs with one way to draft."""

    replicas: Annotated[int, Field(ge=1)] | None
    """Replicas that meet the goals; null if no number of them does."""
    users_of_one: Count
    """The most users that one replica serves within the goals, at most those of the load."""
    tokens_per_s: Rate
    """Completion tokens per second of all replicas together."""
    one: SimulatedData
    """One replica with its share of the users; with a single user if no number of replicas meets the goals."""
    curve: list[SimulatedData]
    """One replica with other numbers of users."""


class CapacityData(DocumentedDict):
    """How many replicas a load needs."""

    profile: str
    """Name of the hardware profile."""
    engine: str
    """Name of the engine release."""
    pair: str
    """Name of the model: a target with its drafter."""

    users: Annotated[int, Field(ge=1)]
    """Users; each sends its next request after reading an answer."""
    think_s: Seconds
    """Mean time between an answer and the next request of a user, in seconds."""
    prompt_tokens: Annotated[int, Field(ge=1)]
    """Mean tokens of a prompt."""
    answer_tokens: Annotated[int, Field(ge=1)]
    """Mean tokens of an answer."""
    spread: Annotated[float, Field(ge=0)]
    """Coefficient of variation of both; 0 if all requests are equal."""
    p95_ttft_s: Seconds | None
    """Goal: 95th percentile of the time to the first token, in seconds; null if there is none."""
    p95_answer_s: Seconds | None
    """Goal: 95th percentile of the time to the last token, in seconds; null if there is none."""
    basis: Basis
    """Where the speed of one replica comes from: figures of `bench`, or the speed model."""
    source: str
    """The same in words."""
    with_drafts: ReplicasData | None
    """With speculative decoding; null without a drafter, or if nothing is known of it."""
    without_drafts: ReplicasData | None
    """Without speculative decoding; null if nothing is known of it."""
    drafts_pay_below: Annotated[int, Field(ge=1)] | None
    """The least number of sequences at the same time at which drafts are no faster; null if there is none."""
    notes: list[str]
    """Limits of this result, in words."""


DOCUMENTS: Mapping[str, CommandData] = {"capacity": CommandData((CapacityData,))}
