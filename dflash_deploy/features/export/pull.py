"""The Job that downloads the weights into a cluster.

It runs `pull` with the deployment's lock, and fills the claim of the weights before the engine starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dflash_deploy.features.export.cluster import PULL, Cluster, ExportSource, has_registry
from dflash_deploy.features.export.objects import metadata
from dflash_deploy.features.export.pods import CONFINED, pod_security, runs_on, weights_claim
from dflash_deploy.serve.settings import Settings

COMPONENT = "pull"
ENV_FILE, LOCK_FILE = ".env", "dflash.lock"
TOKEN = Settings.hf_token.name
"""The entry with the token for the Hub, and its setting."""

INPUT, WORK, TOKENS, MODELS = "/run/dflash/pull", "/work", "/run/secrets", "/models"
"""In the container: what the Job reads, the deployment that it makes of it, the token, and the claim."""

MOST_BYTES = 900_000
"""The largest lock that a ConfigMap holds beside its other texts: Kubernetes allows 1 MiB."""

TRIES = 20
"""Failed tries are repeated as often. Kubernetes waits up to six minutes before each."""

KEPT_SECONDS = 86_400
"""How long a Job that ended is kept, with the pods and logs of its tries."""

SCRIPT = f"""\
umask 077
cp {INPUT}/{ENV_FILE} {INPUT}/{LOCK_FILE} {WORK}/ || exit 1
if [ -s {TOKENS}/{TOKEN} ]; then printf '%s=%s\\n' {TOKEN} "$(cat {TOKENS}/{TOKEN})" >> {WORK}/{ENV_FILE}; fi
exec dflash-deploy pull --dir {WORK}
"""
"""The token goes from one file to another: no argument and no variable has it."""


def token_secret(cluster: Cluster) -> str:
    """The Secret with the token for the Hugging Face Hub. It may be missing: most repositories are open."""
    return f"{cluster.name}-hub"


def job_name(source: ExportSource, cluster: Cluster) -> str:
    """The name of the Job. It changes with its inputs: Kubernetes lets no one change a Job."""
    inputs = [source.pull_files, cluster.tool, source.user, source.group, weights_claim(cluster)]
    text = json.dumps(inputs, sort_keys=True)
    return f"{cluster.name}-pull-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def pull_objects(source: ExportSource, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Each object, by the name of its file."""
    return {
        "settings.yaml": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(cluster, f"{cluster.name}-pull", COMPONENT),
            "data": dict(source.pull_files),
        },
        "job.yaml": _job(source, cluster),
        "network.yaml": _network(cluster),
    }


def _job(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    named = metadata(cluster, job_name(source, cluster), COMPONENT)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**named, "annotations": _locked(source.locked)},
        "spec": {
            "backoffLimit": TRIES,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": named["labels"]}, "spec": _pod(source, cluster)},
        },
    }


def _locked(locked: Mapping[str, str]) -> dict[str, str]:
    return {f"dflash.dev/{role}": commit for role, commit in locked.items()}


def _pod(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    return {
        # each try is a pod, whose log is kept: with OnFailure, Kubernetes deletes the pod of a Job that failed.
        # The next one continues inside a file, with what is in the claim
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        # as the first process of its container, `pull` would ignore SIGTERM until SIGKILL
        "shareProcessNamespace": True,
        "securityContext": pod_security(source),
        "nodeSelector": runs_on(source),
        "containers": [_container(cluster)],
        "volumes": [
            {"name": "weights", "persistentVolumeClaim": {"claimName": weights_claim(cluster)}},
            {"name": "input", "configMap": {"name": f"{cluster.name}-pull"}},
            {"name": "token", "secret": {"secretName": token_secret(cluster), "optional": True, "defaultMode": 0o440}},
            {"name": "work", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _container(cluster: Cluster) -> dict[str, Any]:
    return {
        "name": COMPONENT,
        "image": cluster.tool,
        "imagePullPolicy": "IfNotPresent" if has_registry(cluster.tool) else "Never",
        "command": ["sh", "-c", SCRIPT],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the container's own
        "resources": {"requests": dict(PULL)},
        "securityContext": CONFINED,
        "volumeMounts": [
            {"name": "weights", "mountPath": MODELS},
            {"name": "input", "mountPath": INPUT, "readOnly": True},
            {"name": "token", "mountPath": TOKENS, "readOnly": True},
            {"name": "work", "mountPath": WORK},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        ],
    }


def _network(cluster: Cluster) -> dict[str, Any]:
    """No pod reaches the Job. It reaches the Hub, or a mirror on any port."""
    named = metadata(cluster, f"{cluster.name}-pull", COMPONENT)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": named,
        "spec": {"podSelector": {"matchLabels": named["labels"]}, "policyTypes": ["Ingress"]},
    }
