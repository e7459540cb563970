"""A pod's specification as typed values. Raises UnknownField for any field that is not translated."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.kubelet.fields import Fields, UnknownField, fields

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Kind = Literal["account", "claim", "config", "empty", "host", "memory", "secret"]


@dataclass(frozen=True)
class Volume:
    """Where files come from. `source` is a name or a path, of `memory` the size in bytes."""

    name: str
    kind: Kind
    source: str = ""
    mode: int = 0o644
    optional: bool = False


@dataclass(frozen=True)
class Mount:
    """A volume in a container."""

    volume: str
    path: str
    read_only: bool
    sub_path: str


@dataclass(frozen=True)
class Probe:
    """How a container is asked. `target` is a command, a path, or nothing; `port` that of HTTP and TCP."""

    kind: Literal["exec", "http", "tcp"]
    target: tuple[str, ...]
    port: int
    timeout: float
    period: int
    failures: int
    grace: int | None


@dataclass(frozen=True)
class ContainerSpec:
    """One container. Without a command, its image's entry point runs. `gpus` is how many it may use."""

    name: str
    image: str
    pull: str
    command: tuple[str, ...]
    config_maps: tuple[str, ...]
    env: Mapping[str, str]
    cpu_shares: int
    memory: int
    gpus: int
    probes: Mapping[str, Probe]
    pre_stop: tuple[str, ...]
    mounts: tuple[Mount, ...]


@dataclass(frozen=True)
class PodSpec:
    """A pod. `grace` is in seconds. `shares_processes`: the first process of its containers is not theirs."""

    user: int
    group: int
    fs_group: int
    grace: int
    account: str
    shares_processes: bool
    containers: tuple[ContainerSpec, ...]
    volumes: tuple[Volume, ...]


def read_pod(spec: Mapping[str, Any]) -> PodSpec:
    """The specification of a pod."""
    with fields(spec, "spec") as pod:
        # with service links, each Service of the namespace would be variables
        pod.only("enableServiceLinks", False)
        pod.only("automountServiceAccountToken", False)
        if "restartPolicy" in pod.left():
            # containers are not restarted here
            pod.only("restartPolicy", "Never")
        _node(pod)
        with fields(pod.take("securityContext"), "spec.securityContext") as security:
            user, group, fs_group = (security.take(name) for name in ("runAsUser", "runAsGroup", "fsGroup"))
            security.only("runAsNonRoot", True)
            security.only("fsGroupChangePolicy", "OnRootMismatch")
            with fields(security.take("seccompProfile"), "spec.securityContext.seccompProfile") as seccomp:
                # Docker's default profile is that of the runtimes of Kubernetes
                seccomp.only("type", "RuntimeDefault")
        if user == 0:
            raise UnknownField("runAsUser is 0, and runAsNonRoot is set")
        return PodSpec(
            user,
            group,
            fs_group,
            pod.take("terminationGracePeriodSeconds"),
            pod.take("serviceAccountName", ""),
            bool(pod.take("shareProcessNamespace", False)),
            tuple(_container(one, where) for where, one in pod.each("containers")),
            tuple(_volume(one, where) for where, one in pod.each("volumes")),
        )


def _node(pod: Fields) -> None:
    with fields(pod.take("nodeSelector"), "spec.nodeSelector") as node:
        node.only("kubernetes.io/os", "linux")
        if "kubernetes.io/arch" in node.left():
            node.only("kubernetes.io/arch", ARCHITECTURES[platform.machine()])


def _container(values: Mapping[str, Any], where: str) -> ContainerSpec:
    with fields(values, where) as one:
        ports = dict(_port(port, place) for place, port in one.each("ports"))
        with fields(one.take("securityContext"), f"{where}.securityContext") as security:
            security.only("allowPrivilegeEscalation", False)
            security.only("readOnlyRootFilesystem", True)
            with fields(security.take("capabilities"), f"{where}.securityContext.capabilities") as capabilities:
                capabilities.only("drop", ["ALL"])
        cpu, memory, gpus = _resources(one.take("resources"), f"{where}.resources")
        pre_stop = _pre_stop(one.take("lifecycle"), f"{where}.lifecycle") if "lifecycle" in one.left() else ()
        names = [name for name in ("startupProbe", "readinessProbe", "livenessProbe") if name in one.left()]
        return ContainerSpec(
            one.take("name"),
            one.take("image"),
            {"Never": "never", "IfNotPresent": "missing"}[one.take("imagePullPolicy")],
            tuple(one.take("command", ())),
            tuple(_config_map(source, place) for place, source in one.each("envFrom")),
            dict(_variable(variable, place) for place, variable in one.each("env")),
            # as the kubelet counts them
            int(cpu * 1024),
            memory,
            gpus,
            {name: _probe(one.take(name), f"{where}.{name}", ports) for name in names},
            pre_stop,
            tuple(_mount(mount, place) for place, mount in one.each("volumeMounts")),
        )


