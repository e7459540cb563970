"""The figures that the last run of `tune` left in the deployment."""

from __future__ import annotations

from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import FileRefused
from dflash_deploy.intake import MIB
from dflash_deploy.intake.documents import TuneEvidence
from dflash_deploy.intake.state import read_state

LARGEST_EVIDENCE = 16 * MIB

EVIDENCE = "tune.json"
"""In `.dflash/`: the figures that the last run decided on."""


def last_evidence(deployment: Deployment) -> TuneEvidence | None:
    """The figures of the last run; `None` if there was none, or its file was changed."""
    try:
        return read_state(deployment.state / EVIDENCE, TuneEvidence, limit=LARGEST_EVIDENCE)
    except FileRefused:
        return None


def head_beside_drafter(deployment: Deployment, pair: str) -> str:
    """What `tune` found about the MTP head of this pair, in words; empty if it did not measure it."""
    evidence = last_evidence(deployment)
    if evidence is None or evidence.data.head is None or evidence.data.measured.pair != pair:
        return ""
    return f"{evidence.data.head.sentence} (tune, {evidence.data.measured.at})"
