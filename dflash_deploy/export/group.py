"""One model over several nodes: a LeaderWorkerSet, whose groups have one pod for each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.pod import CONTAINER, number_of, pod_spec
from dflash_deploy.serve.settings import Settings

WORKER = "worker"
"""The component of the pods beside the leader. They answer no requests."""

FROM_GROUP: Mapping[str, str] = {
    Settings.nodes.name: "$(LWS_GROUP_SIZE)",
    Settings.node_rank.name: "$(LWS_WORKER_INDEX)",
    Settings.master_addr.name: "$(LWS_LEADER_ADDRESS)",
}
"""What each pod gets of its group. LeaderWorkerSet puts its variables before those of the container."""

OWN_ADDRESS = {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}

OF_MACHINES = frozenset(
    {
        *FROM_GROUP,
        *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"),
        *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", OWN_ADDRESS["name"]),
    }
)
"""Settings with addresses and interfaces of the machines: a pod has others."""

IN_POD = {Settings.dflash_bind.name: "0.0.0.0", Settings.dflash_port.name: "8000"}  # noqa: S104 - in the pod


def group_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a pod of a group, from that of a machine."""
    return {name: value for name, value in environment.items() if name not in OF_MACHINES} | IN_POD


def group(
    source: ExportSource, cluster: Cluster, about: Mapping[str, Any], template: Mapping[str, Any]
) -> dict[str, Any]:
    """The LeaderWorkerSet. `about` is its metadata, `template` the metadata of the leader's pod."""
    labels = {**template["labels"], "app.kubernetes.io/component": WORKER}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": dict(about),
        "spec": {
            **number_of(cluster),
            # the leader is ready only once all ranks have joined
            "startupPolicy": "LeaderCreated",
            # the usual headless Service would have the name of the endpoint's: no name of a leader would resolve
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "rolloutStrategy": {
                "type": "RollingUpdate",
                # a group beyond them finds no GPUs
                "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "leaderWorkerTemplate": {
                "size": source.nodes,
                # a rank that is lost ends the others too
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {"metadata": dict(template), "spec": _pod(source, cluster, leads=True)},
                "workerTemplate": {
                    "metadata": {**template, "labels": labels},
                    "spec": _pod(source, cluster, leads=False),
                },
            },
        },
    }


def _pod(source: ExportSource, cluster: Cluster, *, leads: bool) -> dict[str, Any]:
    spec = pod_spec(source, cluster)
    (engine,) = spec["containers"]
    engine["env"] = [*({"name": name, "value": value} for name, value in FROM_GROUP.items()), OWN_ADDRESS]
    if not leads:
        # it does not listen; it ends no earlier than the leader, whose answers need it
        engine["name"] = WORKER
        for name in ("ports", "startupProbe", "readinessProbe", "livenessProbe"):
            del engine[name]
    spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_apart(cluster)]}}
    return spec


def _apart(cluster: Cluster) -> dict[str, Any]:
    """The pods of a deployment are on different nodes, as its ranks on different machines."""
    return {"labelSelector": ranks(cluster), "topologyKey": "kubernetes.io/hostname"}


def ranks(cluster: Cluster) -> dict[str, Any]:
    """What selects the pods of all ranks."""
    components = {"key": "app.kubernetes.io/component", "operator": "In", "values": [CONTAINER, WORKER]}
    labels = {"app.kubernetes.io/name": "dflash-deploy", "app.kubernetes.io/instance": cluster.name}
    return {"matchLabels": labels, "matchExpressions": [components]}