def _resources(values: Mapping[str, Any], where: str) -> tuple[float, int, int]:
    gpus = 0
    with fields(values, where) as resources:
        if "limits" in resources.left():
            with fields(resources.take("limits"), f"{where}.limits") as limits:
                gpus = limits.take("nvidia.com/gpu")
        with fields(resources.take("requests"), f"{where}.requests") as requests:
            return cpus(requests.take("cpu")), size(requests.take("memory")), gpus


def _pre_stop(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    with fields(values, where) as lifecycle, fields(lifecycle.take("preStop"), f"{where}.preStop") as stop:
        return _command(stop.take("exec"), f"{where}.preStop.exec")


def _port(values: Mapping[str, Any], where: str) -> tuple[str, int]:
    with fields(values, where) as port:
        return port.take("name"), port.take("containerPort")


def _command(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    with fields(values, where) as ran:
        return tuple(ran.take("command"))


def _config_map(values: Mapping[str, Any], where: str) -> str:
    with fields(values, where) as source, fields(source.take("configMapRef"), f"{where}.configMapRef") as reference:
        return str(reference.take("name"))


def _variable(values: Mapping[str, Any], where: str) -> tuple[str, str]:
    with fields(values, where) as variable:
        name, value = variable.take("name"), variable.take("value")
        if "$(" in value:
            raise UnknownField(f"{where}.value is {value!r}, which Kubernetes expands")
        return name, value


def _probe(values: Mapping[str, Any], where: str, ports: Mapping[str, int]) -> Probe:
    with fields(values, where) as probe:
        kind: Literal["exec", "http", "tcp"]
        target: tuple[str, ...] = ()
        port = 0
        if "exec" in probe.left():
            kind, target = "exec", _command(probe.take("exec"), f"{where}.exec")
        elif "httpGet" in probe.left():
            with fields(probe.take("httpGet"), f"{where}.httpGet") as asked:
                kind, target, port = "http", (asked.take("path"),), ports[asked.take("port")]
        else:
            with fields(probe.take("tcpSocket"), f"{where}.tcpSocket") as asked:
                kind, port = "tcp", ports[asked.take("port")]
        # these tests ask when they want to know
        probe.take("initialDelaySeconds", 0)
        return Probe(
            kind,
            target,
            port,
            probe.take("timeoutSeconds"),
            probe.take("periodSeconds"),
            probe.take("failureThreshold"),
            probe.take("terminationGracePeriodSeconds", None),
        )


def _mount(values: Mapping[str, Any], where: str) -> Mount:
    with fields(values, where) as mount:
        name, path = mount.take("name"), mount.take("mountPath")
        read_only = mount.take("readOnly", False)
        return Mount(name, path, bool(read_only), mount.take("subPath", ""))


def _volume(values: Mapping[str, Any], where: str) -> Volume:
    with fields(values, where) as volume:
        name = volume.take("name")
        kind, *more = volume.left()
        if more:
            raise UnknownField(f"{where} has {', '.join(volume.left())}, and one kind is known")
        with fields(volume.take(kind), f"{where}.{kind}") as source:
            match kind:
                case "emptyDir" if not source.left():
                    return Volume(name, "empty")
                case "emptyDir":
                    source.only("medium", "Memory")
                    return Volume(name, "memory", str(size(source.take("sizeLimit"))))
                case "hostPath":
                    source.only("type", "Directory")
                    return Volume(name, "host", source.take("path"))
                case "persistentVolumeClaim":
                    return Volume(name, "claim", source.take("claimName"))
                case "configMap":
                    return Volume(name, "config", source.take("name"))
                case "secret":
                    optional = source.take("optional", False)
                    return Volume(name, "secret", source.take("secretName"), source.take("defaultMode"), optional)
                case "projected":
                    _account(source)
                    return Volume(name, "account", mode=source.take("defaultMode"))
                case _:
                    raise UnknownField(f"{where}.{kind} is not translated")


def _account(projected: Fields) -> None:
    """The files of a service account, under the names that clients of Kubernetes expect."""
    token, certificate, namespace = projected.take("sources")
    with fields(token, "token") as source, fields(source.take("serviceAccountToken"), "token") as asked:
        asked.only("path", "token")
        # Kubernetes has ten minutes at least
        if asked.take("expirationSeconds") < 600:
            raise UnknownField("a token of less than ten minutes")
    with fields(certificate, "certificate") as source, fields(source.take("configMap"), "certificate") as asked:
        asked.only("name", "kube-root-ca.crt")
        asked.only("items", [{"key": "ca.crt", "path": "ca.crt"}])
    with fields(namespace, "namespace") as source, fields(source.take("downwardAPI"), "namespace") as asked:
        asked.only("items", [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}])


def cpus(quantity: str) -> float:
    """Processors, of a quantity such as 250m."""
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def size(quantity: str) -> int:
    """Bytes, of a quantity such as 16Gi."""
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
    return int(quantity[:-2]) * units[quantity[-2:]] if quantity[-2:] in units else int(quantity)
