"""From the environment to the engine's process: its command line and its variables."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_deploy.serve.engines import DEFAULT, ENGINES, Engine, Launch
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.settings import Settings

FAMILY = "DFLASH_ENGINE_FAMILY"  # the variable that names an image's engine; the Dockerfile sets it. Absent: vLLM.


def engine_here(environment: Mapping[str, str]) -> Engine:
    """The engine of this image. Raises Refused for an unknown name."""
    name = environment.get(FAMILY) or DEFAULT
    if name not in ENGINES:
        raise Refused(f"{FAMILY}={name} is not an engine", hint=f"choose one of {', '.join(ENGINES)}")
    return ENGINES[name]


def prepare(environment: Mapping[str, str]) -> Launch:
    """Read settings and secrets from the environment. Raises Refused if the engine cannot start with them."""
    return engine_here(environment).launch(Settings(environment), environment)
