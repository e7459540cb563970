"""What is known about hardware, model pairs and engines, as YAML; `schema` says what each field means."""

from dflash_deploy.catalog.load import Catalog, load_catalog
from dflash_deploy.catalog.schema import EngineRelease, ModelPair, Profile

__all__ = ["Catalog", "EngineRelease", "ModelPair", "Profile", "load_catalog"]
