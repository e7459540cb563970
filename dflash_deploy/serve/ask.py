"""`python -m dflash_deploy.serve.ask`: ask the engine for its configuration with the settings of the environment.

No weights are loaded and nothing is served. The process becomes the engine's own (exec), which writes one line with
its answer (`dflash_deploy.serve.answer`). It gets no secrets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from dflash_deploy.serve.answer import refused, unaskable
from dflash_deploy.serve.engines import Launch
from dflash_deploy.serve.launch import engine_here
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings


def question(environment: Mapping[str, str]) -> Launch | None:
    """The process that answers; `None` if the engine has no way to be asked. Raises Refused as a start does."""
    public = {name: value for name, value in environment.items() if name not in SECRET_NAMES}
    return engine_here(public).question(Settings(public), public)


def main() -> int:
    """Ask the engine; returns only if it cannot be asked or cannot start with these settings."""
    try:
        asked = question(os.environ)
    except Refused as refusal:
        refused(f"{refusal.message} ({refusal.hint})")
        return 0
    if asked is None:
        unaskable(f"{engine_here(os.environ).title} makes no configuration without weights")
        return 0
    return _become(asked)


def _become(asked: Launch) -> NoReturn:
    sys.stdout.flush()
    os.execve(asked.command[0], asked.command, asked.environment)  # noqa: S606 - without a shell


if __name__ == "__main__":
    sys.exit(main())
