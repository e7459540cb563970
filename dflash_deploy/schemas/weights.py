"""The `data` of `pull` and `models convert gguf`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from dflash_deploy.schemas.common import DocumentedDict


class PullWrongData(DocumentedDict):
    """What `--offline` and `--verify` found."""

    wrong: dict[str, str]
    """Each file that differs from dflash.lock, with the problem; empty if all match."""


class PullMovedData(DocumentedDict):
    """What `--check` found."""

    moved: dict[str, list[str]]
    """Each repository with a newer commit, with the locked files that it changes; empty if there is none."""


class PullToData(DocumentedDict):
    """What `--to` copied."""

    to: str
    """Directory that has the weights and dflash.lock now."""


PullFromData = TypedDict(
    "PullFromData", {"from": Annotated[str, Field(description="Directory that the weights and dflash.lock came from.")]}
)
PullFromData.__doc__ = "What `--from` copied."
