"""The folder of `export production-stack`: the values of the chart, and the steps."""

from __future__ import annotations

import shlex

from dflash_deploy import __version__
from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.pod import STARTS, weights_claim
from dflash_deploy.export.readme import KEYS, image_note
from dflash_deploy.export.stack import (
    CHART,
    CHART_VERSION,
    KEY_ENTRY,
    MODEL,
    REPOSITORY,
    ROUTER_KEY,
    keys_secret,
    router_secret,
    stack_values,
)
from dflash_deploy.export.yaml_written import yaml_of

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
    plan, note = source.plan, image_note(source, cluster)
    minutes = max(1, round(STARTS * source.start_seconds / 60))
    deployment = f"{cluster.name}-{MODEL}-deployment-vllm"
    pinned = f"{note}. Export again with `--image REPOSITORY@sha256:DIGEST`." if note else "The nodes pull it."
    return f"""\
# {cluster.name} on vLLM's production-stack

Profile {plan.profile.name}, models {plan.pair.name}, engine {plan.engine.name}, replicas: {cluster.replicas}.

`values.yaml` is for the chart {CHART} {CHART_VERSION}. It has no key. It has been installed on no cluster.

## 1. The image

    {source.image(cluster)}

{pinned}

## 2. The weights

{_weights(source, cluster)}
## 3. The API keys

The chart's router has a key of its own, which only opens the routes of applications:

    dflash-deploy keys add {ROUTER_KEY}
    {router_key_command(source, cluster)}
    {keys_command(source, cluster)}

The chart gives keys to containers as environment variables: who may run commands in a pod can read them.
After `keys add` or `keys revoke`, delete the second Secret, create it again, and restart the pods:

    kubectl rollout restart deployment/{deployment}

## 4. Install and test

    helm repo add vllm {REPOSITORY}
    helm upgrade --install {cluster.name} vllm/{CHART} --version {CHART_VERSION} -f values.yaml
    kubectl rollout status deployment/{deployment}
    kubectl port-forward service/{cluster.name}-router-service 8000:80 &
    dflash-deploy test --url http://127.0.0.1:8000 --key-file FILE

The third line ends after 20 minutes, which the chart has as its limit. A first start may take {minutes} minutes.

## What to know

- The chart runs `vllm serve` itself, with the arguments of this deployment. One of them is the gateway, which checks
  each key.
- The router's image is that of the chart, without a digest. Pin it with `routerSpec.tag`.
- The router reads `/metrics` of the engines without a key, and gets 401. It does not know their load, and logs that.
- The router opens `/sleep` and `/wake_up` with its own key to clients without one. The engines refuse that key there.
- The chart has no NetworkPolicy. A pod that ends breaks off its answers after 30 seconds at the latest.
- Limits of an API key apply to each pod by itself.
"""


def _weights(source: ExportSource, cluster: Cluster) -> str:
    if cluster.weights == "claim":
        options = f"--weights claim --name {cluster.name} --replicas {cluster.replicas}"
        return f"""\
The claim `{weights_claim(source, cluster)}` has them. `dflash-deploy export kubernetes {options}` writes the claim
and what fills it; step 2 of its README has the lines.
"""
    listed = "\n".join(f"    {path}" for path in (source.target, source.drafter) if path)
    return f"""\
Each node needs these directories, readable for user {source.user}, group {source.group}:

{listed}
"""
