"""The end of the README: what holds in the cluster, and what a person has to do there themselves."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.objects import CACHE_SIZE, CLIENT_LABEL
from dflash_deploy.export.pod import cache_claim, shares_weights, weights_claim
from dflash_deploy.export.router import router_name
from dflash_deploy.serve.drain import SETTLES
from dflash_deploy.serve.settings import Settings

KINDS = "deployment,service,configmap,networkpolicy,pdb,pvc,serviceaccount,role,rolebinding"
"""The kinds of objects that an export with other options may leave behind."""


def limits(source: ExportSource, cluster: Cluster) -> str:
    """The section of the README."""
    return "## What to know\n\n" + "".join(f"- {line}\n" for line in _known(source, cluster))


def _known(source: ExportSource, cluster: Cluster) -> Iterator[str]:
    yield "On k3s, pods reach the GPU with the runtime class `nvidia`: export with `--runtime-class nvidia`."
    yield (
        f"Pods of the same namespace reach the endpoint. Open it to another one with "
        f"`kubectl label namespace NAME {CLIENT_LABEL}=true`."
    )
    yield from _ends(source, cluster)
    yield "Limits of an API key apply to each pod by itself."
    if source.nodes > 1:
        yield f"The cluster needs LeaderWorkerSet (lws.sigs.k8s.io). A group has a pod on each of {source.nodes} nodes."
        yield "The ranks talk over the network of the pods. RDMA needs a device plugin of the cluster, in an overlay."
    if claim := cache_claim(source, cluster):
        yield f"The claim `{claim}` ({CACHE_SIZE}) keeps compiled kernels, so that later starts are faster."
    else:
        yield "Each pod compiles its kernels itself: they are lost with the pod."
    if cluster.routed:
        yield from _router(cluster)
    yield from _changes(source, cluster)


def _ends(source: ExportSource, cluster: Cluster) -> Iterator[str]:
    if not cluster.routed:
        yield "An update ends the engine before it starts the next one: the endpoint does not answer in between."
    else:
        yield (
            "An update replaces one engine at a time. The new one may wait for GPUs until the old one has ended; "
            "until it is ready, there is one engine less."
        )
    yield (
        f"A pod that ends gets no new requests, and has {source.plan.settings.drain_seconds} seconds for its answers "
        f"({Settings.drain_seconds}). Longer ones break off. Without requests in flight, it ends after about "
        f"{SETTLES + 2} seconds."
    )


def _router(cluster: Cluster) -> Iterator[str]:
    name = router_name(cluster)
    yield "The router sends the turns of a conversation to the same engine, and knows which engines are ready."
    yield "Only the router reaches the engines, if the cluster's network enforces a NetworkPolicy."
    yield (
        f"If `kubectl logs deployment/{name} -c router` says `Kubernetes does not list the engines`, its API may have "
        "another port: `kubectl get endpointslices -n default -l kubernetes.io/service-name=kubernetes` shows it. "
        f"Add it to the egress of the NetworkPolicy `{name}` in an overlay."
    )


def _changes(source: ExportSource, cluster: Cluster) -> Iterator[str]:
    if cluster.weights == "claim":
        claim = weights_claim(source, cluster)
        if shares_weights(source, cluster):
            yield f"The claim `{claim}` needs a storage class with `ReadWriteMany`; that of k3s has none."
        yield (
            f"Kubernetes changes neither the mode nor the storage class of the claim `{claim}`, and never makes it "
            "smaller. If `apply` refuses it, delete the claim, and fill it again."
        )
    kinds = KINDS if source.nodes == 1 else f"{KINDS},leaderworkerset"
    yield (
        "`apply` deletes nothing. After an export with other options, delete the objects that the folder no longer "
        f"has: `kubectl get {kinds} -l app.kubernetes.io/instance={cluster.name}` lists all."
    )
