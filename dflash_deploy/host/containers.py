"""The container engine and its Compose plugin, if they answer."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

DOCKER_TIMEOUT = 10.0
"""Seconds for an engine to say its version; a hung engine is as good as none."""


@dataclass(frozen=True)
class ContainerEngine:
    """An engine that answered: its version, its Compose plugin's (`None` without one), and where it was reached."""

    version: str
    compose: str | None
    host: str


def find_container_engine() -> ContainerEngine | None:
    """Ask the engine that the `docker` command would use: DOCKER_HOST, else the chosen context."""
    version = _ask("docker", "version", "--format", "{{.Server.Version}}")
    if not version:
        return None
    host = os.environ.get("DOCKER_HOST") or _ask(
        "docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"
    )
    return ContainerEngine(version, _ask("docker", "compose", "version", "--short") or None, host)


def _ask(*command: str) -> str:
    """The output of a command; empty where it is absent, fails or does not answer."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=DOCKER_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()
