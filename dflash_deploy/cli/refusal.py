"""The line that says that a plan would be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_deploy.plan import Plan


def refusal_of(plan: Plan) -> tuple[str, ...]:
    """One line if `up` would refuse the plan; nothing otherwise."""
    count = len(plan.errors)
    said = "an error" if count == 1 else f"{count} errors"
    return (f"refused  `dflash-deploy up` will not start this: {said} below",) if count else ()
