"""The figures of `bench`: those that its last run left in the deployment, and those in a file of `bench --save`."""

from __future__ import annotations

from pathlib import Path

from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.errors import BadInput, FileRefused
from dflash_deploy.intake import MIB, Invalid, read_argument
from dflash_deploy.intake.documents import BenchFigures, BenchRun, parse_document
from dflash_deploy.intake.files import shown
from dflash_deploy.intake.state import read_state

LARGEST_FIGURES = 16 * MIB

LAST_FIGURES = "bench.json"
"""In `.dflash/`: the figures of the last run."""


def keep_figures(deployment: Deployment, text: str) -> None:
    """Keep the document of a run of `bench`, for `plan --load`. Raises OSError if it cannot be written."""
    write_atomically(deployment.make_state() / LAST_FIGURES, text, mode=PRIVATE)


def last_figures(deployment: Deployment) -> BenchRun | None:
    """The figures of the last run; `None` if there was none, or its file was changed."""
    try:
        kept = read_state(deployment.state / LAST_FIGURES, BenchFigures, limit=LARGEST_FIGURES)
    except FileRefused:
        return None
    return None if kept is None else kept.data


def figures_in(path: Path) -> BenchRun:
    """The figures in a file. Raises BadInput if it is not one of `bench`."""
    hint = "name a file that `bench --save` wrote"
    try:
        return parse_document(read_argument(path, limit=LARGEST_FIGURES), BenchFigures, limit=LARGEST_FIGURES).data
    except FileRefused as problem:
        raise BadInput(f"{shown(path)} cannot be read: {problem.message}", hint=hint) from None
    except Invalid as problem:
        raise BadInput(f"{shown(path)} {problem}", hint=hint) from None
