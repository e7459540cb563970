"""`down`: stop the deployment."""

from __future__ import annotations

from dataclasses import asdict

from dflash_deploy.cli.display import Terminal
from dflash_deploy.cli.options import HERE, Directory, Json
from dflash_deploy.cli.report import Report, command
from dflash_deploy.operations.running import stop


@command
def down(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Stop and remove the engine. Weights, settings and caches stay."""
    done = stop(directory, reporter=Terminal())
    said = "stopped; weights and settings stay" if done.stopped else "nothing was running"
    return Report(asdict(done), (said,))
