"""What an upgrade keeps in `.dflash/`: the settings that the program chose, and an upgrade that has not ended.

`planned.json` is written with `.env`: a setting of `.env` with another value is the user's own. `upgrade.json` says how
far an upgrade is. It is written before each step, so after a kill `upgrade` continues or goes back. `upgrade.room`
takes space that going back needs if the disk fills up meanwhile.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from dflash_deploy import __version__
from dflash_deploy.deployment.directory import Change, Deployment
from dflash_deploy.deployment.files import LOCK_FILE, PRIVATE, PUBLIC, write_atomically, write_if_changed
from dflash_deploy.intake.documents import PlannedSettings, UpgradeState, read_state, remove_state
from dflash_deploy.intake.files import MIB
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.plan.result import Plan

PLANNED, UPGRADE, ROOM = "planned.json", "upgrade.json", "upgrade.room"

LARGEST = 4 * MIB
"""Bytes of a state file: dflash.lock is in it."""

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
    """Return the settings that the program chose for `.env`; `None` if an older program wrote it."""
    return read_state(deployment.state / PLANNED, PlannedSettings, limit=LARGEST)


def reserve_room(deployment: Deployment) -> None:
    """Take space for the way back: the files of a deployment, and the beginning of an engine's log."""
    # a file system that compresses keeps all of it too
    write_atomically(deployment.make_state() / ROOM, secrets.token_hex(MIB // 2), mode=PRIVATE)


def give_up_room(deployment: Deployment) -> None:
    """Free the space for the way back, if it is still taken."""
    remove_state(deployment.state / ROOM)


def remember_upgrade(deployment: Deployment, state: UpgradeState) -> None:
    """Save the step of an upgrade, before it begins."""
    write_atomically(deployment.make_state() / UPGRADE, f"{state.model_dump_json()}\n", mode=PRIVATE)


def unfinished_upgrade(deployment: Deployment) -> UpgradeState | None:
    """Return the upgrade that has not ended; `None` if there is none."""
    return read_state(deployment.state / UPGRADE, UpgradeState, limit=LARGEST)


def differences(state: UpgradeState, deployment: Deployment, *, back: bool) -> tuple[Change, ...]:
    """Return the settings of `.env` that differ from those before an upgrade, or without `back` from its new ones."""
    rows = (
        Change(name, old if back else new, deployment.values.get(name, ""))
        for name, (old, new) in state.changes.items()
    )
    return tuple(row for row in rows if row.good != row.now)


def settle_upgrade(deployment: Deployment, state: UpgradeState, *, kept: bool) -> None:
    """Forget an upgrade once `.env` is right. `kept`: its settings are the ones to compare with from now on.

    If it is not kept, dflash.lock is as it was before.
    """
    give_up_room(deployment)
    if kept:
        remember_planned(deployment, state.planned)
        if deployment.next_entry.exists():
            deployment.next_entry.replace(deployment.entry)
    else:
        deployment.next_entry.unlink(missing_ok=True)
        if state.lock:
            write_if_changed(deployment.directory / LOCK_FILE, state.lock, mode=PUBLIC)
    remove_state(deployment.state / UPGRADE)
