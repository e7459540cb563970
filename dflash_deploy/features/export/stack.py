"""The folder of `export production-stack`: the values of vLLM's production-stack chart, and the steps.

The chart runs its own `vllm serve`, with the arguments of the plan.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.errors import NotPossible
from dflash_deploy.features.export.cluster import Cluster, ExportSource, has_registry
from dflash_deploy.features.export.folder import yaml_of
from dflash_deploy.features.export.objects import origin_of, strategy_of
from dflash_deploy.features.export.pods import CONFINED, pod_spec, quantity
from dflash_deploy.features.export.readme import KEYS, filled, image_note, minutes_of, of_plan, weights
from dflash_deploy.plan.command import engine_command
from dflash_deploy.serve.engines.installed import InstalledEngine
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings

CHART, CHART_VERSION = "vllm-stack", "0.1.12"
REPOSITORY = "https://vllm-project.github.io/production-stack"

MODEL = "engine"
"""The name of the model in the chart's objects."""

ROUTER_KEY = "stack-router"
"""The name of the router's API key. The router opens /sleep with it to clients without a key; its scope does not."""

KEY_ENTRY = "key"
"""The entry of the Secret with that key."""

OF_CHART: Mapping[str, int] = {
    "--host": 1,
    "--port": 1,
    "--max-model-len": 1,
    "--max-num-seqs": 1,
    "--gpu-memory-utilization": 1,
    "--tensor-parallel-size": 1,
    "--enable-prefix-caching": 0,
    "--no-enable-prefix-caching": 0,
}
"""Arguments that the chart has values for, and how many words follow each."""


def keys_secret(cluster: Cluster) -> str:
    """The Secret whose entries are variables: VLLM_API_KEY, and DFLASH_API_KEYS for further keys."""
    return f"{cluster.name}-stack-keys"


def router_secret(cluster: Cluster) -> str:
    """The Secret with the key of the chart's router."""
    return f"{cluster.name}-stack-router"


def check_stack(source: ExportSource) -> None:
    """Raise NotPossible for a deployment that the chart cannot run."""
    plan = source.plan
    instead = "use `dflash-deploy export kubernetes`"
    if not plan.engine.kind.in_production_stack:
        raise NotPossible(f"the chart runs vLLM only, and this deployment {plan.engine.kind.title}", hint=instead)
    if plan.engine.cpu:
        raise NotPossible("the chart runs `vllm serve` without what the build for the CPU needs", hint=instead)
    if source.nodes > 1:
        raise NotPossible(
            f"{Settings.nodes}={source.nodes}: the chart runs a model on several nodes with Ray only", hint=instead
        )
    if plan.settings.enable_prefix_caching is None:
        raise NotPossible(
            f"{Settings.enable_prefix_caching} is empty, and the chart always turns it on or off",
            hint=f"set {Settings.enable_prefix_caching} to true or false in .env",
        )


def stack_values(source: ExportSource, cluster: Cluster) -> dict[str, Any]:
    """The values. Keys are references to Secrets that exist. Raises NotPossible as `check_stack`."""
    check_stack(source)
    pod = pod_spec(source, cluster)
    (engine,) = pod["containers"]
    # the chart's own are the same for each release, so that a router finds the engines of another one
    labels = {"environment": cluster.name, "release": cluster.name}
    return {
        "servingEngineSpec": {
            "labels": labels,
            "vllmApiKey": {"secretName": keys_secret(cluster), "secretKey": Settings.vllm_api_key.name},
            "imagePullPolicy": "IfNotPresent" if has_registry(source.image(cluster)) else "Never",
            "runtimeClassName": "",
            "strategy": strategy_of(cluster),
            "securityContext": pod["securityContext"],
            "containerSecurityContext": {"runAsNonRoot": True, **CONFINED},
            **{name: _probe(engine[name]) for name in ("startupProbe", "readinessProbe", "livenessProbe")},
            "modelSpec": [_model(source, cluster, pod)],
        },
        "routerSpec": {
            "vllmApiKey": {"secretName": router_secret(cluster), "secretKey": KEY_ENTRY},
            "routingLogic": "prefixaware" if cluster.routed else "roundrobin",
        },
    }


def _probe(probe: Mapping[str, Any]) -> dict[str, Any]:
    """A probe with the fields that the chart passes on. It has the path and the port of /health itself."""
    own = {
        name: probe[name] for name in ("periodSeconds", "failureThreshold", "timeoutSeconds", "exec") if name in probe
    }
    return own if "exec" in probe else {**own, "httpGet": {"path": probe["httpGet"]["path"], "port": 8000}}


