"""The steps of the README for what only some clusters have: the Prometheus Operator, an Ingress, a Gateway."""

from __future__ import annotations

import shlex

from dflash_deploy.export.autoscaling import sequences, start_minutes
from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.ingress import tls_secret
from dflash_deploy.export.metrics import KEY, KEY_NAME, METRICS_LABEL, metrics_secret
from dflash_deploy.export.objects import CLIENT_LABEL
from dflash_deploy.export.pool import CANNOT


def monitoring_steps(source: ExportSource, cluster: Cluster) -> str:
    """How Prometheus gets its key, and reaches the engines."""
    entry = f"[^a-z0-9_-]{KEY_NAME}:([A-Za-z0-9_-]+):metrics"
    return f"""\
## 5. Monitoring, if the cluster has the Prometheus Operator

Give Prometheus a key that opens /metrics only, and replace the Secret of the API keys (step 3):

    dflash-deploy keys add {KEY_NAME} --scope metrics
    sed -nE 's/.*{entry}.*/\\1/p' {shlex.quote(source.env_file)} | tr -d '\\n' | \\
      kubectl create secret generic {metrics_secret(cluster)} --from-file={KEY}=/dev/stdin
    kubectl label namespace NAMESPACE-OF-PROMETHEUS {METRICS_LABEL}=true
    kubectl apply -k monitoring

A Prometheus that selects monitors and rules by a label, such as `release`, needs it on both: add it in an overlay.
"""


def ingress_steps(cluster: Cluster) -> str:
    """How the endpoint gets its host."""
    return f"""\
## 6. The Ingress

It publishes `/health` and the routes of applications at https://{cluster.host}, and no other path.

    kubectl create secret tls {tls_secret(cluster)} --cert=FILE --key=FILE     # or let your cluster make it
    kubectl label namespace NAMESPACE-OF-THE-CONTROLLER {CLIENT_LABEL}=true
    kubectl apply -k ingress
    dflash-deploy test --url https://{cluster.host} --key-file FILE
"""


def gateway_steps(cluster: Cluster) -> str:
    """How the endpoint gets its host at a Gateway."""
    parent = cluster.parent
    place = f" of the namespace `{parent.namespace}`" if parent.namespace else ""
    accepted = "jsonpath='{.status.parents[0].conditions[?(@.type==\"Accepted\")].status}'=True"
    return f"""\
## 6. The Gateway

It publishes `/health` and the routes of applications at https://{cluster.host}, and no other path. The certificate is
that of the listener `{parent.listener}` of the Gateway `{parent.name}`{place}.
The listener must allow routes of this namespace.

    kubectl label namespace NAMESPACE-OF-THE-GATEWAY-PODS {CLIENT_LABEL}=true
    kubectl apply -k gateway
    kubectl wait --for={accepted} httproute/{cluster.name}
    dflash-deploy test --url https://{cluster.host} --key-file FILE

If the third line waits for nothing, the Gateway has no such listener, or does not allow the route:
`kubectl describe httproute {cluster.name}` says which. Name another listener with `--gateway {parent.name}:LISTENER`.
"""


def autoscaling_steps(source: ExportSource, cluster: Cluster) -> str:
    """How KEDA changes the number of engines, and what that costs."""
    return f"""\
## 7. Autoscaling, if the cluster has KEDA

KEDA keeps {cluster.number} engines: one for each {sequences(source)} requests that run or wait.
It reads the recording rules of `monitoring/`, so step 5 comes first.

    kubectl apply -k autoscaling
    kubectl get scaledobject,hpa

A further engine loads the model first: expect about {start_minutes(source)} minutes until it answers.
Requests wait meanwhile. Autoscaling follows a load that lasts for hours; against short peaks, export with more
`--replicas`. An engine that is removed has {source.plan.settings.drain_seconds} seconds for its answers first.

`base` names no number of engines, so that `apply` does not change what KEDA set. Until `autoscaling` is applied, there
is one.
"""


def pool_steps(cluster: Cluster) -> str:
    """How a Gateway chooses the engine itself, and what it cannot do then."""
    cannot = "".join(f"- {line}\n" for line in CANNOT)
    return f"""\
## 8. An InferencePool, in place of the router

The Gateway asks the endpoint picker `{cluster.picker.name}`, port {cluster.picker.port}, which engine gets a request.
What it cannot do:

{cannot}
The route has the name of the one in `gateway/`, so the one that you apply last holds. The label of step 6 also lets the
Gateway reach the engines.

    kubectl apply -k inference     # back to the router: kubectl apply -k gateway
    dflash-deploy test --url https://{cluster.host} --key-file FILE
"""
