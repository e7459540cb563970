"""`connect`: configurations for clients of the endpoint; the key is a reference to a variable.

A configuration can be written into the file that the client reads, and the client started with the key.
"""

from __future__ import annotations

import difflib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from dflash_deploy.catalog.load import nearest
from dflash_deploy.checks.check import reads_tool_calls, reasons, takes_images
from dflash_deploy.client.endpoint import Endpoint, served_names
from dflash_deploy.connect import (
    KEY_VARIABLE,
    ClientTemplate,
    EndpointFacts,
    clients,
    configuration,
    merged,
    problems_of,
)
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.files import PRIVATE, check_output, new_file, not_written, write_atomically
from dflash_deploy.document import Documented
from dflash_deploy.errors import BadInput, FileMissing, PreflightRefused
from dflash_deploy.intake.files import read_text
from dflash_deploy.operations.addresses import CHECK_URL, address_of, key_in
from dflash_deploy.operations.key_file import key_with
from dflash_deploy.operations.restarts import refuse_other_ranks
from dflash_deploy.planning import plan_of
from dflash_deploy.redact import Redact, Redactor, Secret
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.engine import endpoint_of, published_of, whole_url

CERTIFICATE = "dflash-root.crt"  # the file of the certificate at the client, in a note to hand over
TRUST = "SSL_CERT_FILE (Python), NODE_EXTRA_CA_CERTS, curl --cacert"  # what makes programs trust it


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
    problems: Sequence[str]
    """What keeps the client from working at this endpoint, such as a context that is too small for its requests."""
    root_certificate: Path | None = None
    """File of the certificate that clients must trust, if no public authority signs the endpoint's."""
    written: Path | None = None
    """File that --write changed; null if it has the configuration already."""
    backup: Path | None = None
    """Copy of the file as it was before --write; null if it did not exist."""


