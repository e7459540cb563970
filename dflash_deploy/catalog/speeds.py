"""Published figures: tokens per second that others measured, for people to compare and for the speed model to meet."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dflash_deploy.catalog.schema import Entry


class PublishedSpeed(Entry):
    """Tokens per second of all streams together."""

    profile: str
    pair: str
    workload: str
    concurrency: Annotated[int, Field(ge=1, description="streams at the same time")]
    draft_tokens: Annotated[int, Field(ge=1, description="per step, the token that the target adds left out")]
    plain: Annotated[float | None, Field(description="without the drafter")] = None
    dflash: Annotated[float, Field(description="with it")]
    acceptance_length: Annotated[float | None, Field(description="of that run, where it was given")] = None
    source: str
