"""The experiment of `tune`: a deployment with a drafter, and the numbers of draft tokens to try.

Only an engine that counts drafts by position can be tuned. A target with an MTP head is also measured with that head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from dflash_deploy.bench.sweep import Sweep
from dflash_deploy.bench.workload import Workload
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import NotPossible
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_with
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import MTP

MOST_CONCURRENT = 16
"""Up to here each power of two is measured if no concurrency is asked for."""

AS_IT_IS = "as .env has it"
OFF = {Settings.dflash_drafter.name: "off"}

HEAD_COUNT = 2
"""Draft tokens of the MTP head that are measured unless others are asked for."""

OWN_PROMPT = 512
"""Tokens kept for the workload's own prompts; those that are packaged have up to 300."""

_BY_HAND = f"compare by hand: another {Settings.dflash_num_spec_tokens} in .env, `up`, `bench --baseline`"


@dataclass(frozen=True)
class Experiment:
    """One deployment and what is measured of it.

    `counts` are the numbers of draft tokens to try. `max_num_seqs` is MAX_NUM_SEQS, or MOST_CONCURRENT if that is left
    to the engine. `scheduling` allows to propose a schedule. `head_counts` are the numbers of draft tokens to measure
    with the target's MTP head.
    """

    deployment: Deployment
    plan: Plan
    sweep: Sweep
    counts: tuple[int, ...]
    max_num_seqs: int
    scheduling: bool
    head_counts: tuple[int, ...] = ()

    @property
    def steps(self) -> list[tuple[str, Mapping[str, str]]]:
        """Title and changes of each setting that is measured before anything is decided."""
        now = self.current_count
        rest = [(title_of(count), fixed(count)) for count in self.counts if count != now]
        heads = [(title_of_head(count), mtp_head(count)) for count in self.head_counts]
        return [(AS_IT_IS if now is None else title_of(now), {}), *rest, *heads, ("no drafter", OFF)]

    @property
    def current_count(self) -> int | None:
        """Draft tokens per step as `.env` has it; `None` if their number follows a schedule."""
        settings = self.plan.settings
        return None if settings.dflash_spec_schedule else settings.draft_tokens

    def plan_with(self, changes: Mapping[str, str]) -> Plan:
        """The plan of the deployment with some settings changed."""
        if not changes:
            return self.plan
        return plan_with(self.deployment, changes)


def prepare(
    deployment: Deployment,
    plan: Plan,
    sweep: Sweep,
    counts: Sequence[int],
    *,
    scheduling: bool,
    heads: Sequence[int] | None = None,
) -> Experiment:
    """The experiment, with `counts` or with 1 and the most draft tokens. Raises NotPossible.

    `heads` are numbers of draft tokens for the target's MTP head; `None`: HEAD_COUNT if the files show that it has one.
    """
    check_tunable(plan)
    most = plan.pair.drafter.most_draft_tokens
    if any(not 1 <= count <= most for count in counts):
        raise NotPossible(
            f"the drafter {plan.pair.drafter.repo or plan.pair.name} makes 1 to {most} draft tokens a step",
            hint=f"such as --draft-tokens 1,{most}",
        )
    limit = _max_num_seqs(plan)
    if max(sweep.concurrency) > limit:
        raise NotPossible(
            f"the engine answers {limit} requests at the same time, not {max(sweep.concurrency)}",
            hint=f"leave out concurrency above {limit}, or raise {Settings.max_num_seqs} in .env",
        )
    _check_context(plan, sweep)
    wanted = tuple(sorted(set(counts) or {1, most}))
    experiment = Experiment(deployment, plan, sweep, wanted, limit, scheduling)
    if len({*wanted, experiment.current_count or wanted[0]}) < 2 <= most:
        raise NotPossible(
            "one number of draft tokens says nothing about others", hint=f"measure two: --draft-tokens 1,{most}"
        )
    if heads is None:
        heads = (HEAD_COUNT,) if _has_head(experiment.plan_with(mtp_head(HEAD_COUNT))) else ()
    experiment = replace(experiment, head_counts=tuple(sorted(set(heads))))
    # engine and rules are checked before the engine is stopped
    for _, changes in experiment.steps:
        engine_command(experiment.plan_with(changes))
        for finding in experiment.plan_with(changes).errors:
            raise NotPossible(finding.message, hint=finding.fix)
    return experiment


def _check_context(plan: Plan, sweep: Sweep) -> None:
    """Raises NotPossible if the context has no room for the text, a prompt of usual length, and its answer."""
    limit = plan.settings.max_model_len
    if sweep.context and limit is not None and (room := limit - sweep.limits.max_tokens - OWN_PROMPT) < sweep.context:
        raise NotPossible(
            f"{sweep.context:,} tokens before a prompt with its answer of {sweep.limits.max_tokens} do not fit "
            f"{Settings.max_model_len}={limit}",
            hint=f"--context {room} fits" if room > 0 else "use shorter answers: --max-tokens",
        )


def check_tunable(plan: Plan) -> None:
    """Raises NotPossible without a drafter, and for an engine without counters of drafts by position."""
    if plan.uses_mtp_head:
        raise NotPossible("tune is for a drafter; .env has the target's MTP head", hint=_BY_HAND)
    if not plan.drafting:
        raise NotPossible(
            "this deployment runs without speculative decoding: it has no drafter to tune",
            hint=f"name the drafter in {Settings.dflash_drafter} of .env, then `dflash-deploy up`",
        )
    if not plan.engine.kind.counts_by_position:
        raise NotPossible(
            f"{plan.engine.title} has no counters of accepted drafts by position, which tune needs", hint=_BY_HAND
        )


def usual_concurrency(plan: Plan) -> tuple[int, ...]:
    """The powers of two up to MAX_NUM_SEQS and MOST_CONCURRENT."""
    return tuple(2**power for power in range(5) if 2**power <= min(_max_num_seqs(plan), MOST_CONCURRENT))


def knows_schedules(plan: Plan) -> bool:
    """Whether the engine can make fewer draft tokens if more sequences share a step."""
    return plan.engine.kind.schedules_drafts(plan.engine_version)


def pooled(workloads: Sequence[Workload]) -> Workload:
    """Several workloads as one, a prompt of each in turn: one setting must suit them all."""
    turns = chain.from_iterable(zip_longest(*(one.questions for one in workloads)))
    name, source = (" + ".join(parts) for parts in zip(*((one.name, one.source) for one in workloads), strict=True))
    return Workload(name, source, tuple(question for question in turns if question is not None))


def title_of(count: int) -> str:
    """A fixed number of draft tokens in words."""
    return "1 draft token" if count == 1 else f"{count} draft tokens"


def fixed(count: int) -> dict[str, str]:
    """The settings of a fixed number of draft tokens."""
    return {Settings.dflash_num_spec_tokens.name: str(count), Settings.dflash_spec_schedule.name: ""}


def title_of_head(count: int) -> str:
    """A number of draft tokens of the MTP head in words."""
    return f"MTP head, {title_of(count)}"


def mtp_head(count: int) -> dict[str, str]:
    """The settings of this many draft tokens of the target's MTP head."""
    return {Settings.dflash_drafter.name: MTP, **fixed(count)}


def _has_head(plan: Plan) -> bool:
    """Whether the target's files show an MTP head, and nothing forbids to use it."""
    return plan.checkpoints.head is True and not plan.errors


def _max_num_seqs(plan: Plan) -> int:
    return plan.settings.max_num_seqs or MOST_CONCURRENT
