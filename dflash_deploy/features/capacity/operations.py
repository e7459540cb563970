"""`capacity`: how many replicas a load needs, from the figures of `bench` here or from the speed model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.document import CommandData, Documented, Hidden, Keywords
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.features.capacity.load_text import UserLoad, parse_load
from dflash_deploy.features.capacity.measured import expected_service, measured_service, prompts_tell
from dflash_deploy.features.capacity.simulation import Service, Sized, drafts_pay_below, size
from dflash_deploy.intake.documents import BenchRow, BenchRun
from dflash_deploy.operations.figures import figures_in, last_figures, rows_below_limit
from dflash_deploy.operations.plan import DEFAULTS, chosen
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.plan.sizes import USUAL_SEQUENCES
from dflash_deploy.plan.speed import prompt_token_seconds
from dflash_deploy.planning import make_plan
from dflash_deploy.serve.settings import Settings

Basis = Literal["bench", "speed model"]

WITH, WITHOUT = "with drafts", "without drafts"

USUAL_BUDGET = 2048
"""Tokens of a step if no setting says: the least default of the engines."""

FARTHER = 2.0
"""Ratio of the load's prompts to the longest measured ones from which their time is called an extrapolation."""


@dataclass(frozen=True)
class Capacity(Documented):
    """How many replicas a load needs."""

    plan: Hidden[Plan]
    profile: str
    """Name of the hardware profile."""
    engine: str
    """Name of the engine release."""
    pair: str
    """Name of the model: a target with its drafter."""
    load: UserLoad
    """The users and their goals."""
    basis: Basis
    """Where the speed of one replica comes from: figures of `bench`, or the speed model."""
    source: str
    """The same in words."""
    with_drafts: Sized | None
    """With speculative decoding; null without a drafter, or if nothing is known of it."""
    without_drafts: Sized | None
    """Without speculative decoding; null if nothing is known of it."""
    drafts_pay_below: Annotated[int, Keywords(minimum=1)] | None
    """The least number of sequences at the same time at which drafts are no faster; null if there is none."""
    notes: Sequence[str]
    """Limits of this result, in words."""

    @property
    def sides(self) -> Mapping[str, Sized]:
        """What is known, by the way to draft."""
        both = {WITH: self.with_drafts, WITHOUT: self.without_drafts}
        return {name: sized for name, sized in both.items() if sized is not None}


DOCUMENTS: Mapping[str, CommandData] = {"capacity": CommandData((Capacity,))}


def capacity(
    directory: Path,
    written: str,
    choice: Choice = DEFAULTS,
    *,
    figures: Path | None = None,
) -> Capacity:
    """The replicas that a load needs, such as `users=200,think=30s,in=1500,out=500,p95_ttft=2s`.

    `figures` is a file of `bench --save` instead of the last run of `bench` in this directory. Raises BadInput for a
    load or file that is not valid, NotPossible if nothing is known of the speed.
    """
    load = parse_load(written)
    made = chosen(directory, choice)
    plain = _without_drafts(made, Deployment(directory)) if made.speculating else made
    _check_length(made, load)
    measured = _figures(directory, made, choice, figures)
    services = _measured(measured, made, plain, load) if measured else _expected(made, plain, load)
    if not services:
        raise NotPossible(
            "nothing is known of the speed here: `bench` has not run, and the speed model does not cover this engine",
            hint="measure it: `dflash-deploy up`, then `dflash-deploy bench --baseline`",
        )
    sides = {name: size(service, load) for name, service in services.items()}
    both = len(services) > 1
    return Capacity(
        made,
        made.profile.name,
        made.engine.name,
        made.pair.name,
        load,
        "bench" if measured else "speed model",
        _source(measured),
        sides.get(WITH),
        sides.get(WITHOUT),
        drafts_pay_below(services[WITH], services[WITHOUT]) if both else None,
        tuple(_notes(made, load, measured, sides)),
    )


def _without_drafts(made: Plan, deployment: Deployment) -> Plan:
    values = {**made.values, Settings.dflash_drafter.name: "off"}
    return make_plan(Choice(edited=values), deployment if deployment.exists() else None)


def _check_length(made: Plan, load: UserLoad) -> None:
    longest, needed = made.settings.max_model_len, load.prompt_tokens + load.answer_tokens
    if longest is not None and needed > longest:
        raise BadInput(
            f"in={load.prompt_tokens} and out={load.answer_tokens} are {needed} tokens, more than "
            f"{Settings.max_model_len}={longest}",
            hint=f"--max-model-len {needed} plans for that length, or use a smaller load",
        )


def _figures(directory: Path, made: Plan, choice: Choice, file: Path | None) -> BenchRun | None:
    """The measured figures of this profile and pair; `None` if there are none."""
    if file is not None:
        found = figures_in(file)
        if found.measured.pair not in {"", made.pair.name}:
            raise BadInput(
                f"{file} has figures of {found.measured.pair}, and the plan is for {made.pair.name}",
                hint="name a file that `bench --save` wrote for these models",
            )
        return found
    deployment = Deployment(directory)
    last = last_figures(deployment) if choice.profile is None and deployment.exists() else None
    fits = last is not None and (last.measured.profile, last.measured.pair) == (made.profile.name, made.pair.name)
    return last if fits else None


