"""The settings, the lock and the keys of a fleet, written into the deployment directory of a host."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_deploy.fleet.session import Session
from dflash_deploy.fleet.shape import Place, env_text, own_settings
from dflash_deploy.intake import read_text
from dflash_deploy.operations.fleet_hosts import OpenFleet, place_here
from dflash_deploy.serve.router.files import KEYS, RouterKeys, keys_document_of
from dflash_deploy.weights.lockfile import LOCK_FILE

NOTHING: Mapping[str, str] = {}


def carry_settings(
    opened: OpenFleet, session: Session, place: Place, changes: Mapping[str, str], forced: Mapping[str, str] = NOTHING
) -> bool:
    """Write `.env`, and `dflash.lock` if there is one, into the deployment directory of a host.

    `changes` are the settings that follow from the shape; those of `fleet.yaml` override them, but not `forced`.
    Returns whether `.env` changed.
    """
    host, deployment = session.host, opened.deployment
    own = {**changes, **own_settings(opened.fleet, host), **forced}
    text = env_text(read_text(deployment.env_file), deployment.values, place_here(), place, own)
    changed = session.send(text.encode(), f"{host.directory}/.env")
    if changed:
        opened.say(host, "settings and the API key are written, mode 0600")
    lock = deployment.directory / LOCK_FILE
    if lock.exists():
        session.send(read_text(lock).encode(), f"{host.directory}/{LOCK_FILE}")
    return changed


def carry_router_keys(session: Session, keys: RouterKeys) -> None:
    """Write the router's keys into the deployment directory of a host: its engine lets the router read its load."""
    session.send(keys_document_of(keys).encode(), f"{session.host.directory}/.dflash/router/{KEYS}")
