"""Restart a deployment without its drafter, or with another one, for as long as a comparison lasts.

If several machines serve together, only rank 0 answers requests; `refuse_other_ranks` refuses the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.operations.reporter import Reporter
from dflash_deploy.plan.result import Plan
from dflash_deploy.planning import plan_with
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.progress import show_redacted
from dflash_deploy.startup.restore import temporary_settings


def check_speculating(plan: Plan, lacks: str = "there is nothing to compare with") -> None:
    """Raise NotPossible if a deployment has no drafts to leave out; `lacks` says what is missing."""
    if not plan.speculating:
        raise NotPossible(
            f"this deployment runs without speculative decoding: {lacks}",
            hint=f"name the drafter in {Settings.dflash_drafter} of .env, then `dflash-deploy up`",
        )


def without_drafts(deployment: Deployment) -> Plan:
    """Return the plan of a deployment without its drafter; `.env` does not change."""
    return plan_with(deployment, {Settings.dflash_drafter.name: "off"})


@contextmanager
def restarts(
    deployment: Deployment, plan: Plan, *, patience: float, reporter: Reporter
) -> Iterator[Callable[[Plan], None]]:
    """Let the block restart the engine with other plans; afterwards it runs `plan` again.

    Call it from the main thread of a program. Raises EngineNotReady.
    """
    display = partial(show_redacted, reporter.starting, deployment.redact)
    with temporary_settings(deployment, plan, patience=patience, display=display) as restart_with:

        def restart(other: Plan) -> None:
            reporter.note(f"restarting the engine {_with_what(other)}")
            restart_with(other)

        yield restart
        reporter.note(f"restarting it {_with_what(plan)}")


def _with_what(plan: Plan) -> str:
    return "with its drafter" if plan.drafting else "with its MTP head" if plan.uses_mtp_head else "without drafts"


def refuse_other_ranks(plan: Plan) -> None:
    """Raise BadInput on a machine that computes for rank 0 and answers no requests."""
    if not plan.settings.answers_requests:
        raise BadInput(
            f"this machine is rank {plan.settings.node_rank}: only rank 0 answers requests",
            hint="run it in the deployment of rank 0",
        )
