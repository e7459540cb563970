"""Facts about hardware, models and engines, as YAML. The schema describes each field."""

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import Catalog, load_catalog
from dflash_deploy.catalog.models import ModelPair, Questions
from dflash_deploy.catalog.releases import EngineRelease

__all__ = ["Catalog", "EngineRelease", "ModelPair", "Profile", "Questions", "load_catalog"]
