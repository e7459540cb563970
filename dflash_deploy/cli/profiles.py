"""`profiles`: the hardware that the catalog knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.cli.report import Json, Report, verb

if TYPE_CHECKING:
    from rich.console import RenderableType


@verb
def profiles(as_json: Json = False) -> Report:
    """List hardware profiles and model pairs, and which profile fits this machine."""
    from rich import box
    from rich.table import Table

    from dflash_deploy.catalog import load_catalog
    from dflash_deploy.host import read_facts
    from dflash_deploy.plan.choose import fits

    catalog, facts = load_catalog(), read_facts()
    rows = [
        {
            "name": profile.name,
            "title": profile.title,
            "pair": profile.pair,
            "engine": profile.engine,
            "evidence": profile.evidence.state,
            "fits": fits(profile, facts),
        }
        for profile in catalog.profiles.values()
    ]
    table = Table("profile", "for", "pair", "known", "fits here", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(
            str(row["name"]), str(row["title"]), str(row["pair"]), str(row["evidence"]), "yes" if row["fits"] else ""
        )
    pairs = [{"name": pair.name, "title": pair.title} for pair in catalog.pairs.values()]
    shown: tuple[RenderableType, ...] = (table, "", *(f"pair {pair['name']}: {pair['title']}" for pair in pairs))
    return Report({"profiles": rows, "pairs": pairs}, shown)
