"""What a person chooses for the cluster, and what the export reads of the deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash_deploy import __version__
from dflash_deploy.assets import build_digest
from dflash_deploy.errors import BadInput
from dflash_deploy.export.gpus import gpus_of_pod
from dflash_deploy.plan import Plan
from dflash_deploy.serve.settings import Settings

Weights = Literal["host-path", "claim"]
"""Where pods find the weights: in the directories of each node, or in a PersistentVolumeClaim."""

LONGEST_NAME = 40
"""Characters of the name. A pod adds up to 17, and a label has at most 63."""

MOST_REPLICAS = 64

USUAL_PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
"""The Service that the Prometheus Operator makes, in the namespace that its chart proposes."""

USUAL_START = 1200.0
"""Expected seconds of a first start, at least: the start period of the Compose file.

A profile's own figure was measured with its usual models on a local disk; a claim may be slower, and models larger.
"""

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_HOST = re.compile(r"(?=.{1,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_GATEWAY = re.compile(
    r"((?P<namespace>[a-z0-9][a-z0-9-]{0,62})/)?(?P<name>[a-z0-9][a-z0-9.-]{0,62})(:(?P<listener>[a-z0-9][a-z0-9.-]{0,62}))?"
)
_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PICKER = re.compile(r"(?P<name>[a-z]([a-z0-9-]{0,61}[a-z0-9])?)(:(?P<port>[1-9][0-9]{0,4}))?")
_PROMETHEUS = re.compile(r"https?://[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[1-9][0-9]{0,4})?(/[a-zA-Z0-9._/-]*)?")
IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:/-]*(@sha256:[0-9a-f]{64})?")


def check_form(what: str, value: str, pattern: re.Pattern[str], example: str) -> None:
    """Raise BadInput if a choice does not match. An empty one leaves it to the deployment or the cluster."""
    if value and not pattern.fullmatch(value):
        raise BadInput(f"`{value[:80]}` is not a valid {what}", hint=f"such as {example}")


TLS_LISTENER = "https"
"""The listener of a Gateway if none is named. A route without a listener is also attached to those without TLS."""


@dataclass(frozen=True)
class GatewayListener:
    """One listener of a Gateway. An empty namespace is that of the route."""

    namespace: str
    name: str
    listener: str


PICKER_PORT = 9002
"""The port of an endpoint picker if none is named."""


@dataclass(frozen=True)
class PickerService:
    """The Service of an endpoint picker."""

    name: str
    port: int


@dataclass(frozen=True)
class Cluster:
    """The choices for one cluster. Empty texts leave a choice to the cluster, or to the deployment.

    `name` is that of all objects. `image` replaces the image of the deployment. `tool_image` is that of
    dflash-deploy itself, `router_image` that of the router and the door before several replicas.
    `host` is the domain name of an Ingress; without it there is none. With `gateway`, it is that of an HTTPRoute
    instead: `NAME`, `NAMESPACE/NAME` or either with `:LISTENER`. With `max_replicas`, KEDA changes the number of
    replicas between both; it asks the Prometheus at the URL `prometheus`. With `endpoint_picker`, `NAME[:PORT]` of a
    Service, the Gateway also gets an InferencePool.
    """

    name: str = "dflash"
    replicas: int = 1
    weights: Weights = "host-path"
    image: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    runtime_class: str = ""
    storage_class: str = ""
    tool_image: str = ""
    router_image: str = ""
    host: str = ""
    ingress_class: str = ""
    gateway: str = ""
    max_replicas: int = 0
    prometheus: str = ""
    endpoint_picker: str = ""

    def __post_init__(self) -> None:
        """Raises BadInput for what Kubernetes would refuse."""
        if not _NAME.fullmatch(self.name) or len(self.name) > LONGEST_NAME:
            raise BadInput(
                f"`{self.name[:80]}` is not a valid name for objects in Kubernetes",
                hint=f"expected lower-case letters, digits and -, at most {LONGEST_NAME} characters, such as dflash",
            )
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise BadInput(
                f"`{self.replicas}` is not a valid number of replicas (1-{MOST_REPLICAS})",
                hint="each replica needs GPUs of its own",
            )
        if self.max_replicas and not self.replicas < self.max_replicas <= MOST_REPLICAS:
            raise BadInput(
                f"`{self.max_replicas}` is not a valid maximum of replicas ({self.replicas + 1}-{MOST_REPLICAS})",
                hint="--replicas is the least number of engines, --max-replicas the largest one",
            )
        check_form("URL of Prometheus", self.prometheus, _PROMETHEUS, USUAL_PROMETHEUS)
        if self.prometheus and not self.max_replicas:
            raise BadInput("a URL of Prometheus is for autoscaling", hint="add --max-replicas N")
        check_form("image", self.image, IMAGE, "registry.example.com/dflash-vllm:1@sha256:DIGEST")
        check_form("image", self.tool_image, IMAGE, "registry.example.com/dflash-tool:1@sha256:DIGEST")
        check_form("image", self.router_image, IMAGE, "registry.example.com/dflash-router:1@sha256:DIGEST")
        check_form("GPU resource", self.gpu_resource, _RESOURCE, "nvidia.com/gpu")
        check_form("runtime class", self.runtime_class, _OBJECT, "nvidia")
        check_form("storage class", self.storage_class, _OBJECT, "local-path")
        check_form("ingress class", self.ingress_class, _OBJECT, "traefik")
        check_form("host", self.host, _HOST, "llm.example.com")
        check_form("gateway", self.gateway, _GATEWAY, "infra/public or infra/public:https")
        for what, value in (("an ingress class", self.ingress_class), ("a gateway", self.gateway)):
            if value and not self.host:
                raise BadInput(f"{what} needs a host", hint="add --host llm.example.com")
        check_form("endpoint picker", self.endpoint_picker, _PICKER, "llm-d-picker or llm-d-picker:9002")
        if self.endpoint_picker and not (self.gateway and self.routed):
            raise BadInput(
                "an endpoint picker is for several replicas behind a Gateway",
                hint="add --gateway NAMESPACE/NAME, --host NAME and --replicas N",
            )
        if self.ingress_class and self.gateway:
            raise BadInput(
                "an Ingress and an HTTPRoute would publish the same host",
                hint="leave out --gateway or --ingress-class",
            )

    @property
    def tool(self) -> str:
        """The image of dflash-deploy."""
        return self.tool_image or f"dflash-deploy/tool:{__version__}"

    @property
    def router(self) -> str:
        """The image of the router and the door."""
        return self.router_image or f"dflash-deploy/router:{__version__}-{build_digest('router')}"

    @property
    def parent(self) -> GatewayListener:
        """The listener of `gateway`."""
        found = _GATEWAY.fullmatch(self.gateway)
        assert found is not None  # noqa: S101 - __post_init__ has refused any other
        return GatewayListener(found["namespace"] or "", found["name"], found["listener"] or TLS_LISTENER)

    @property
    def picker(self) -> PickerService:
        """The Service of `endpoint_picker`."""
        found = _PICKER.fullmatch(self.endpoint_picker)
        assert found is not None  # noqa: S101 - __post_init__ has refused any other
        return PickerService(found["name"], int(found["port"] or PICKER_PORT))

    @property
    def number(self) -> str:
        """The number of replicas for a person."""
        return f"{self.replicas} to {self.max_replicas}" if self.max_replicas else str(self.replicas)

    @property
    def routed(self) -> bool:
        """Whether a router is in front of the engines."""
        return max(self.replicas, self.max_replicas) > 1


@dataclass(frozen=True)
class ExportSource:
    """What the export reads: the plan, and facts of the deployment that the plan does not have.

    `environment` is that of the engine's container in Compose, without secrets. `env_file`, `keys_file` and
    `router_keys_file` are files of this machine that Secrets are made of. `target` and `drafter` are absolute
    directories on this machine; `drafter` is empty without one. `locked` is the repository and commit of each role,
    `weights_bytes` the size of all locked files. `pull_files` are the `.env` without secrets and the lock with which a
    Job fills the claim; empty if none can. `rule_groups` are the rules of Prometheus: recorded series, alerts, limits.
    """

    plan: Plan
    environment: Mapping[str, str]
    env_file: str
    keys_file: str
    router_keys_file: str
    target: str
    drafter: str
    user: int
    group: int
    locked: Mapping[str, str]
    weights_bytes: int
    pull_files: Mapping[str, str] = field(default_factory=dict)
    rule_groups: Sequence[Mapping[str, Any]] = ()

    def image(self, cluster: Cluster) -> str:
        """The image of the engine."""
        return cluster.image or self.plan.settings.dflash_image

    @property
    def nodes(self) -> int:
        """Nodes that serve the model together; 1 for an engine on one machine."""
        return self.plan.settings.nodes if self.plan.settings.several_machines else 1

    @property
    def gpus(self) -> int:
        """GPUs of one pod: those that its settings ask for; for engines without such settings all of the machine.

        Raises NotPossible if the settings do not give a number.
        """
        if self.plan.engine.cpu:
            return 0
        if self.plan.engine.kind.knows(Settings.tensor_parallel_size):
            return gpus_of_pod(self.plan.settings, self.nodes)
        return self.plan.profile.match.gpus

    @property
    def start_seconds(self) -> float:
        """Expected seconds of the first start, with empty caches."""
        known = self.plan.profile.first_start
        return max(known.seconds if known else 0.0, USUAL_START)

    @property
    def architecture(self) -> str:
        """The processor as Kubernetes names it; empty if the profile does not say."""
        return {"aarch64": "arm64", "x86_64": "amd64"}.get(self.plan.profile.hardware.architecture or "", "")

    @property
    def claim_gib(self) -> int:
        """GiB of the claim for the weights: the locked files and a tenth."""
        return max(1, -(-self.weights_bytes * 11 // (10 * 2**30)))


def is_pinned(image: str) -> bool:
    """Whether an image is named by its digest, so that every node runs the same."""
    return "@sha256:" in image


def has_registry(image: str) -> bool:
    """Whether an image names its registry. Nodes would look for any other one on Docker Hub."""
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")
