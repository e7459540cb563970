"""Calls of Docker Compose for one deployment."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.errors import EngineNotReady, FileRefused, SettingsRefused
from dflash_deploy.runtime.protocol import Narrate

if TYPE_CHECKING:
    from dflash_deploy.deployment import Deployment

STOP_GRACE = 45
"""Seconds a container gets to stop before it is killed; the same as in compose/base.yaml."""

_NAMES_A_FILE = frozenset({"COMPOSE_FILE", "COMPOSE_ENV_FILES", "COMPOSE_PROJECT_NAME"})


def compose_command(deployment: Deployment, *command: str) -> list[str]:
    """Return the argument list of one Compose call.

    Every call names project, files and `.env`: without one of them, Compose would use another project or file.
    """
    files = [deployment.compose_file]
    if deployment.override_file.is_file():
        files.append(deployment.override_file)
    return [
        "docker",
        "compose",
        "--project-directory",
        str(deployment.directory),
        "--project-name",
        deployment.project_name,
        "--env-file",
        str(deployment.settings_file),
        *(part for file in files for part in ("-f", str(file))),
        *command,
    ]


def compose_environment(environment: Mapping[str, str], written: Collection[str]) -> dict[str, str]:
    """Return this process's environment without settings and without the names in `.env` (`written`).

    In Compose, an exported variable overrides the same line of `.env`.
    """
    return {name: value for name, value in environment.items() if name not in {*all_setting_names(), *written}}


def run_compose(deployment: Deployment, *command: str, narrate: Narrate | None = None) -> None:
    """Run Compose with the files of a deployment. Raises EngineNotReady with Compose's message."""
    environment = compose_environment(os.environ, deployment.values)
    _run(deployment, command[0], compose_command(deployment, *command), deployment.directory, environment, narrate)


def remove_project(deployment: Deployment) -> None:
    """Remove the containers and networks of a deployment. The cache volume and the weights stay.

    Damaged files do not prevent it: Compose finds both by the project's name too. Raises EngineNotReady.
    """
    down = ("down", "--timeout", str(STOP_GRACE))
    try:
        # compose.yaml may have been written with other settings since
        run_compose(deployment, *down, "--remove-orphans")
    except (EngineNotReady, SettingsRefused, FileRefused) as problem:
        by_name = ["docker", "compose", "--project-name", deployment.project_name, *down]
        try:
            # a directory without a Compose file, as are those above it
            _run(deployment, "down", by_name, Path("/"), compose_environment(os.environ, _NAMES_A_FILE))
        except EngineNotReady:
            raise problem from None


def _run(
    deployment: Deployment,
    verb: str,
    command: list[str],
    place: Path,
    environment: Mapping[str, str],
    narrate: Narrate | None = None,
) -> None:
    """Run a call of Compose, pass on its lines as they come, and keep the last ones for the error."""
    tail: deque[str] = deque(maxlen=20)
    redact = deployment.redact
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=place,
        env=environment,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - because of stdout=PIPE
        for line in process.stdout:
            if text := redact(line.strip()):
                tail.append(text)
                if narrate:
                    narrate(text)
    if process.returncode != 0:
        raise EngineNotReady(
            f"docker compose {verb} failed: {tail[-1] if tail else 'no output'}",
            hint="read the lines above; check the file with `docker compose config` in the deployment directory",
            detail="\n".join(tail),
        )
