"""The options of a release, as its own parser knows them."""

from __future__ import annotations

from functools import cache
from importlib import resources

from dflash_deploy.intake import parse_packaged_yaml


@cache
def options_of(release: str) -> frozenset[str]:
    """Every spelling of every option; empty if the release's parser was not asked."""
    file = resources.files(__package__) / "options.yaml"
    return frozenset(parse_packaged_yaml(file.read_text(encoding="utf-8")).get(release, "").split())
