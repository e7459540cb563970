"""Published speeds: tokens per second that other projects measured, to compare with and to check the speed model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dflash_deploy.catalog.schema import Entry


class PublishedSpeed(Entry):
    """Tokens per second of all requests together."""

    profile: Annotated[str, Field(description="name of the hardware profile")]
    pair: Annotated[str, Field(description="name of the model: a target with its drafter")]
    workload: Annotated[str, Field(description="what was generated")]
    concurrency: Annotated[int, Field(ge=1, description="requests at the same time")]
    sequences: Annotated[
        int | None, Field(ge=1, description="max_num_seqs, if fewer than the requests; the others waited")
    ] = None
    draft_tokens: Annotated[int, Field(ge=1, description="per step, without the token that the target adds")]
    plain: Annotated[float | None, Field(description="tokens per second without speculative decoding")] = None
    dflash: Annotated[float, Field(description="tokens per second with the drafter")]
    mtp: Annotated[float | None, Field(description="tokens per second with the target's MTP head instead")] = None
    acceptance_length: Annotated[float | None, Field(description="mean of that run; `null` if not published")] = None
    mtp_acceptance_length: Annotated[float | None, Field(description="the same with the MTP head")] = None
    source: Annotated[str, Field(description="who published it")]
