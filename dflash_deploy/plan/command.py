"""From the lines of `.env` to the engine's environment and command line, in a container or on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_deploy.catalog.settings import all_setting_names, passed_on
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.serve.engines import Build, Engine
from dflash_deploy.serve.launch import FAMILY
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.plan.result import Plan
    from dflash_deploy.serve.field import Field

CONTAINER_TARGET = "/models/target"
# Directories on which compose/base.yaml and compose/drafter.yaml mount the weights.
CONTAINER_DRAFTER = "/models/drafter"


def drafter_directory(settings: Settings) -> str:
    """The directory of the drafter's weights on this machine, as `.env` writes it."""
    return settings.drafter_host_path or settings.dflash_drafter


def is_directory(drafter: str) -> bool:
    """Whether DFLASH_DRAFTER names a directory, and not a repository on the Hugging Face Hub."""
    return drafter.startswith(("/", "~", "."))


# Settings that the engine does not get. A new domain restarts none.
NOT_PASSED_ON = {*SECRET_NAMES, Settings.dflash_domain.name}


def engine_environment(plan: Plan) -> dict[str, str]:
    """The variables that `dflash_deploy.serve` reads, without secrets.

    In a container, paths are those of the mounts, and the engine listens on all of the container's addresses.
    """
    values, settings = plan.values, plan.settings
    names = {*all_setting_names(), *filter(passed_on, values)} - NOT_PASSED_ON
    environment = {name: values[name] for name in sorted(names) if values.get(name)}
    if plan.runtime == "native":
        places: dict[Field[Any], str] = {
            Settings.model_path: _in_home(settings.model_host_path),
            Settings.drafter_path: _in_home(drafter_directory(settings)),
        }
        # in a container, the image names its engine
        environment[FAMILY] = plan.engine.engine
    else:
        places = {Settings.model_path: CONTAINER_TARGET, Settings.drafter_path: CONTAINER_DRAFTER}
        if not settings.several_machines:
            # inside the container; the published address is DFLASH_BIND
            places |= {Settings.dflash_bind: "0.0.0.0", Settings.dflash_port: "8000"}  # noqa: S104
    return environment | {field.name: value for field, value in places.items()}


def in_home(path: Path) -> Path:
    """Expand `~` as Compose does. Raises SettingsRefused if the user has no home directory."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise SettingsRefused(
            f"the home directory in `{path}` does not exist", hint="write the path from the root, such as /data/models"
        ) from None


def model_path(plan: Plan) -> str:
    """The path of the target's directory as the engine sees it; the served name if none is set."""
    return engine_environment(plan)[Settings.model_path.name]


def read_settings(values: Mapping[str, str], engine: Engine) -> Settings:
    """The typed settings of `.env`.

    Raises SettingsRefused, naming the setting, if a value is missing or of the wrong kind, or if EXTRA_ARGS holds an
    argument of this engine that has a setting.
    """
    with refusals_of_env():
        settings = Settings(values)
        engine.check_extra_args(settings)
    if not settings.model_host_path:
        field = Settings.model_host_path
        raise SettingsRefused(f".env: {field} is empty", hint="set it to the directory of the target's weights")
    for path in (settings.model_host_path, drafter_directory(settings)):
        _in_home(path)
    return settings


def _in_home(path: str) -> str:
    return str(in_home(Path(path))) if path else ""


def engine_command(plan: Plan) -> list[str]:
    """The exact command line of the engine, its program first.

    Raises SettingsRefused if the planned engine cannot do what the settings ask.
    """
    with refusals_of_env():
        settings, engine = Settings(engine_environment(plan)), plan.engine.kind
        return [*engine.program, *engine.arguments(settings, Build(plan.engine_version, plan.engine.cpu))]


@contextmanager
def refusals_of_env() -> Iterator[None]:
    """Turn `serve`'s Refused into SettingsRefused, which names `.env`."""
    try:
        yield
    except Refused as refusal:
        raise SettingsRefused(f".env: {refusal.message}", hint=refusal.hint) from None
