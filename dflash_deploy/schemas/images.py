"""The `data` of `image` and `connect`."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field

from dflash_deploy.schemas.common import Documented


class ImageBuildData(Documented):
    """The image that `image build` built."""

    image: str
    """Tag of the image."""
    base: str
    """Base image that it is built on."""


class ImageCheckData(Documented):
    """One check of an image."""

    name: str
    """What was checked."""
    passed: bool
    """Whether the check passed."""
    saw: str
    """What was found."""


class ImageVerifyData(Documented):
    """What `image verify` found."""

    image: str
    """Tag of the image."""
    checks: list[ImageCheckData]
    """All checks, in the order in which they ran."""


class ImageDigestData(Documented):
    """What the tag of the base image means now."""

    tag: str
    """The base image as `.env` has it."""
    digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
    """Digest of the base image."""
    pinned: bool
    """Whether `--pin` was given: then `.env` has the digest."""


class ClientData(Documented):
    """A client that `connect` has a configuration for."""

    client: str
    """Name, as `connect CLIENT` takes it."""
    title: str
    """What the client is."""
    where: str
    """Where its configuration belongs."""


class ConnectData(Documented):
    """The clients that `connect` knows."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    model: str
    """Name of the model in requests."""
    root_certificate: NotRequired[str]
    """File of the certificate that clients must trust, if no public authority signs the endpoint's."""
    clients: list[ClientData]
    """All known clients."""


class ConnectClientData(Documented):
    """The configuration of one client."""

    endpoint: str
    """Base URL for OpenAI clients; it ends with `/v1`."""
    model: str
    """Name of the model in requests."""
    root_certificate: NotRequired[str]
    """File of the certificate that clients must trust, if no public authority signs the endpoint's."""
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
