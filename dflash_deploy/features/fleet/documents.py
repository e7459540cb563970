"""The `data` of the commands of `fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from dflash_deploy.client.metrics import KeyUsage
from dflash_deploy.document import CommandData, Fingerprint, HttpStatus
from dflash_deploy.schemas.common import AcceptanceLength, Count, DocumentedDict, FailureCode, Rate, Seconds


class FleetErrorData(DocumentedDict):
    """Why a command failed on a host."""

    code: FailureCode
    """Exit code, as in docs/reference/exit-codes.md."""
    message: str
    """What failed: one line that begins with the name of the host. The text may change."""
    hint: str
    """What to do next."""


class FleetHostData(DocumentedDict):
    """One host."""

    name: str
    """Name of the host in fleet.yaml."""
    address: str
    """Its address, as in fleet.yaml."""
    rank: Count
    """Its rank if all hosts run one engine: 0 is the leader."""
    state: str
    """`usable`, `ready`, `running`, `accepted`, `counted`, `stopped`, `passed`, `failed`, or a state of `status`."""
    seconds: Seconds
    """Duration of the command on this host."""
    endpoint: str | None
    """Base URL of its engine for OpenAI clients; null if it is unknown or the engine answers no requests."""
    model: str | None
    """Name of the model in requests; null if it is unknown."""
    tokens_per_second: Rate | None
    """Tokens per second of one short answer; null if it was not measured."""
    acceptance_length: AcceptanceLength | None
    """Acceptance length in tokens per step; null if nothing was drafted or counted."""
    cause: str | None
    """Why the engine is in this state, if the host said so."""
    checks_passed: Count
    """Number of checks that passed."""
    checks_failed: list[str]
    """Names of the checks that failed."""
    error: FleetErrorData | None
    """Why the command failed on this host; null if it did not."""
    routed: bool | None
    """Whether the router sends requests to its engine; null without a router, and if it or the host does not say."""


class FleetData(DocumentedDict):
    """The result of a command on several hosts."""

    shape: Literal["replicas", "one-engine"]
    """`replicas`: an engine on each host; `one-engine`: one engine over all hosts."""
    reason: str
    """Why it has this shape. The text may change."""
    router: str | None
    """Name of the host with the router and the door of all; null without a router."""
    hosts: list[FleetHostData]
    """The hosts, in the order of fleet.yaml."""


class FleetInitData(DocumentedDict):
    """The hosts of `fleet.yaml`, and whether they can be used."""

    file: str
    """Path of fleet.yaml."""
    written: bool
    """Whether it was written; false if an existing file was checked."""
    shape: Literal["replicas", "one-engine"]
    """`replicas`: an engine on each host; `one-engine`: one engine over all hosts."""
    reason: str
    """Why it has this shape. The text may change."""
    router: str | None
    """Name of the host with the router and the door of all; null without a router."""
    hosts: list[FleetHostData]
    """The hosts, in the order of fleet.yaml."""


class FleetLinkData(DocumentedDict):
    """A network interface with an IPv4 address."""

    interface: str
    """Name of the interface."""
    address: str
    """Its IPv4 address."""
    prefix: Annotated[int, Field(ge=0, le=32)]
    """Length of the network's prefix in bits."""
    up: bool
    """Whether it is up and has a carrier."""
    mtu: Count
    """Largest packet in bytes."""
    speed: Count | None
    """Speed in Mbit/s; null if it is unknown."""
    rdma: str
    """Its RoCE device; empty without one."""
    gid: Count | None
    """Index of the GID of type RoCE v2 for the address; null without one."""


class FleetEngineData(DocumentedDict):
    """The process or container of an engine. It is not asked for an answer."""

    phase: str
    """Its state: `absent`, `exited`, `restarting`, `paused` or `running`."""


