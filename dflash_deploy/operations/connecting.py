"""`connect`: configurations for clients of the endpoint; the key is a reference to a variable."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.connect import KEY_VARIABLE, ClientTemplate, EndpointFacts, clients, configuration
from dflash_deploy.deployment import Deployment
from dflash_deploy.errors import BadInput
from dflash_deploy.operations.addresses import address_of
from dflash_deploy.operations.ranks import refuse_other_ranks
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup import endpoint_of
from dflash_deploy.startup.published import published_of, whole_url


@dataclass(frozen=True)
class Connections:
    """The endpoint of a deployment as clients see it, and the clients that a configuration is known for."""

    deployment: Deployment
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
        place = shlex.quote(self.endpoint.directory)
        return f'export {KEY_VARIABLE}="$(dflash-deploy keys show --reveal --dir {place})"'

    def configuration(self, client: str) -> str:
        """The text of a client's configuration. Raises KeyError for one that is not in `known`."""
        return configuration(self.known[client], self.endpoint)

    def document(self, client: str = "") -> dict[str, object]:
        """The `data` of `connect --json`, for one client or for the list of all."""
        place: dict[str, object] = {"endpoint": self.base_url, "model": self.endpoint.model}
        if self.root is not None:
            place["root_certificate"] = str(self.root)
        if not client:
            rows = [{"client": name, "title": one.title, "where": one.where} for name, one in self.known.items()]
            return place | {"clients": rows}
        chosen = self.known[client]
        return place | {
            "client": client,
            "where": chosen.where,
            "note": chosen.note,
            "configuration": self.configuration(client),
            "key": self.export,
        }


def connect(directory: Path, client: str = "", *, url: str | None = None) -> Connections:
    """What clients need to reach a deployment; `url` is their way to it if that is not where it listens.

    Raises BadInput for an unknown client and on a rank that answers no requests, NoDeployment, SettingsRefused.
    """
    known = clients()
    if client and client not in known:
        raise BadInput(f"`{client}` is not a known client", hint=f"known clients: {', '.join(known)}")
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    published = published_of(deployment, plan)
    with endpoint_of(deployment, plan) as endpoint:
        reached = whole_url(deployment, plan) if url is None else address_of(url)
        facts = EndpointFacts(reached, endpoint.model, plan.settings.max_model_len, str(deployment.directory))
    # an engine without that setting reads tool calls by the model's chat template
    reads = bool(plan.settings.tool_call_parser) or not plan.engine.kind.knows(Settings.tool_call_parser)
    return Connections(deployment, facts, known, reads, published.root if published and url is None else None)
