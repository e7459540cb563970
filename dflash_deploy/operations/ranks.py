"""Several machines that serve together: only rank 0 answers requests."""

from __future__ import annotations

from dflash_deploy.errors import BadInput
from dflash_deploy.plan import Plan


def refuse_other_ranks(plan: Plan) -> None:
    """Raise BadInput on a machine that computes for rank 0 and answers no requests."""
    if not plan.settings.answers_requests:
        raise BadInput(
            f"this machine is rank {plan.settings.node_rank}: only rank 0 answers requests",
            hint="run it in the deployment of rank 0",
        )
