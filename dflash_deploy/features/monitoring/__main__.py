"""Write `monitoring/`, beside the package in a checkout."""

from dflash_deploy.assets import PACKAGE
from dflash_deploy.features.monitoring.files import committed

for name, text in committed().items():
    path = PACKAGE.parent / "monitoring" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
