"""`python -m dflash_deploy.serve.router`: SMG in front of several engines, with the settings of the environment.

It is started in this process and not by its command, whose arguments show every key in `ps`. It holds no key of a
client: it passes on what the client sends, and each engine's gateway decides. It is private: it answers some routes
itself without a key, so a door in front of it must publish only the routes of the API.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import Any

from dflash_deploy.serve.gateway.keys import KEYS_FILE
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.router.files import DIRECTORY, KEYS, RouterKeys, read_keys
from dflash_deploy.serve.router.metrics import LOOPBACK, guard_metrics, guarded_port, open_port
from dflash_deploy.serve.router.values import router_values
from dflash_deploy.serve.router.workers import keep_workers
from dflash_deploy.serve.settings import Settings

REFUSED = 3
"""The exit code for settings that cannot work, as of `dflash_deploy.serve`."""


def arguments(settings: Settings, keys: RouterKeys) -> dict[str, Any]:
    """The arguments of SMG's RouterArgs. Its metrics need no key, and are on the next port of the loopback address."""
    values = router_values(
        settings.max_num_seqs, hang_seconds=settings.hang_seconds, max_body_mib=settings.max_body_mib
    )
    return {
        "host": settings.dflash_bind,
        "port": settings.dflash_port,
        "prometheus_host": LOOPBACK,
        "prometheus_port": open_port(settings.dflash_port),
        # several models, engines that come and go: without it, SMG wants its engines when it starts
        "enable_igw": True,
        "control_plane_api_keys": [("dflash", "dflash", keys.admin, "admin")],
        "log_level": "warn",
        **{name: value.value for name, value in values.items()},
    }


def prepared(environment: Mapping[str, str]) -> tuple[Settings, Path, RouterKeys]:
    """The settings, the directory of the router's files, and its keys. Raises Refused if one of them is missing."""
    if util.find_spec("smg") is None:
        raise Refused("SMG is not installed", hint="pip install 'dflash-deploy[router]'")
    directory = Path(environment.get(DIRECTORY, ""))
    try:
        keys = read_keys(directory / KEYS)
    except (OSError, ValueError) as problem:
        raise Refused(f"the router's keys cannot be read: {problem}", hint="run `dflash-deploy up` again") from None
    return Settings(environment), directory, keys


def main() -> int:
    """Run SMG until it ends; returns the exit code."""
    try:
        settings, directory, keys = prepared(os.environ)
    except Refused as refusal:
        print(f"dflash: {refusal.message} ({refusal.hint})", file=sys.stderr)
        return REFUSED
    from smg.launch_router import launch_router
    from smg.router_args import RouterArgs

    keep_workers(directory, settings.dflash_bind, settings.dflash_port, keys)
    port = settings.dflash_port
    if further_keys := os.environ.get(KEYS_FILE):
        guard_metrics(Path(further_keys), settings.dflash_bind, guarded_port(port), open_port(port))
    launch_router(RouterArgs(**arguments(settings, keys)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
