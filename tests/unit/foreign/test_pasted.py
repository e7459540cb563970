"""What people paste, by kind: each input of pasted.yaml becomes the settings that it means, or is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.foreign.items import HasLogic, RecipeRefused, SeveralEngines
from dflash_deploy.operations.foreign import ForeignPlan, plan_from
from dflash_deploy.plan.result import Choice
from tests.support.machines import MACHINES

PASTED: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("pasted.yaml").read_text(encoding="utf-8"))


def name_of(entry: dict[str, Any]) -> str:
    return f"{entry['kind']}: {entry['name']}"


def read(entry: dict[str, Any]) -> ForeignPlan:
    profile = entry.get("profile", "h100")
    return plan_from(entry["text"], Choice(profile=profile), MACHINES[profile], service=entry.get("service", ""))


@pytest.mark.parametrize("entry", [one for one in PASTED if "refused" not in one], ids=name_of)
def test_it_becomes_what_it_means(entry: dict[str, Any]) -> None:
    found = read(entry)
    assert found.model == entry["model"]
    assert dict(found.choice.edited) == {name: str(value) for name, value in entry.get("settings", {}).items()}
    rows = {row.name: (row.fate, row.why) for row in found.items}
    for name, fate in entry.get("fates", {}).items():
        assert rows[name][0] == fate, rows[name]
    for name, why in entry.get("says", {}).items():
        assert why in rows[name][1]
    shown = repr((found.items, found.choice))
    assert not [secret for secret in entry.get("secrets", ()) if secret in shown]
    if found.plan is not None:
        assert [one.id for one in found.plan.errors] == entry.get("errors", [])
    assert entry.get("failure", "") in str(found.failure or "")


@pytest.mark.parametrize("entry", [one for one in PASTED if "refused" in one], ids=name_of)
def test_it_is_named_with_the_way_out(entry: dict[str, Any]) -> None:
    with pytest.raises(RecipeRefused) as refusal:
        read(entry)
    assert entry["refused"] in refusal.value.message
    assert entry["hint"] in (refusal.value.hint or "")
    assert isinstance(refusal.value, HasLogic) == ("--dry-run-script" in entry["hint"])
    assert isinstance(refusal.value, SeveralEngines) == ("--service" in entry["hint"])


def test_two_of_our_own_for_each_kind() -> None:
    kinds = {entry["kind"] for entry in PASTED}
    own = [entry["kind"] for entry in PASTED if entry["name"].startswith("own ")]
    assert all(own.count(kind) >= 2 for kind in kinds)
