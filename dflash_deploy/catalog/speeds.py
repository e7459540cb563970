"""Published speeds: tokens per second that other projects measured, to compare with and to check the speed model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dflash_deploy.catalog.read import Entry
from dflash_deploy.catalog.releases import EngineName


class PublishedSpeed(Entry):
    """Tokens per second of all requests together."""

    profile: Annotated[str, Field(description="name of the hardware profile")]
    pair: Annotated[str, Field(description="name of the model: a target with its drafter")]
    workload: Annotated[str, Field(description="what was generated")]
    concurrency: Annotated[int, Field(ge=1, description="requests at the same time")]
    draft_tokens: Annotated[int, Field(ge=1, description="per step, without the token that the target adds")]
    engine: Annotated[EngineName, Field(description="the engine that it was measured with")]
    release: Annotated[str, Field(description="its release as published; empty if not published")] = ""
    sequences: Annotated[
        int | None, Field(ge=1, description="the most at the same time; `null` if as many as requests: others wait")
    ] = None
    plain: Annotated[float | None, Field(description="tokens per second without speculative decoding")] = None
    dflash: Annotated[float, Field(description="tokens per second with the drafter")]
    mtp: Annotated[float | None, Field(description="tokens per second with the target's MTP head instead")] = None
    acceptance_length: Annotated[float | None, Field(description="mean of that run; `null` if not published")] = None
    mtp_acceptance_length: Annotated[float | None, Field(description="the same with the MTP head")] = None
    source: Annotated[str, Field(description="who published it")]

    @property
    def kind(self) -> str:
        """The kind of text that was generated, without its conditions: only these are compared."""
        return self.workload.partition(",")[0]

    @property
    def measured_with(self) -> str:
        """The engine and its release."""
        return f"{self.engine} {self.release}".strip()

    @property
    def queued(self) -> bool:
        """Whether some of its requests waited for others, which is slower than that concurrency."""
        return self.sequences is not None and self.sequences < self.concurrency
