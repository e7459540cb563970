"""Facts about hardware, models and engines, as YAML. The schema describes each field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.catalog.hardware import Profile
    from dflash_deploy.catalog.load import Catalog, load_catalog
    from dflash_deploy.catalog.models import ModelPair, Questions
    from dflash_deploy.catalog.releases import EngineRelease
else:
    __getattr__ = lazily(
        __name__,
        {
            ".hardware": ("Profile",),
            ".load": ("Catalog", "load_catalog"),
            ".models": ("ModelPair", "Questions"),
            ".releases": ("EngineRelease",),
        },
    )

__all__ = ["Catalog", "EngineRelease", "ModelPair", "Profile", "Questions", "load_catalog"]
