"""`render`: write compose.yaml from .env."""

from __future__ import annotations

from dflash_deploy.cli.command import command
from dflash_deploy.cli.options import HERE, Directory, Json
from dflash_deploy.cli.shown import Report


@command(changes=True, examples=("render", "render --dir /srv/vision"))
def render(directory: Directory = HERE, as_json: Json = False) -> Report:
    """Write compose.yaml and the image's build context from .env. `up` does the same by itself."""
    from dflash_deploy.operations.plan import render as run_render

    done = run_render(directory)
    said = "wrote" if done.changed else "unchanged:"
    return Report(done, (f"{said} {done.file}",), done.plan.findings)
