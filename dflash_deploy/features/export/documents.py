"""The `data` of `export`. No key is in any document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from dflash_deploy.schemas.common import DocumentedDict
from dflash_deploy.schemas.table import CommandData


class ExportKubernetesData(DocumentedDict):
    """The kustomize folder that `export kubernetes` wrote."""

    directory: str
    """Where it is."""
    files: list[str]
    """Their paths below the directory."""
    name: str
    """Name of the Deployment and of the Service; the other objects begin with it."""
    replicas: Annotated[int, Field(ge=1)]
    """Pods, each with one engine."""
    weights: Literal["host-path", "claim"]
    """Where pods find the weights: in directories of each node, or in a claim."""
    image: str
    """Image of the engine."""
    image_pinned: bool
    """Whether the image is named by its digest."""
    image_note: str
    """What the nodes lack of the image; empty if it is named by its digest."""
    secret_command: str
    """The line that creates the Secret with the API keys. It has none itself: it reads .env."""
    router_secret_command: str
    """The line that creates the Secret of the router before several replicas; empty with one."""


class ExportComposeData(DocumentedDict):
    """The folder that `export compose` wrote."""

    directory: str
    """Where it is."""
    files: list[str]
    """Their paths below the directory."""
    name: str
    """Name of the Compose project."""
    services: list[str]
    """Its services: one engine, or several with their router, and a door."""
    images: list[str]
    """Their images."""
    locked: list[str]
    """The roles whose weights the folder's lock has: target, drafter."""


class ManifestDifference(DocumentedDict):
    """One value in which the folder differs from the deployment."""

    file: str
    """The file, below the directory."""
    place: str
    """Where in its document, such as data.MAX_NUM_SEQS; empty for the whole file."""
    folder: str
    """The value in the folder; `missing` if it has none."""
    plan: str
    """The value that an export writes today; `missing` if it writes none."""


class ExportCheckData(DocumentedDict):
    """What `--check` found."""

    directory: str
    """The folder."""
    differs: list[ManifestDifference]
    """Each value that differs; empty if an export would change nothing."""


DOCUMENTS: Mapping[str, CommandData] = {
    "export kubernetes": CommandData((ExportKubernetesData, ExportCheckData)),
    "export compose": CommandData((ExportComposeData, ExportCheckData)),
}