def _model(source: ExportSource, cluster: Cluster, pod: Mapping[str, Any]) -> dict[str, Any]:
    settings = source.plan.settings
    (engine,) = pod["containers"]
    repository, tag = image_parts(source.image(cluster))
    command = engine_command(source.plan)
    found: dict[str, Any] = {
        "name": MODEL,
        "annotations": origin_of(source),
        "repository": repository,
        "tag": tag,
        "modelURL": command[2],
        "replicaCount": cluster.replicas,
        "runtimeClassName": "",
        "resources": engine["resources"],
        "shmSize": quantity(source.plan.values),
        "vllmConfig": {
            "enablePrefixCaching": settings.enable_prefix_caching,
            # with it, the chart gives the engine memory in /dev/shm
            "tensorParallelSize": settings.tensor_parallel_size or 1,
            **_sizes(settings),
            "extraArgs": list(further_arguments(command)),
        },
        "env": [{"name": name, "value": value} for name, value in environment_of_chart(source).items()],
        "envFromSecret": {"name": keys_secret(cluster)},
        "nodeSelectorTerms": [{"matchExpressions": [_in(name, value) for name, value in pod["nodeSelector"].items()]}],
        # the chart has /dev/shm and the keys itself
        "extraVolumes": [_volume(one) for one in pod["volumes"] if one["name"] not in {"shm", "keys"}],
        "extraVolumeMounts": [one for one in engine["volumeMounts"] if one["name"] not in {"shm", "keys"}],
    }
    if cluster.routed:
        found["pdb"] = {"enabled": True, "maxUnavailable": 1}
    return found


def _volume(volume: Mapping[str, Any]) -> dict[str, Any]:
    """A volume of the pod. The claim of the cache is an object of `export kubernetes`."""
    return {"name": "cache", "emptyDir": {}} if volume["name"] == "cache" else dict(volume)


def _sizes(settings: Settings) -> dict[str, Any]:
    sizes = {
        "maxModelLen": settings.max_model_len,
        "maxNumSeqs": settings.max_num_seqs,
        "gpuMemoryUtilization": settings.gpu_memory_utilization,
    }
    return {name: value for name, value in sizes.items() if value is not None}


def _in(name: str, value: str) -> dict[str, Any]:
    return {"key": name, "operator": "In", "values": [value]}


def further_arguments(command: Sequence[str]) -> Iterator[str]:
    """The arguments after `vllm serve MODEL` that the chart has no value for: among them drafter and gateway."""
    words = iter(command[3:])
    for word in words:
        if word in OF_CHART:
            for _ in range(OF_CHART[word]):
                next(words)
        else:
            yield word


def environment_of_chart(source: ExportSource) -> dict[str, str]:
    """The variables of the engine and of its gateway. The chart gives it the keys in variables too."""
    own = {name: value for name, value in source.environment.items() if name != SECRETS_FILE}
    kind = source.plan.engine.kind
    engine = InstalledEngine(kind.name, source.plan.engine_version, cpu=False)
    traces = source.plan.settings.otlp_traces_endpoint
    return {**engine.environment(own), **(traces.environment(service=kind.name) if traces else {})}


def image_parts(image: str) -> tuple[str, str]:
    """An image as repository and tag, between which the chart writes a colon. A digest is the tag of `NAME@sha256`."""
    repository, colon, tag = image.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (image, "latest")


VALUES, README = "values.yaml", "README.md"

HEADER = """\
# Written by dflash-deploy {version} export production-stack, from .env and dflash.lock, for {chart} {chart_version}.
# Put changes into a values file of your own, after this one: an edited file is not written again.
"""


def stack_folder(source: ExportSource, cluster: Cluster) -> dict[str, str]:
    """The text of each file. No text has a secret. Raises NotPossible for what the chart cannot run."""
    header = HEADER.format(version=__version__, chart=CHART, chart_version=CHART_VERSION)
    return {VALUES: header + yaml_of(stack_values(source, cluster)), README: stack_readme(source, cluster)}


def keys_command(source: ExportSource, cluster: Cluster) -> str:
    """The line that creates the Secret of the engines' keys. They go through a pipe, so `ps` does not show them."""
    # a value without its quotes: kubectl takes a line as it is
    found = f"^[[:space:]]*(export[[:space:]]+)?({'|'.join(KEYS)})[[:space:]]*=[[:space:]]*"
    value = "[^A-Za-z0-9_-]?([A-Za-z0-9_:,=-]+).*"
    return (
        f"sed -nE 's/{found}{value}/\\2=\\3/p' {shlex.quote(source.env_file)} | "
        f"kubectl create secret generic {keys_secret(cluster)} --from-env-file=/dev/stdin"
    )


def router_key_command(source: ExportSource, cluster: Cluster) -> str:
    """The line that creates the Secret of the router's key."""
    key = f"s/.*[^a-z0-9_-]{ROUTER_KEY}:([A-Za-z0-9_-]+).*/\\1/p"
    return (
        f"sed -nE '{key}' {shlex.quote(source.env_file)} | tr -d '\\n' | "
        f"kubectl create secret generic {router_secret(cluster)} --from-file={KEY_ENTRY}=/dev/stdin"
    )


def stack_readme(source: ExportSource, cluster: Cluster) -> str:
    """The text of README.md."""
    note = image_note(source, cluster)
    return filled(
        "production-stack",
        **of_plan(source.plan),
        **weights(source, cluster),
        name=cluster.name,
        replicas=cluster.replicas,
        chart=CHART,
        chart_version=CHART_VERSION,
        repository=REPOSITORY,
        image=source.image(cluster),
        pinned=f"{note}. Export again with `--image REPOSITORY@sha256:DIGEST`." if note else "The nodes pull it.",
        router_key=ROUTER_KEY,
        router_key_command=router_key_command(source, cluster),
        keys_command=keys_command(source, cluster),
        deployment=f"{cluster.name}-{MODEL}-deployment-vllm",
        minutes=minutes_of(source),
    )