@dataclass(frozen=True)
class ClientFile:
    """A file that a client reads: its text now, and with the configuration in it. `old` is `None` without a file."""

    path: Path
    old: str | None
    new: str

    @property
    def diff(self) -> str:
        """What changes, as a unified diff; empty if nothing does."""
        before = (self.old or "").splitlines(keepends=True)
        lines = difflib.unified_diff(before, self.new.splitlines(keepends=True), str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def write(self) -> Path | None:
        """Write the file with mode 0600; return the copy of the old one.

        Raises BadInput if the file has changed since it was read or cannot be written, PreflightRefused on a full disk.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            target = check_output(self.path)
            if _text_of(target) != self.old:
                raise BadInput(f"{self.path} has changed meanwhile", hint="run the command again")
            backup = None
            if self.old is not None:
                backup = target.with_name(f"{target.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
                with new_file(backup, mode=PRIVATE) as copy:
                    copy.write(self.old.encode())
            write_atomically(target, self.new, mode=PRIVATE)
        except OSError as problem:
            raise not_written(self.path, problem) from None
        return backup


def _text_of(path: Path) -> str | None:
    try:
        return read_text(path)
    except FileMissing:
        return None


@dataclass(frozen=True)
class Connections:
    """An endpoint as clients see it, and the clients that a configuration is known for. `redact` hides its key."""

    redact: Redact
    endpoint: EndpointFacts
    known: Mapping[str, ClientTemplate]
    reads_tool_calls: bool
    secret: Secret = field(repr=False)

    @property
    def root(self) -> Path | None:
        """The certificate that clients must trust; `None` if a public authority signs, or without TLS."""
        return self.endpoint.root

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

    def problems(self, client: str) -> list[str]:
        """What keeps a client from working at this endpoint."""
        return problems_of(self.known[client], self.endpoint)

    def listed(self) -> ConnectClients:
        """All known clients."""
        rows = [Client(name, one.title, one.where) for name, one in self.known.items()]
        return ConnectClients(self.base_url, self.endpoint.model, rows, self.root)

    def chosen(self, client: str, written: Path | None = None, backup: Path | None = None) -> ConnectClient:
        """One client's configuration. Raises KeyError for one that is not in `known`."""
        one = self.known[client]
        about = (self.base_url, self.endpoint.model, client, one.where, one.note)
        text = self.configuration(client)
        return ConnectClient(*about, text, self.export, self.problems(client), self.root, written, backup)

    def file(self, client: str) -> ClientFile:
        """The file that a client reads, with its configuration merged in.

        Raises BadInput for a client without such a file, FileRefused, and FileInvalid if it cannot be merged.
        """
        one = self.known[client]
        if not one.path:
            raise BadInput(
                f"--write: {client} does not read its configuration from a file",
                hint=f"`dflash-deploy connect {client}` prints it for {one.where}",
            )
        # all clients with a file in it follow the variable, as the XDG Base Directory Specification has it
        config = os.environ.get("XDG_CONFIG_HOME")
        path = Path(one.path.replace("~/.config", config, 1) if config else one.path).expanduser()
        old = _text_of(path)
        return ClientFile(path, old, merged(one, path, old or "", self.configuration(client)))

    def check_launch(self, client: str) -> None:
        """Raise BadInput if a client has no command, PreflightRefused if it is not installed or cannot work here."""
        one = self.known[client]
        if not one.command:
            raise BadInput(f"--launch: {client} has no command to start", hint=f"it goes into {one.where}")
        if shutil.which(one.command) is None:
            raise PreflightRefused(f"`{one.command}` is not on the PATH", hint=f"install it: {one.install}")
        if problems := self.problems(client):
            hint = f"raise {Settings.max_model_len} in .env, then run `dflash-deploy up`"
            raise PreflightRefused(problems[0], hint=hint)

    def launch(self, client: str, arguments: Sequence[str]) -> NoReturn:
        """Replace this process with a client, which gets the key in its environment."""
        one = self.known[client]
        key = dict.fromkeys((KEY_VARIABLE, *one.key_variables), self.secret.reveal())
        trusted = {} if self.root is None else dict.fromkeys(("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"), str(self.root))
        command = [one.command, *arguments]
        if one.is_shell:
            # the variable is set already, and this command may not be on the PATH
            _, _, program = self.configuration(client).partition("\n")
            command = ["bash", "-euc", program, one.command, *arguments]
        os.execvpe(command[0], command, os.environ | trusted | key)  # noqa: S606 - the client, from the catalog

    def handover(self, client: str) -> str:
        """What a person with a key of their own needs: URL, model, limits, key and configuration. It has the key."""
        key, there, trust = self.secret.reveal(), self.endpoint, ""
        if self.root is not None and self.root.is_file():
            # the path is one of this machine
            there = replace(there, root=Path(CERTIFICATE))
            trust = f"\n# save as {CERTIFICATE}, which clients must trust: {TRUST}\n{read_text(self.root)}"
        about = configuration(self.known["any"], there).replace(f"${KEY_VARIABLE}", key) + trust
        text = configuration(self.known[client], there).replace(f'"$({there.key_command})"', key)
        where = f"{self.known[client].title}: {self.known[client].where}"
        export = "" if self.known[client].is_shell else f"export {KEY_VARIABLE}={key}\n\n"
        return f"{about}\n# {where}\n{export}{text}" if client != "any" else about


def connect(directory: Path, client: str = "", *, url: str | None = None, key_name: str = "") -> Connections:
    """What clients need to reach a deployment; `url` is their way to it if that is not where it listens.

    `key_name` is a further key that they use. Raises BadInput for an unknown client and on a rank that answers no
    requests, NoDeployment, SettingsRefused, NotPossible for an unknown key.
    """
    known = _clients(client)
    deployment = Deployment.existing(directory)
    plan = plan_of(deployment)
    refuse_other_ranks(plan)
    secret = Secret(key_with(deployment.further_keys, key_name).key) if key_name else deployment.key
    reads = reads_tool_calls(plan)
    published = published_of(deployment, plan)
    with endpoint_of(deployment, plan) as endpoint:
        facts = EndpointFacts(
            whole_url(deployment, plan) if url is None else address_of(url),
            endpoint.model,
            plan.settings.max_model_len,
            str(deployment.directory),
            key_name=key_name,
            images=takes_images(plan),
            tools=reads,
            reasoning=reasons(plan),
            root=published.root if published and url is None else None,
        )
    return Connections(deployment.redact, facts, known, reads, secret)


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
    return Connections(redact, facts, known, True, key)


def has_deployment(directory: Path) -> bool:
    """Whether a directory has a deployment. Raises FileRefused if its `.env` is not a file."""
    return Deployment(directory).exists()


def named(client: str) -> str:
    """The name of a client in our list, for one that people use; the same word if the list has no such client."""
    return next((name for name, one in clients().items() if client.lower() in one.also), client.lower())


def _clients(client: str) -> Mapping[str, ClientTemplate]:
    """All known clients. Raises BadInput if the chosen one is not among them."""
    known = clients()
    if client and client not in known:
        hint = f"{nearest(client, known)}; others: `dflash-deploy connect any`"
        raise BadInput(f"`{client}` is not a known client", hint=hint)
    return known
