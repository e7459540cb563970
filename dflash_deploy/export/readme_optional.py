"""The steps of the README for what only some clusters have: the Prometheus Operator, and an Ingress."""

from __future__ import annotations

import shlex

from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.ingress import tls_secret
from dflash_deploy.export.metrics import KEY, KEY_NAME, METRICS_LABEL, metrics_secret
from dflash_deploy.export.objects import CLIENT_LABEL


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
