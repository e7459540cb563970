"""A start that `fleet watch` owes: it stopped the ranks, or could not start them. It survives the watch that ends.

Without the file a later watch would take the stopped ranks for an engine that was stopped on purpose, and wait.
"""

from __future__ import annotations

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.intake.state import read_state_text, remove_state

NAME = "owed-start"
"""File in `.dflash/` with the reason, in one line."""

LONGEST = 4096
"""Bytes of the reason."""


def owe_start(deployment: Deployment, why: str) -> None:
    """Record that the ranks must start, and why they do not run."""
    write_if_changed(deployment.make_state() / NAME, f"{' '.join(why.split())[:1000]}\n", mode=PRIVATE)


def owed_start(deployment: Deployment) -> str:
    """Return why the ranks do not run and must start; empty if nothing is owed."""
    return (read_state_text(deployment.state / NAME, limit=LONGEST) or "").strip()


def settle_start(deployment: Deployment) -> None:
    """Forget it: the ranks run, or were stopped on purpose."""
    remove_state(deployment.state / NAME)
