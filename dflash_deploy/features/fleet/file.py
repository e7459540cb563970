"""`fleet.yaml`, and what follows from it: the shape of the fleet, its router, and each host's settings and keys.

The descriptions of the fields of `fleet.yaml` are its manual. The shape has a reason, and gives the settings of each
host. One host runs the router in front of all hosts; `Front` has its name, and the addresses at which the engines of
the other hosts listen. Shape and front are pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, model_validator

from dflash_deploy.catalog.read import Entry, read_as
from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.directory import FLEET_FILE
from dflash_deploy.errors import BadInput, DeployError, FleetRefused, NotPossible
from dflash_deploy.plan.command import in_home
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

MOST_HOSTS = 64

EXAMPLE = "docs/reference/fleet.yaml is an annotated example"

Shape = Literal["replicas", "one-engine"]
"""`replicas`: each host runs an engine of its own. `one-engine`: all hosts run one engine, split between their GPUs."""

Role = Literal["leader", "worker"]

PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
"""Of a path on this machine."""

RemotePath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./~][A-Za-z0-9_./ ~+-]{0,254}$")]
"""A path on a host; a relative one starts in the home directory of its user."""

Value = Annotated[str, Field(max_length=1000)] | int | float | bool


class FleetHost(Entry):
    """One host of the fleet, as SSH reaches it."""

    name: Annotated[
        str,
        Field(pattern=r"^[a-z0-9][a-z0-9-]{0,30}$", description="its name in all output; small letters, digits and -"),
    ]
    address: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}$",
            description="host name, IP address, or a `Host` of the SSH configuration",
        ),
    ]
    user: Annotated[
        str,
        Field(pattern=r"^([A-Za-z_][A-Za-z0-9._-]{0,31})?$", description="user on the host; else as `ssh` decides"),
    ] = ""
    port: Annotated[int | None, Field(ge=1, le=65535, description="SSH port; else as `ssh` decides")] = None
    role: Annotated[
        Role | None,
        Field(description="the leader answers requests: rank 0 of one engine, or router and door; else the first host"),
    ] = None
    fabric: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9_.-]{0,15}$",
            description="network interface of the link between the hosts, such as enp1s0f1np1; else it is found",
        ),
    ] = ""
    directory: Annotated[RemotePath, Field(description="deployment directory on the host")] = "dflash-fleet"
    program: Annotated[
        RemotePath | Literal[""],
        Field(description="a dflash-deploy that you installed on the host; else `fleet up` installs one"),
    ] = ""
    settings: Annotated[
        dict[str, Value],
        Field(max_length=200, description="settings of `.env` that differ on this host"),
    ] = Field(default_factory=dict)


class Install(Entry):
    """How `fleet up` installs dflash-deploy on a host, in an environment of its own."""

    wheel: Annotated[
        str,
        Field(
            max_length=4096,
            pattern=PRINTABLE,
            description="wheel on this machine that is copied to the hosts; else their index has it",
        ),
    ] = ""
    extras: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[a-z]{2,20}$")], ...],
        Field(
            max_length=3,
            description="what to install with it for the native runtime: engines, and `router` for replicas",
        ),
    ] = ()


class Fleet(Entry):
    """`fleet.yaml`."""

    shape: Annotated[
        Shape | Literal["auto"],
        Field(description="replicas: an engine on each host; one-engine: one engine over all hosts; auto: as planned"),
    ] = "auto"
    router: Annotated[
        bool,
        Field(description="on: replicas share one endpoint, on the leader; off: each host has an endpoint of its own"),
    ] = True
    ssh_config: Annotated[
        str,
        Field(
            max_length=4096,
            pattern=PRINTABLE,
            description="SSH configuration file; else that of the user (~/.ssh/config)",
        ),
    ] = ""
    install: Annotated[Install, Field(description="how dflash-deploy is installed on the hosts")] = Install()
    settings: Annotated[
        dict[str, Value],
        Field(max_length=200, description="settings of `.env` that differ on all hosts"),
    ] = Field(default_factory=dict)
    hosts: Annotated[tuple[FleetHost, ...], Field(min_length=1, max_length=MOST_HOSTS, description="the hosts")]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [host.name for host in self.hosts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two hosts have the name {twice[0]}")
        if sum(host.role == "leader" for host in self.hosts) > 1:
            raise ValueError("more than one host has the role leader")
        return self

    @property
    def leader(self) -> FleetHost:
        """The host that answers requests of clients."""
        return next((host for host in self.hosts if host.role == "leader"), self.hosts[0])

    @property
    def ranked(self) -> tuple[FleetHost, ...]:
        """The hosts in the order of their ranks: the leader first."""
        return (self.leader, *(host for host in self.hosts if host is not self.leader))

    def named(self, names: tuple[str, ...]) -> tuple[FleetHost, ...]:
        """The hosts with these names, all without names. Raises BadInput for a name that does not exist."""
        known = {host.name: host for host in self.hosts}
        for name in names:
            if name not in known:
                raise BadInput(f"`{name}` is not a host of {FLEET_FILE}", hint=f"valid hosts: {', '.join(known)}")
        return tuple(known[name] for name in dict.fromkeys(names)) or self.hosts


EXAMPLES = {
    "user": "nvidia",
    "port": "22",
    "role": "leader",
    "fabric": "enp1s0f1np1",
    "directory": "dflash-fleet",
    "program": ".local/bin/dflash-deploy",
    "settings": f"{{{Settings.dflash_port}: 8001}}",
}
"""A value for each field of a host that a file may leave out."""


def read_fleet(directory: Path) -> Fleet:
    """Return the fleet of a deployment directory. Raises FleetRefused if the file is missing or not valid."""
    file = directory / FLEET_FILE
    if not file.exists():
        raise FleetRefused(
            f"{file} does not exist", hint="write it with `dflash-deploy fleet init USER@HOST USER@HOST`"
        )
    fleet = read_as(file, Fleet, refused=FleetRefused, example=EXAMPLE)
    if not fleet.ssh_config:
        return fleet
    return fleet.model_copy(update={"ssh_config": str(directory / in_home(Path(fleet.ssh_config)))})


def host_from(word: str) -> FleetHost:
    """Return a host written as `[NAME=][USER@]ADDRESS`. Raises BadInput."""
    name, equals, rest = word.rpartition("=")
    user, _, address = rest.rpartition("@")
    numeric = address.replace(".", "").replace(":", "").isdigit()
    own = re.sub("[.:]", "-", address) if numeric else address.split(".")[0].lower()
    try:
        return FleetHost(name=name if equals else own, address=address, user=user)
    except ValueError:
        raise BadInput(
            f"`{word}` is not a valid host", hint="expected [NAME=][USER@]ADDRESS, such as spark-a=nvidia@192.168.1.10"
        ) from None


def fleet_text(hosts: tuple[FleetHost, ...]) -> str:
    """Return a commented `fleet.yaml` with these hosts; each field that it leaves out is a comment."""
    return "\n".join((*_head(), *(line for host in hosts for line in _host_lines(host, whole=host is hosts[0])), ""))


def _head() -> Iterator[str]:
    fields = Fleet.model_fields
    yield "# The hosts of a fleet. The .env beside this file has their settings and the API key."
    yield "# A line that begins with `#:` shows a field that is left out: remove `#: ` to set it."
    yield ""
    yield f"# {fields['shape'].description}"
    yield "shape: auto"
    yield ""
    yield f"# {fields['router'].description}"
    yield "#: router: off"
    yield ""
    yield f"# {fields['ssh_config'].description}"
    yield "#: ssh_config: ssh.config"
    yield ""
    yield f"# {fields['install'].description}"
    yield "#: install:"
    for name, example in (("wheel", "dist/dflash_deploy-0.1.0-py3-none-any.whl"), ("extras", "[llamacpp, router]")):
        yield f"  # {Install.model_fields[name].description}"
        yield f"  #: {name}: {example}"
    yield ""
    yield f"# {fields['settings'].description}"
    yield f"#: settings: {{{Settings.max_body_mib}: 32}}"
    yield ""
    yield f"# {fields['hosts'].description}"
    yield "hosts:"


def _host_lines(host: FleetHost, *, whole: bool) -> Iterator[str]:
    """The lines of one host. `whole`: with the meaning of each field, and those that are left out as comments."""
    for name, field in FleetHost.model_fields.items():
        value = getattr(host, name)
        if whole:
            yield f"    # {field.description}"
        if value != field.get_default(call_default_factory=True, validated_data={}):
            yield f"{'  - ' if name == 'name' else '    '}{name}: {yaml.safe_dump(value).splitlines()[0]}"
        elif whole:
            yield f"    #: {name}: {EXAMPLES[name]}"


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
            hint=f"write `shape: replicas` in {FLEET_FILE}, or choose another engine with `init --engine`",
        )
    if fleet.shape != "auto":
        return Chosen(fleet.shape, f"{FLEET_FILE} asks for it")
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
            f"{FLEET_FILE}: {secret[0]} is a secret", hint="write it into .env; the hosts get it from there, mode 0600"
        )
    try:
        dotenv.check_keys(values)
        for value in values.values():
            dotenv.quote(value)
    except DeployError as problem:
        raise FleetRefused(
            f"{FLEET_FILE}, {host.name}: {problem.message.removeprefix('.env: ')}", hint=problem.hint
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


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
ROUTER = "router"
"""What installs the router and the door for the native runtime: an extra of dflash-deploy."""


def has_front(fleet: Fleet, chosen: Chosen) -> bool:
    """Whether one host runs a router and a door for the engines of all."""
    return fleet.router and chosen.shape == "replicas" and len(fleet.hosts) > 1


def check_front(fleet: Fleet, replicas: int, *, native: bool) -> None:
    """Raise FleetRefused if the router would not be installed, or a host would have several engines and a router.

    `replicas` is REPLICAS of `.env`; `native`: its runtime is not Docker.
    """
    or_none = f"write `router: off` in {FLEET_FILE}: then each host has an endpoint of its own"
    if native and not fleet.leader.program and ROUTER not in fleet.install.extras:
        extras = ", ".join((*fleet.install.extras, ROUTER))
        raise FleetRefused(
            f"{FLEET_FILE}: the router in front of all hosts would not be installed on {fleet.leader.name}",
            hint=f"write `extras: [{extras}]` under `install`, or {or_none}",
        )
    for host in fleet.hosts:
        written = own_settings(fleet, host).get(Settings.replicas.name, str(replicas))
        if written not in {"", "1"}:
            raise FleetRefused(
                f"{host.name}: {Settings.replicas}={written}: the router in front of all needs one engine on each",
                hint=f"set {Settings.replicas}=1, or {or_none}",
            )


@dataclass(frozen=True)
class Front:
    """The router and the door of a fleet: on which host, and the HOST:PORT of the engines of the others by host.

    `unknown` are those of hosts that do not answer now.
    """

    host: FleetHost
    engines: Mapping[str, str]
    unknown: tuple[str, ...] = ()

    def with_unknown(self, before: Iterable[str]) -> Front:
        """The same with addresses that the router had before, and that may be those of hosts that do not answer."""
        return replace(self, unknown=tuple(one for one in before if one not in self.engines.values()))

    def settings(self, host: FleetHost) -> dict[str, str]:
        """The settings with which a host is behind the router, or runs it. What `fleet.yaml` has for this host wins."""
        if host is self.host:
            return {Settings.router_engines.name: ",".join((*self.engines.values(), *self.unknown))}
        if host.name not in self.engines:
            return {}
        address = self.engines[host.name].rpartition(":")[0]
        forced = {Settings.dflash_bind.name: address, Settings.dflash_domain.name: ""}
        return {name: value for name, value in forced.items() if name not in host.settings}


def front_of(fleet: Fleet, addresses: Mapping[str, str], port: int) -> Front:
    """Return the router's place and the engines behind it. `addresses` has those of hosts on their link.

    A host without an address is left out. `port` is that of `.env`. Raises FleetRefused for a host whose own settings
    keep the router from its engine, and for a public address that nothing asks for: the link is not encrypted.
    """
    engines: dict[str, str] = {}
    for host in fleet.hosts:
        if host is fleet.leader or host.name not in addresses:
            continue
        own = own_settings(fleet, host)
        asked = str(host.settings.get(Settings.dflash_bind.name, ""))
        bind = asked or addresses[host.name]
        if not asked and ipaddress.ip_address(bind).is_global:
            raise FleetRefused(
                f"{host.name}: its engine would listen on the public address {bind}, without encryption",
                hint=f"name a private link as `fabric` of each host in {FLEET_FILE}, or write `router: off`; "
                f"{Settings.dflash_bind} in `settings` of this host allows it",
            )
        if bind in _LOOPBACK:
            raise FleetRefused(
                f"{host.name}: {Settings.dflash_bind}={bind}: {fleet.leader.name}, with the router, cannot reach it",
                hint=f"remove {Settings.dflash_bind} from `settings` of this host: `fleet up` sets its address",
            )
        number = own.get(Settings.dflash_port.name, str(port))
        engines[host.name] = f"{addresses[host.name] if bind in _ANY else bind}:{number}"
    return Front(fleet.leader, engines)


def kept_addresses(
    addresses: Mapping[str, str], own: Mapping[str, Collection[str]], listed: Iterable[str]
) -> dict[str, str]:
    """The addresses by host, each replaced by one of its `own` that is `listed` (HOST:PORT).

    For a time when a host is missing: the link that joins the others may be another one than that of all.
    """
    before = {address.rpartition(":")[0] for address in listed}
    return {name: next((one for one in own[name] if one in before), address) for name, address in addresses.items()}


def in_turns(
    hosts: Iterable[FleetHost], leader: FleetHost, restarting: Collection[str]
) -> tuple[tuple[FleetHost, ...], tuple[FleetHost, ...]]:
    """Which hosts start at the same time, and which one after the other: those whose running engine restarts.

    The leader's turn is first: the others leave its router's list and return to it. `restarting` are names.
    """
    every = tuple(hosts)
    turns = sorted((host for host in every if host.name in restarting), key=lambda host: host is not leader)
    return tuple(host for host in every if host.name not in restarting), tuple(turns)


def routed_hosts(front: Front, urls: Collection[str]) -> frozenset[str]:
    """The names of the hosts to whose engines the router sends requests. `urls` are those that it sends to.

    The leader's own engine has a private address: any that is not of another host.
    """
    found = {name for name, address in front.engines.items() if f"http://{address}" in urls}
    others = {f"http://{address}" for address in (*front.engines.values(), *front.unknown)}
    return frozenset({*found, front.host.name} if set(urls) - others else found)
