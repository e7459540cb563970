"""`connect`: configurations for clients of the endpoint; the key is a reference to a variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.client.endpoint import Endpoint, served_names
from dflash_deploy.connect import KEY_VARIABLE, ClientTemplate, EndpointFacts, clients, configuration
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.document import Documented
from dflash_deploy.errors import BadInput
from dflash_deploy.operations.addresses import CHECK_URL, address_of, key_in
from dflash_deploy.operations.replicas import refuse_other_ranks
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Redact, Redactor
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.engine import endpoint_of
from dflash_deploy.startup.members import published_of, whole_url


@dataclass(frozen=True)
class Client(Documented):
    """A client that `connect` has a configuration for."""

    client: str
    """Name, as `connect CLIENT` takes it."""
    title: str
    """What the client is."""
    where: str
    """Where its configuration belongs."""


@dataclass(frozen=True)
class ConnectClients(Documented):
    """The clients that `connect` knows."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    model: str
    """Name of the model in requests."""
    clients: Sequence[Client]
    """All known clients."""
    root_certificate: Path | None = None
    """File of the certificate that clients must trust, if no public authority signs the endpoint's."""


@dataclass(frozen=True)
class ConnectClient(Documented):
    """The configuration of one client."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    model: str
    """Name of the model in requests."""
    client: str
    """Name of the client."""
    where: str
    """Where the configuration belongs."""
    note: str
    """What else to know; empty if there is nothing."""
    configuration: str
    """Text of the configuration. The API key in it is a reference to the variable DFLASH_API_KEY."""
    key: str
    """Shell command that sets the variable DFLASH_API_KEY."""
    root_certificate: Path | None = None
    """File of the certificate that clients must trust, if no public authority signs the endpoint's."""


@dataclass(frozen=True)
class Connections:
    """An endpoint as clients see it, and the clients that a configuration is known for. `redact` hides its key."""

    redact: Redact
    endpoint: EndpointFacts
    known: Mapping[str, ClientTemplate]
    reads_tool_calls: bool
    root: Path | None = None
    """The certificate that clients must trust; `None` if a public authority signs, or without TLS."""

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.endpoint.url}/v1"

    @property
    def export(self) -> str:
        """The shell command that sets the variable from which every configuration takes the key."""
        return f'export {KEY_VARIABLE}="$({self.endpoint.key_command})"'

    def configuration(self, client: str) -> str:
        """The text of a client's configuration. Raises KeyError for one that is not in `known`."""
        return configuration(self.known[client], self.endpoint)

    def listed(self) -> ConnectClients:
        """All known clients."""
        rows = [Client(name, one.title, one.where) for name, one in self.known.items()]
        return ConnectClients(self.base_url, self.endpoint.model, rows, self.root)

    def chosen(self, client: str) -> ConnectClient:
        """One client's configuration. Raises KeyError for one that is not in `known`."""
        one = self.known[client]
        place = (self.base_url, self.endpoint.model)
        return ConnectClient(*place, client, one.where, one.note, self.configuration(client), self.export, self.root)


def connect(directory: Path, client: str = "", *, url: str | None = None) -> Connections:
    """What clients need to reach a deployment; `url` is their way to it if that is not where it listens.

    Raises BadInput for an unknown client and on a rank that answers no requests, NoDeployment, SettingsRefused.
    """
    known = _clients(client)
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    published = published_of(deployment, plan)
    with endpoint_of(deployment, plan) as endpoint:
        reached = whole_url(deployment, plan) if url is None else address_of(url)
        facts = EndpointFacts(reached, endpoint.model, plan.settings.max_model_len, str(deployment.directory))
    # an engine without that setting reads tool calls by the model's chat template
    reads = bool(plan.settings.tool_call_parser) or not plan.engine.kind.knows(Settings.tool_call_parser)
    root = published.root if published and url is None else None
    return Connections(deployment.redact, facts, known, reads, root)


def connect_url(url: str, client: str = "", *, key_file: Path | None = None, model: str = "") -> Connections:
    """What clients need to reach any endpoint by its URL. It is asked for its models, unless `model` names one.

    Raises BadInput, and EngineNotReady if it has to be asked and does not answer.
    """
    known, place, key = _clients(client), address_of(url), key_in(key_file)
    redact, context = Redactor([key]), None
    with Endpoint(place, key, model, proxies=True) as endpoint:
        if not model:
            served_names(endpoint, hint=f"{CHECK_URL}; or name the model with --model", redact=redact)
            first = endpoint.served()[0]
            model, context = first.name, first.max_model_len
    facts = EndpointFacts(place, model, context, "", str(key_file) if key_file else "FILE")
    return Connections(redact, facts, known, reads_tool_calls=True)


def has_deployment(directory: Path) -> bool:
    """Whether a directory has a deployment. Raises FileRefused if its `.env` is not a file."""
    return Deployment(directory).exists()


def _clients(client: str) -> Mapping[str, ClientTemplate]:
    """All known clients. Raises BadInput if the chosen one is not among them."""
    known = clients()
    if client and client not in known:
        raise BadInput(f"`{client}` is not a known client", hint=f"known clients: {', '.join(known)}")
    return known
