"""`down`: stop the deployment."""

from __future__ import annotations

from dflash_deploy.cli.command import command, terminal
from dflash_deploy.cli.options import HERE, Directory, Json, Replica
from dflash_deploy.cli.shown import Report


@command(changes=True, examples=("down", "down --dir /srv/vision"))
def down(directory: Directory = HERE, replica: Replica = None, as_json: Json = False) -> Report:
    """Stop and remove the engine. Weights, settings and caches stay."""
    from dflash_deploy.operations.down import stop

    done = stop(directory, replica=replica, reporter=terminal())
    said = "stopped; weights and settings stay" if done.stopped else "nothing was running"
    return Report(done, (said,))
