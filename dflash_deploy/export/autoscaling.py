"""The folder `autoscaling/`: a ScaledObject, with which KEDA adds engines before requests wait."""

from __future__ import annotations

from typing import Any

from dflash_deploy.export.cluster import USUAL_PROMETHEUS, Cluster, ExportSource
from dflash_deploy.export.objects import metadata
from dflash_deploy.plan.sizes import USUAL_SEQUENCES

COMPONENT = "autoscaling"

LONGEST_POLICY, LONGEST_WINDOW = 1800, 3600
"""Seconds that Kubernetes allows for the period of a policy, and for a stabilization window."""


def start_minutes(source: ExportSource) -> int:
    """Minutes until a further engine answers, as far as the plan knows."""
    return max(1, round(source.start_seconds / 60))


def sequences(source: ExportSource) -> int:
    """Requests that one engine serves at the same time; the next one waits."""
    return source.plan.settings.max_num_seqs or USUAL_SEQUENCES


def autoscaling_note(source: ExportSource, cluster: Cluster) -> str:
    """The comment of the file: what autoscaling costs."""
    return f"""\
# A further engine loads the model first: expect about {start_minutes(source)} minutes until it answers.
# Requests wait meanwhile. So this follows a load that lasts for hours, and does not help against a short peak.
# {cluster.number} engines, each with GPUs of its own: without free ones its pod stays Pending.
"""


def autoscaling_objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file."""
    return {
        "scaledobject.yaml": {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": metadata(cluster, cluster.name, COMPONENT),
            "spec": {
                "scaleTargetRef": _target(source, cluster),
                "minReplicaCount": cluster.replicas,
                "maxReplicaCount": cluster.max_replicas,
                "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(source)}},
                "triggers": [_trigger(source, cluster)],
            },
        }
    }


def _target(source: ExportSource, cluster: Cluster) -> dict[str, str]:
    if source.nodes > 1:
        return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": cluster.name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": cluster.name}


def _trigger(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    chosen = f'{{deployment="{cluster.name}"}}'
    return {
        "type": "prometheus",
        # engines = requests / threshold, so that one is added as soon as a request waits.
        # With waiting requests only, full engines would be removed as soon as there are enough of them
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": cluster.prometheus or USUAL_PROMETHEUS,
            "query": f"sum(dflash:running{chosen} + dflash:queue{chosen})",
            "threshold": str(sequences(source)),
            # a Prometheus that has lost the engines must not remove one
            "ignoreNullValues": "false",
        },
    }


def _behavior(source: ExportSource) -> dict[str, Any]:
    start = int(source.start_seconds)
    return {
        # the next one only when this one has had the time to load, and to take its share
        "scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": min(start, LONGEST_POLICY)}]},
        # an engine that was not needed for as long as its start takes
        "scaleDown": {
            "stabilizationWindowSeconds": min(start, LONGEST_WINDOW),
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        },
    }
