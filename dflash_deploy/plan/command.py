"""From the lines of `.env` to what the engine is started with, in a container or on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dflash_deploy.catalog.settings import all_setting_names, passed_on
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.plan.result import Plan
from dflash_deploy.plan.wishes import RuntimeName
from dflash_deploy.serve.arguments import check_extra_args, engine_arguments, engine_program
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import EngineName, read_settings

CONTAINER_TARGET = "/models/target"
CONTAINER_DRAFTER = "/models/drafter"
"""Where compose/base.yaml and compose/drafter.yaml mount the weights."""


def several_machines(values: Mapping[str, str]) -> bool:
    """Whether this is one of several machines, whose container then shares its host's network."""
    return (values.get("NODES") or "1") != "1"


def answers_requests(values: Mapping[str, str]) -> bool:
    """Whether this machine answers: alone, or as rank 0 of several. The others compute for it."""
    return values.get("NODE_RANK", "") in {"", "0"}


def drafter_host_path(values: Mapping[str, str]) -> str:
    """The directory of the drafter's weights on this machine."""
    return values.get("DRAFTER_HOST_PATH") or values.get("DFLASH_DRAFTER", "")


def is_directory(drafter: str) -> bool:
    """Whether DFLASH_DRAFTER names a directory, and not a repository of the hub."""
    return drafter.startswith(("/", "~", "."))


def engine_environment(values: Mapping[str, str], runtime: RuntimeName) -> dict[str, str]:
    """The variables that `dflash_deploy.serve` reads, secrets left out.

    In a container the weights lie where they are mounted, and the engine listens on all of the container's addresses.
    """
    known = {*all_setting_names(), *filter(passed_on, values)} - set(SECRET_NAMES)
    environment = {name: values[name] for name in sorted(known) if values.get(name)}
    if runtime == "compose":
        places = {"MODEL_PATH": CONTAINER_TARGET, "DRAFTER_PATH": CONTAINER_DRAFTER}
        if not several_machines(values):
            # inside the container; the published address is DFLASH_BIND
            places |= {"DFLASH_BIND": "0.0.0.0", "DFLASH_PORT": "8000"}  # noqa: S104
    else:
        places = {
            "MODEL_PATH": _written(values.get("MODEL_HOST_PATH", "")),
            "DRAFTER_PATH": _written(drafter_host_path(values)),
        }
    return environment | places


def in_home(path: Path) -> Path:
    """`~` is the home directory, as it is to Compose. Raises SettingsRefused where there is none of that name."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise SettingsRefused(f"{path} names no home directory", hint="write the path from the root on") from None


def check_values(values: Mapping[str, str], engine: EngineName) -> None:
    """Raises SettingsRefused, naming the setting, where a value is missing or of the wrong kind."""
    if not values.get("MODEL_HOST_PATH"):
        raise SettingsRefused(".env: MODEL_HOST_PATH is empty", hint="set it to the directory of the target's weights")
    shm = values.get("DFLASH_SHM_SIZE", "")
    if shm and not re.fullmatch(r"\d+(\.\d+)?\s*[kmgKMG]?[bB]?", shm):
        raise SettingsRefused(f".env: DFLASH_SHM_SIZE={shm} is no size", hint="write it as Docker does, such as 16g")
    with _refusals_of_env():
        check_extra_args(read_settings(engine_environment(values, "native")), engine)


def _written(path: str) -> str:
    return str(in_home(Path(path))) if path else ""


def engine_command(plan: Plan) -> list[str]:
    """The exact command line of the engine, its program first.

    Raises SettingsRefused where the planned engine cannot do what the settings ask.
    """
    with _refusals_of_env():
        settings = read_settings(engine_environment(plan.values, plan.runtime))
        engine = plan.engine.engine
        arguments = engine_arguments(settings, engine=engine, version=plan.engine_version, cpu=plan.engine.cpu)
        return [*engine_program(engine), *arguments]


@contextmanager
def _refusals_of_env() -> Iterator[None]:
    """What `serve` refuses was written in `.env`."""
    try:
        yield
    except Refused as refusal:
        raise SettingsRefused(f".env: {refusal.message}", hint=refusal.hint) from None