class FleetFactsData(DocumentedDict):
    """What a fleet needs to know of a machine."""

    version: str
    """Version of dflash-deploy."""
    home: str
    """Home directory of the user."""
    assets: str
    """Directory of the files that come with dflash-deploy."""
    architecture: str
    """Processor architecture, as `uname -m` prints it."""
    links: list[FleetLinkData]
    """Its network interfaces with an IPv4 address."""
    drivers: list[str]
    """Versions of the driver of its GPUs; empty without NVIDIA GPUs."""
    peers: dict[str, bool]
    """For each address of `--peer`, whether it answers."""
    routed: list[str]
    """URLs of the engines to which the router of the deployment of `--dir` sends requests now."""
    router_engines: list[str]
    """Addresses of ROUTER_ENGINES of the deployment of `--dir`."""
    engine: FleetEngineData | None
    """The engine of the deployment of `--dir`; null without the option."""


class FleetFetchData(DocumentedDict):
    """The weights of a machine."""

    state: Literal["present"]
    """No weights are missing."""


class FleetRouteData(DocumentedDict):
    """Which engines of other machines get requests from the router of this one."""

    engines: list[str]
    """Their addresses, HOST:PORT."""
    left_out: dict[str, str]
    """For each address of ROUTER_ENGINES that gets no requests, why. The text may change."""


class FleetAnswerData(DocumentedDict):
    """What the engines of a machine answer to a key."""

    name: str
    """Name of the key; `owner` is VLLM_API_KEY."""
    status: HttpStatus | None
    """HTTP status; null if no engine answered."""


class FleetAcceptData(DocumentedDict):
    """Whether the engines of a machine accept the keys that the terminal of a fleet sent."""

    state: Literal["accepted", "stopped"]
    """`stopped`: no engine runs; it reads the keys when it starts."""
    answers: list[FleetAnswerData]
    """What the engines answer to each key that the terminal wants to be proven; empty if none runs."""


class FleetKeysData(DocumentedDict):
    """A key that was added, replaced or revoked on all hosts. No key is in the document."""

    file: str
    """Path of the file that has the keys, on the terminal."""
    name: str
    """Name of the key; `owner` is VLLM_API_KEY."""
    fingerprint: Fingerprint | None
    """The first 8 hexadecimal digits of the key's SHA-256; null if the file does not have it."""
    finished: bool
    """Whether all hosts have done it; the same command continues."""
    shape: Literal["replicas", "one-engine"]
    """`replicas`: an engine on each host; `one-engine`: one engine over all hosts."""
    reason: str
    """Why it has this shape. The text may change."""
    router: str | None
    """Name of the host with the router and the door of all; null without a router."""
    hosts: list[FleetHostData]
    """The hosts, in the order of fleet.yaml."""


class FleetUsageData(DocumentedDict):
    """What all keys used on the hosts that answered, since the start of their engines."""

    keys: list[KeyUsage]
    """The keys that were used, by name."""
    shape: Literal["replicas", "one-engine"]
    """`replicas`: an engine on each host; `one-engine`: one engine over all hosts."""
    reason: str
    """Why it has this shape. The text may change."""
    router: str | None
    """Name of the host with the router and the door of all; null without a router."""
    hosts: list[FleetHostData]
    """The hosts that answer requests, in the order of fleet.yaml."""


DOCUMENTS: Mapping[str, CommandData] = {
    "fleet init": CommandData((FleetInitData,)),
    "fleet up": CommandData((FleetData,)),
    "fleet status": CommandData((FleetData,)),
    "fleet test": CommandData((FleetData,)),
    "fleet down": CommandData((FleetData,)),
    "fleet restart": CommandData((FleetData,)),
    "fleet facts": CommandData((FleetFactsData,)),
    "fleet fetch": CommandData((FleetFetchData,), streams=True),
    "fleet route": CommandData((FleetRouteData,), streams=True),
    "fleet accept": CommandData((FleetAcceptData,), streams=True),
    "fleet keys add": CommandData((FleetKeysData,)),
    "fleet keys rotate": CommandData((FleetKeysData,)),
    "fleet keys revoke": CommandData((FleetKeysData,)),
    "fleet keys usage": CommandData((FleetUsageData,)),
}
