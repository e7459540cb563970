"""The settings that the program chose for `.env`: one with another value is the user's own, and an upgrade keeps it.

`.dflash/planned.json` is written before `.env`. During an upgrade it has the settings before and the new ones: the
values of `.env` say which of them apply, also after a kill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dflash_deploy import __version__
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import LOCK_FILE, PRIVATE, PUBLIC, write_if_changed
from dflash_deploy.intake.documents import PlannedSettings, SettingsBefore, read_state
from dflash_deploy.intake.files import MIB, read_text
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.plan.result import Plan

PLANNED = "planned.json"

LARGEST = 4 * MIB  # bytes of the file: dflash.lock is in it
_RECIPE = "recipe "


def planned_settings(plan: Plan) -> PlannedSettings:
    """Return the settings of a plan that the program chose: neither those of options nor those of `.env`."""
    chosen = {
        one.name: one.value
        for one in plan.decisions
        if one.value and not one.origin.startswith(("--", ".env")) and one.name != Settings.dflash_image.name
    }
    pair = next(one.origin for one in plan.decisions if one.name == Settings.dflash_pair.name)
    recipe = pair.removeprefix(_RECIPE) if pair.startswith(_RECIPE) else ""
    release = plan.engine.model_dump(mode="json", exclude_defaults=True)
    family = plan.pair.family.model_copy(update={"targets": [plan.pair.target]})
    return PlannedSettings(
        program=__version__,
        recipe=recipe,
        release=release,
        family=family.model_dump(mode="json", exclude_defaults=True),
        values=chosen,
    )


def remember_planned(deployment: Deployment, planned: PlannedSettings) -> None:
    """Save the settings that the program chose for `.env`."""
    write_if_changed(deployment.make_state() / PLANNED, f"{planned.model_dump_json()}\n", mode=PRIVATE)


def planned_before(deployment: Deployment) -> PlannedSettings | None:
    """Return the settings that the program chose for these values; `None` if they are not known.

    A result with `before` is that of an upgrade that has not ended.
    """
    known = read_state(deployment.state / PLANNED, PlannedSettings, limit=LARGEST)
    if known is None or known.before is None:
        return known
    values = deployment.values
    is_new = any(values.get(name, "") == new for name, new in known.before.changes.items())
    return known if is_new else known.before


def begin_upgrade(deployment: Deployment, planned: PlannedSettings, changes: Mapping[str, str]) -> None:
    """Save what the program chose before and now, before `.env` gets these changes."""
    forget_upgrade(deployment)
    known, lock = planned_before(deployment), deployment.directory / LOCK_FILE
    told = {"program": "", "values": {}} if known is None else known.model_dump(exclude={"before"})
    before = SettingsBefore(**told, changes=dict(changes), lock=read_text(lock) if lock.exists() else "")
    remember_planned(deployment, planned.model_copy(update={"before": before}))


def keep_upgrade(deployment: Deployment) -> None:
    """Forget what the program chose before: the settings of an upgrade are good."""
    if known := planned_before(deployment):
        remember_planned(deployment, known.model_copy(update={"before": None}))


def forget_upgrade(deployment: Deployment) -> None:
    """Forget what the program would have chosen, and restore dflash.lock, if `.env` has the settings before."""
    known = planned_before(deployment)
    if isinstance(known, SettingsBefore):
        if known.lock:
            write_if_changed(deployment.directory / LOCK_FILE, known.lock, mode=PUBLIC)
        remember_planned(deployment, PlannedSettings(**known.model_dump(exclude={"changes", "lock"})))