def _measured(measured: BenchRun, made: Plan, plain: Plan, load: UserLoad) -> dict[str, Service]:
    """The services behind the figures."""
    rows = rows_below_limit(measured)
    expected = None if made.profile.match.gpus == 0 else prompt_token_seconds(made.profile, made.pair)
    drafted = [row for row in rows if row.drafter and row.mtp == made.uses_mtp_head] if made.speculating else []
    unknown = [row for row in rows if row.drafter is None] if made.speculating else []
    # another endpoint may be another machine
    own = [] if measured.measured.baseline_url else [row for row in rows if row.drafter is False]
    kinds = {WITH: (made, drafted or unknown), WITHOUT: (plain, own)}
    found = {
        name: measured_service(
            kept,
            most_sequences=_most_sequences(plan, load),
            chunk=_chunk(plan),
            prompt_steps=prompt_steps_of(plan),
            prompt_token_s=expected,
        )
        for name, (plan, kept) in kinds.items()
    }
    return {name: service for name, service in found.items() if service is not None}


def _expected(made: Plan, plain: Plan, load: UserLoad) -> dict[str, Service]:
    """The services that the speed model expects; it covers no MTP head."""
    plans = {WITH: made, WITHOUT: plain} if made.drafting else {WITHOUT: plain}
    found = {
        name: expected_service(
            plan.profile,
            plan.pair,
            draft_tokens=plan.settings.draft_tokens,
            most_sequences=_most_sequences(plan, load),
            chunk=_chunk(plan),
            prompt_steps=prompt_steps_of(plan),
        )
        for name, plan in plans.items()
    }
    return {name: service for name, service in found.items() if service is not None}


def _most_sequences(plan: Plan, load: UserLoad) -> int:
    """Sequences at the same time: the setting, and those of the load that the cache has room for."""
    asked = plan.settings.max_num_seqs or USUAL_SEQUENCES
    if plan.memory is None:
        return asked
    return max(min(asked, plan.memory.tokens // (load.prompt_tokens + load.answer_tokens)), 1)


def _chunk(plan: Plan) -> int:
    return plan.settings.max_num_batched_tokens or USUAL_BUDGET


def prompt_steps_of(plan: Plan) -> int:
    """The least steps in which the plan's engine computes a prompt."""
    stateful = plan.pair.shape.linear_attention or plan.pair.shape.sliding_attention
    return plan.engine.kind.stateful_prompt_steps if stateful else 1


def _source(measured: BenchRun | None) -> str:
    if measured is None:
        return "the speed model: bytes, bandwidth and acceptance, not measured"
    names = ", ".join(dict.fromkeys(row.workload for row in measured.rows))
    clients = sorted({row.concurrency for row in measured.rows})
    return f"bench of {measured.measured.at} ({names}; concurrency {', '.join(map(str, clients))})"


def _notes(made: Plan, load: UserLoad, measured: BenchRun | None, sides: Mapping[str, Sized]) -> Iterator[str]:
    """What limits the result."""
    asked, most_sequences = made.settings.max_num_seqs, min(sized.service.most_sequences for sized in sides.values())
    if asked is not None and most_sequences < asked:
        tokens = load.prompt_tokens + load.answer_tokens
        room = f"the KV cache has room for {most_sequences} requests of {tokens} tokens"
        yield f"{room}, fewer than {Settings.max_num_seqs}={asked}"
    if measured is None:
        yield "the speed model is off by up to a fifth, and acceptance by more: `bench --baseline` measures both"
        return
    yield from _of_figures(made, load, measured)
    known = min(sized.service.most_known for sized in sides.values())
    if most_sequences > known and any(sized.users_of_one > known for sized in sides.values()):
        beyond = f"steps with more than {known:.0f} sequences are extrapolated"
        yield f"{beyond}: measure up to {most_sequences} of them with `bench --concurrency`"
    if made.speculating and len(sides) == 1:
        missing = WITHOUT if WITH in sides else WITH
        yield f"{missing} nothing was measured: `bench --baseline` measures both"


def _of_figures(made: Plan, load: UserLoad, measured: BenchRun) -> Iterator[str]:
    other = [
        f"{name}={value}" for name, value in measured.measured.settings.items() if made.values.get(name, "") != value
    ]
    if other:
        yield f"measured with other settings: {', '.join(other)}"
    longest = _longest_prompt(measured.rows)
    if load.prompt_tokens > FARTHER * longest:
        how = "from their line" if prompts_tell(measured.rows) else "in proportion, or as the speed model expects"
        yield (
            f"the measured prompts have up to {longest:.0f} tokens: the time of {load.prompt_tokens} is extrapolated "
            f"{how}; `bench --prompts` measures yours"
        )


def _longest_prompt(rows: Sequence[BenchRow]) -> float:
    return max((row.input_tokens / row.requests for row in rows if row.requests), default=0.0)
