"""Each generated page and file by its name in docs/reference, and the function that returns its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dflash_deploy.catalog.load import load_catalog
from tools.reference import (
    catalog,
    clients,
    commands,
    diagnosis,
    failures,
    faults,
    monitoring,
    open_routes,
    results,
    rules,
    schemas,
    seeds,
    settings,
    speeds,
    unproven,
)

Pages = Mapping[str, Callable[[], str]]

# What README.md, SECURITY.md, the alerts or editors lead to in the repository: `make generate` writes them.
CHECKED_IN: Pages = {
    "clients.md": clients.page,
    "settings.md": settings.page,
    "profiles.md": lambda: catalog.profiles(load_catalog()),
    "unproven.md": lambda: unproven.page(load_catalog(), results.read()),
    "open-routes.md": open_routes.page,
    "faults.md": lambda: faults.page(faults.shown()),
    "alerts.md": monitoring.alerts,
}

# What only the site has: `tools/site_pages.py` writes them while the site is built.
BUILT: Pages = {
    "commands.md": commands.page,
    "models.md": lambda: catalog.models(load_catalog()),
    "engines.md": lambda: catalog.engines(load_catalog()),
    "results.md": lambda: results.page(load_catalog(), results.read()),
    "speeds.md": lambda: speeds.page(load_catalog().speeds),
    "rules.md": rules.page,
    "seeds.md": seeds.page,
    "failures.md": failures.page,
    "diagnosis.md": diagnosis.page,
    "metrics.md": monitoring.metrics,
    "json.md": schemas.page,
    **dict(schemas.files()),
}
