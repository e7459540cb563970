"""Where everything of a deployment is: its directory, the files in it, and its name."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment.files import PRIVATE, write_if_changed
from dflash_deploy.deployment.nearby import there
from dflash_deploy.errors import BadInput
from dflash_deploy.intake.documents import ProjectState
from dflash_deploy.intake.state import read_state
from dflash_deploy.plan.command import in_home

PROJECT_FILE = "project.json"
"""The file in `.dflash/` with the name of the Compose project."""


def place_of(state: Path) -> str:
    """A directory by its device and inode: the same when it is renamed, another one for a copy; empty if missing."""
    try:
        found = state.stat()
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


@dataclass(frozen=True)
class DeploymentPlaces:
    """The paths of a deployment directory, made absolute."""

    directory: Path

    def __post_init__(self) -> None:
        # the engine has another working directory, and Compose resolves relative paths differently
        try:
            object.__setattr__(self, "directory", self.directory.absolute())
        except FileNotFoundError:
            raise BadInput(
                "the current directory no longer exists",
                hint="change to another one, or name the deployment with --dir",
            ) from None

    @property
    def env_file(self) -> Path:
        """The file with all settings and secrets; mode 0600."""
        return self.directory / ".env"

    @property
    def last_env_file(self) -> Path:
        """The previous `.env`, kept when a command changes settings, with the API keys of now; mode 0600."""
        return self.directory / ".env.last"

    @property
    def compose_file(self) -> Path:
        """The Compose file that `render` generates."""
        return self.directory / "compose.yaml"

    @property
    def override_file(self) -> Path:
        """The user's additions to Compose, which no command writes."""
        return self.directory / "compose.override.yaml"

    @property
    def state(self) -> Path:
        """`.dflash/`: logs, run state, the image's build context."""
        return self.directory / ".dflash"

    @property
    def option(self) -> str:
        """What a command needs to work on this deployment."""
        return there(self.directory)

    @property
    def project_name(self) -> str:
        """The Compose project name: the rendered one, also after the directory was renamed, or a new one.

        A copy of a directory is a project of its own.
        """
        known = read_state(self.state / PROJECT_FILE, ProjectState)
        return known.name if known is not None and known.place == place_of(self.state) else self._new_project_name

    @property
    def _new_project_name(self) -> str:
        """The directory's name, and a hash of its path to keep it unique."""
        # a path may have bytes that are not UTF-8
        path = os.fsencode(self.directory.resolve())
        slug = re.sub(r"[^a-z0-9]+", "-", self.directory.resolve().name.lower()).strip("-") or "deployment"
        return f"dflash-{slug[:30]}-{hashlib.sha256(path).hexdigest()[:6]}"

    def path(self, written: str) -> Path:
        """Resolve a path of `.env` as Compose does: `~` is the home directory, relative paths start here."""
        return self.directory / in_home(Path(written))

    def keep_project_name(self) -> None:
        """Write the name of the project, so that it stays if the directory is renamed."""
        known = ProjectState(name=self.project_name, place=place_of(self.make_state()))
        write_if_changed(self.state / PROJECT_FILE, f"{known.model_dump_json()}\n", mode=PRIVATE)

    def make_state(self) -> Path:
        """Create `.dflash/` with mode 0700 if it does not exist, and return it."""
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.state
