"""The documents of Kubernetes, as far as `test --kubernetes` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from dflash_deploy.intake.answers import ForeignDocument
from dflash_deploy.intake.invalid import printable

LABEL = "app.kubernetes.io/"
"""What the names of the recommended labels begin with."""

PAGE = 200
"""Pods of one answer of Kubernetes, which says how to ask for the next ones."""

Texts = Annotated[dict[str, str], Field(default_factory=dict)]
Some = Annotated[list[dict[str, Any]], Field(max_length=200)]


class Condition(ForeignDocument):
    """One condition of a pod."""

    type: str
    status: str


class ContainerStatus(ForeignDocument):
    """What runs in a container."""

    name: str
    image_id: Annotated[str, Field(alias="imageID")] = ""


class PodStatus(ForeignDocument):
    """The state of a pod."""

    phase: str = "Unknown"
    conditions: Annotated[list[Condition], Field(default_factory=list)]
    containers: Annotated[list[ContainerStatus], Field(alias="containerStatuses", default_factory=list)]


class PodMetadata(ForeignDocument):
    """Name, labels and annotations."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
    labels: Texts
    annotations: Texts
    ends: Annotated[str | None, Field(alias="deletionTimestamp")] = None


class PodSpec(ForeignDocument):
    """What a pod was created with, as far as replicas have it in common."""

    containers: Some
    volumes: Annotated[Some, Field(default_factory=list)]


class Pod(ForeignDocument):
    """A pod."""

    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    def label(self, name: str) -> str:
        """A label of those that Kubernetes recommends, such as `instance`; empty without it."""
        return self.metadata.labels.get(f"{LABEL}{name}", "")

    @property
    def unready(self) -> str:
        """Why it gets no requests; empty if it is ready."""
        if self.metadata.ends:
            return "it is about to end"
        ready = any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)
        return "" if ready else f"{printable(self.status.phase)}, not ready"

    @property
    def keys_secret(self) -> str:
        """The Secret with the API keys that it mounts; empty without one."""
        mounted = (one.get("secret") for one in self.spec.volumes if one.get("name") == "keys")
        return next((str(one.get("secretName") or "") for one in mounted if isinstance(one, dict)), "")


class ListMetadata(ForeignDocument):
    """What a list says of itself: `more` is the token for the pods behind it, empty at its end."""

    more: Annotated[str, Field(alias="continue", max_length=8192)] = ""


class PodList(ForeignDocument):
    """A list of pods, or a page of it."""

    metadata: Annotated[ListMetadata, Field(default_factory=ListMetadata)]
    items: Annotated[list[Pod], Field(max_length=PAGE)]


class SecretDocument(ForeignDocument):
    """A Secret; its values are in base64."""

    data: Texts


def settings_of(pod: Pod, container: str) -> Mapping[str, Any]:
    """What a pod's container was created with, except its name and image."""
    found = next((one for one in pod.spec.containers if one.get("name") == container), {})
    return {key: value for key, value in found.items() if key not in {"name", "image"}}


def image_of(pod: Pod, container: str) -> str:
    """The digest of the image that a container runs; its name if Kubernetes does not say."""
    running = next((one.image_id for one in pod.status.containers if one.name == container), "")
    named = next((str(one.get("image", "")) for one in pod.spec.containers if one.get("name") == container), "")
    return running or named
