"""The options of a release, as its own parser knows them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dflash_deploy.catalog.schema import Entry


class ReleaseOptions(Entry):
    """Every spelling of every option of one release."""

    release: Annotated[str, Field(description="name of the engine release")]
    options: Annotated[str, Field(min_length=1, description="the names, between spaces")]
