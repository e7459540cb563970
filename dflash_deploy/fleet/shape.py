"""The shape of a fleet, with its reason, and the settings that each host gets for it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash_deploy.deployment import dotenv
from dflash_deploy.errors import DeployError, FleetRefused, NotPossible
from dflash_deploy.fleet.file import FILE, Fleet, FleetHost, Shape
from dflash_deploy.plan import Plan
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

_PATHS = tuple(
    field.name
    for field in (Settings.model_host_path, Settings.drafter_host_path, Settings.dflash_drafter, Settings.llama_server)
)
"""Settings that may be paths of a machine."""


@dataclass(frozen=True)
class Place:
    """Where paths begin on a machine: the home directory, and the files that come with dflash-deploy."""

    home: str
    assets: str


@dataclass(frozen=True)
class Chosen:
    """The shape of a fleet and why."""

    shape: Shape
    reason: str


def choose_shape(fleet: Fleet, plan: Plan) -> Chosen:
    """Return the shape that `fleet.yaml` asks for, else the one that fits the plan of one host.

    Raises NotPossible for one engine over hosts if the engine cannot do that.
    """
    several = plan.engine.kind.knows(Settings.nodes)
    if fleet.shape == "one-engine" and not several:
        raise NotPossible(
            f"{plan.engine_title} cannot run over several hosts",
            hint=f"write `shape: replicas` in {FILE}, or choose another engine with `init --engine`",
        )
    if fleet.shape != "auto":
        return Chosen(fleet.shape, f"{FILE} asks for it")
    if len(fleet.hosts) == 1:
        return Chosen("replicas", "there is one host")
    if plan.settings.several_machines:
        return Chosen("one-engine", f"{Settings.nodes}={plan.settings.nodes} in .env splits the model over hosts")
    if several and plan.memory is not None and not plan.memory.fits:
        return Chosen("one-engine", f"{plan.pair.title} does not fit into the memory of one host")
    return Chosen(
        "replicas",
        "the model fits on one host: engines of their own serve more requests at the same time; one engine over all "
        "hosts needs their link for every token",
    )


def shape_settings(fleet: Fleet, chosen: Chosen, plan: Plan, host: FleetHost, master: str) -> dict[str, str]:
    """Return the settings of one host that follow from the shape. `master` is the leader's address on the fabric."""
    if not plan.engine.kind.knows(Settings.nodes):
        return {}
    settings = plan.settings
    gpus = max((settings.tensor_parallel_size or 1) // settings.nodes, 1)
    if chosen.shape == "replicas":
        if not settings.several_machines:
            return {}
        return {
            Settings.nodes.name: "1",
            Settings.node_rank.name: "0",
            Settings.master_addr.name: "",
            Settings.tensor_parallel_size.name: str(gpus) if gpus > 1 else "",
        }
    hosts = fleet.ranked
    return {
        Settings.nodes.name: str(len(hosts)),
        Settings.node_rank.name: str(hosts.index(host)),
        Settings.master_addr.name: master,
        Settings.tensor_parallel_size.name: str(gpus * len(hosts)),
    }


def own_settings(fleet: Fleet, host: FleetHost) -> dict[str, str]:
    """Return the settings that `fleet.yaml` has for a host, as `.env` writes them.

    Raises FleetRefused for an unknown name, and for a secret: all hosts have those of `.env`.
    """
    values = {name: _written(value) for name, value in {**fleet.settings, **host.settings}.items()}
    if secret := sorted(set(values) & set(SECRET_NAMES)):
        raise FleetRefused(
            f"{FILE}: {secret[0]} is a secret", hint="write it into .env; the hosts get it from there, mode 0600"
        )
    try:
        dotenv.check_keys(values)
        for value in values.values():
            dotenv.quote(value)
    except DeployError as problem:
        raise FleetRefused(
            f"{FILE}, {host.name}: {problem.message.removeprefix('.env: ')}", hint=problem.hint
        ) from None
    return values


def _written(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def env_text(text: str, values: Mapping[str, str], here: Place, there: Place, changes: Mapping[str, str]) -> str:
    """Return the text of a host's `.env`: that of this machine with the host's paths and the changes.

    Raises SettingsRefused if a value cannot be written.
    """
    moved = {name: _moved(values[name], here, there) for name in _PATHS if name in values}
    for name, value in {**moved, **changes}.items():
        if value != values.get(name, ""):
            text = dotenv.replace_value(text, name, value)
    return text


def _moved(value: str, here: Place, there: Place) -> str:
    # the files of a checkout may be below the home directory
    for mine, theirs in ((here.assets, there.assets), (here.home, there.home)):
        if value == mine or value.startswith(f"{mine}/"):
            return f"{theirs}{value[len(mine) :]}"
    return value
