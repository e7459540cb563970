"""What can be tuned: a deployment with a drafter whose drafts are counted, and the numbers that make sense for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from dflash_deploy.cli.tuning import Tuning
from dflash_deploy.errors import NotPossible

if TYPE_CHECKING:
    from dflash_deploy.bench.sweep import Sweep
    from dflash_deploy.bench.workload import Workload
    from dflash_deploy.cli.measured import Deployed
    from dflash_deploy.plan import Plan

MOST_STREAMS = 16
"""Up to here each power of two is measured where nobody says which numbers of streams count."""


def tuning_of(
    subject: Deployed, sweep: Sweep, counts: Sequence[int], *, scheduling: bool, sequences: bool = False
) -> Tuning:
    """What is to be measured; without `counts` one draft token and as many as the drafter's block holds.

    Raises NotPossible where there is no drafter to tune, the engine does not count its drafts, or more is asked for
    than it has slots or the drafter tokens.
    """
    plan = subject.plan
    check_tunable(plan)
    most = plan.pair.drafter.block_size - 1
    if any(not 1 <= count <= most for count in counts):
        raise NotPossible(
            f"the drafter {plan.pair.drafter.repo or plan.pair.name} makes 1 to {most} draft tokens a step",
            hint=f"like this: --draft-tokens 1,{most}",
        )
    slots = slots_of(plan)
    if max(sweep.concurrency) > slots:
        raise NotPossible(
            f"the engine answers {slots} requests at the same time, not {max(sweep.concurrency)}",
            hint=f"leave out the streams above {slots}, or raise MAX_NUM_SEQS in .env",
        )
    tuning = Tuning(subject, sweep, tuple(sorted(set(counts) or {1, most})), slots, scheduling, sequences)
    if len({*tuning.counts, tuning.current_count or tuning.counts[0]}) < 2 <= most:
        raise NotPossible(
            "one number of draft tokens says nothing about others", hint=f"measure two: --draft-tokens 1,{most}"
        )
    # what the rules refuse is better said before the engine is stopped for it
    for _, changes in tuning.steps:
        for finding in tuning.plan_with(changes).errors:
            raise NotPossible(finding.message, hint=finding.fix)
    return tuning


def check_tunable(plan: Plan) -> None:
    """Raises NotPossible where there is no drafter, or nobody counts its drafts."""
    if plan.uses_mtp_head:
        raise NotPossible(
            "tune is for a drafter; .env has the target's own MTP head",
            hint="compare by hand: another DFLASH_NUM_SPEC_TOKENS in .env, `up`, `bench --baseline`",
        )
    if not plan.drafting:
        raise NotPossible(
            "this deployment decodes plainly: there is no drafter to tune",
            hint="name the drafter in DFLASH_DRAFTER of .env, then `dflash-deploy up`",
        )
    if plan.engine.engine != "vllm":
        raise NotPossible(
            f"{plan.engine.title} does not count accepted drafts as tune reads them, position by position",
            hint="compare by hand: another DFLASH_NUM_SPEC_TOKENS in .env, `up`, `bench --baseline`",
        )


def slots_of(plan: Plan) -> int:
    """MAX_NUM_SEQS, or what is measured at the most where it is left to the engine, which then has more."""
    written = plan.values.get("MAX_NUM_SEQS", "")
    return int(written) if written.isdigit() else MOST_STREAMS


def usual_streams(plan: Plan) -> tuple[int, ...]:
    """The powers of two that the engine has slots for."""
    return tuple(2**power for power in range(5) if 2**power <= min(slots_of(plan), MOST_STREAMS))


def knows_schedules(plan: Plan) -> bool:
    """Whether the engine makes fewer draft tokens where more sequences share a step."""
    from dflash_deploy.serve.engines.vllm import FIRST_WITH_SCHEDULE, minor_version

    return plan.engine.engine == "vllm" and minor_version(plan.engine_version) >= FIRST_WITH_SCHEDULE


def pooled(workloads: Sequence[Workload]) -> Workload:
    """Several workloads as one, a prompt of each in turn: one setting is to suit them all."""
    from dflash_deploy.bench.workload import Workload

    turns = chain.from_iterable(zip_longest(*(one.questions for one in workloads)))
    name, source = (" + ".join(parts) for parts in zip(*((one.name, one.source) for one in workloads), strict=True))
    return Workload(name, source, tuple(question for question in turns if question is not None))
