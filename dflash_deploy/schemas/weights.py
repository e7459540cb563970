"""The `data` of `pull` and `models convert gguf`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from dflash_deploy.schemas.common import Count, Documented


class FetchedData(Documented):
    """One model on disk."""

    role: Literal["target", "drafter"]
    """What the model is for."""
    repo: str
    """Repository id on the Hugging Face Hub."""
    commit: str
    """Commit of the repository."""
    directory: str
    """Directory that has the files."""
    bytes: Count
    """Size of all files in bytes."""
    there: Count
    """Files that were present already."""
    reused: Count
    """Files that came from the cache of the Hub client."""
    fetched: Count
    """Files that were downloaded."""


class PullData(Documented):
    """The models of the deployment, present and verified."""

    models: list[FetchedData]
    """Target and drafter; empty if both come with dflash-deploy."""


class PullWrongData(Documented):
    """What `--offline` and `--verify` found."""

    wrong: dict[str, str]
    """Each file that differs from dflash.lock, with the problem; empty if all match."""


class PullMovedData(Documented):
    """What `--check` found."""

    moved: dict[str, list[str]]
    """Each repository with a newer commit, with the locked files that it changes; empty if there is none."""


class PullToData(Documented):
    """What `--to` copied."""

    to: str
    """Directory that has the weights and dflash.lock now."""


PullFromData = TypedDict(
    "PullFromData", {"from": Annotated[str, Field(description="Directory that the weights and dflash.lock came from.")]}
)
PullFromData.__doc__ = "What `--from` copied."


class ConvertData(Documented):
    """The GGUF that `models convert gguf` wrote."""

    file: str
    """Path of the file."""
    bytes: Count
    """Size of the file in bytes."""
    architecture: str
    """`general.architecture` in its header, which decides which engine reads it."""
    form: str
    """Quantization, such as `Q8_0`."""
