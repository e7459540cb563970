"""`fleet.yaml`: the hosts that one terminal serves with. The descriptions of the fields are its manual."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, model_validator

from dflash_deploy.catalog.read import read_as
from dflash_deploy.catalog.schema import Entry
from dflash_deploy.errors import BadInput, FleetRefused
from dflash_deploy.plan.command import in_home
from dflash_deploy.serve.settings import Settings

FILE = "fleet.yaml"
"""Its name in the deployment directory."""

MOST_HOSTS = 64

EXAMPLE = "docs/reference/fleet.yaml is an annotated example"

Shape = Literal["replicas", "one-engine"]
"""`replicas`: each host runs an engine of its own. `one-engine`: all hosts run one engine, split between their GPUs."""

Carriage = Literal["auto", "fabric", "hub"]
"""How weights reach the hosts: `fabric`: one host downloads them for all. `hub`: each host downloads them."""

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
    weights: Annotated[
        Carriage,
        Field(
            description="fabric: one host downloads, the others take it from there; hub: each downloads; auto: faster"
        ),
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
                raise BadInput(f"`{name}` is not a host of {FILE}", hint=f"valid hosts: {', '.join(known)}")
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
    file = directory / FILE
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
    yield f"# {fields['weights'].description}"
    yield "#: weights: fabric"
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
