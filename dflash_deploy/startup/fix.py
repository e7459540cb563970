"""`up --fix`: apply the safe fix of a diagnosis to this deployment's `.env`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dflash_deploy.intake import read_text
from dflash_deploy.plan.sizes import budget_of

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment
    from dflash_deploy.plan import Plan

HALF = "half"
ENOUGH = "enough"


def fix_changes(fix: Mapping[str, str], plan: Plan) -> dict[str, str]:
    """Return the settings of a fix that differ from the plan's; empty if it is already applied or cannot be applied.

    `half` and `enough` are resolved to numbers. A size that is left to the engine cannot be halved.
    """
    wanted = {name: _resolved(name, value, plan) for name, value in fix.items()}
    return {name: value for name, value in wanted.items() if value is not None and value != plan.values.get(name, "")}


def apply_fix(deployment: Deployment, changes: Mapping[str, str]) -> tuple[Deployment, tuple[str, ...]]:
    """Write the settings to `.env`; return the changed deployment and the diff, with secrets redacted."""
    before = _lines(deployment)
    changed = deployment.with_values(changes)
    compared = difflib.unified_diff(before, _lines(changed), ".env.last", ".env", n=0, lineterm="")
    return changed, tuple(map(deployment.redact, (line for line in compared if not line.startswith("@@"))))


def _lines(deployment: Deployment) -> list[str]:
    return read_text(deployment.env_file).splitlines()


def _resolved(name: str, value: str, plan: Plan) -> str | None:
    if value == HALF:
        size = plan.settings.typed.get(name)
        return str(size // 2) if isinstance(size, int) and size > 1 else None
    if value == ENOUGH:
        sequences = plan.settings.max_num_seqs
        return None if sequences is None else str(budget_of(plan.settings, sequences))
    return value
