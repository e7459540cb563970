"""Pages of the reference that are generated from the program; `make generate` writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

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

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "clients.md": clients.page,
    "commands.md": commands.page,
    "settings.md": settings.page,
    "profiles.md": lambda: catalog.profiles(load_catalog()),
    "models.md": lambda: catalog.models(load_catalog()),
    "engines.md": lambda: catalog.engines(load_catalog()),
    "speeds.md": lambda: speeds.page(load_catalog().speeds),
    "rules.md": rules.page,
    "seeds.md": seeds.page,
    "unproven.md": lambda: unproven.page(load_catalog(), results.read()),
    "results.md": lambda: results.page(load_catalog(), results.read()),
    "failures.md": failures.page,
    "diagnosis.md": diagnosis.page,
    "open-routes.md": open_routes.page,
    "faults.md": lambda: faults.page(faults.shown()),
    "alerts.md": monitoring.alerts,
    "metrics.md": monitoring.metrics,
    "json.md": schemas.page,
    **dict(schemas.files()),
}
"""Each generated page and file by its name in docs/reference, and the function that returns its text."""
