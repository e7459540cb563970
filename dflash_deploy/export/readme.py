"""The README of the folder: what a person runs, in which order, and what they see then."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from dflash_deploy import __version__
from dflash_deploy.export.cluster import Cluster, ExportSource, has_registry, is_pinned
from dflash_deploy.export.objects import selector
from dflash_deploy.export.pod import FURTHER_KEYS, KEYS_IN_SECRET, PORT, STARTS, secret_name, weights_claim
from dflash_deploy.export.pull import TOKEN, job_name, token_secret
from dflash_deploy.export.readme_limits import limits
from dflash_deploy.export.readme_optional import (
    autoscaling_steps,
    gateway_steps,
    ingress_steps,
    monitoring_steps,
    pool_steps,
)
from dflash_deploy.export.router import router_name
from dflash_deploy.serve.router.files import KEYS as ROUTER_KEYS
from dflash_deploy.serve.settings import Settings

KEYS = (Settings.vllm_api_key.name, Settings.dflash_api_keys.name)


def secret_command(source: ExportSource, cluster: Cluster) -> str:
    """The line that creates the Secret. The keys go through a pipe, so neither `ps` nor a shell's history has them."""
    # as the engine reads .env: blanks and `export` may precede a name
    further = f" --from-file={FURTHER_KEYS}={shlex.quote(source.keys_file)}" if cluster.routed else ""
    return (
        f"{plain_lines(source.env_file, *KEYS)} | "
        f"kubectl create secret generic {secret_name(cluster)} --from-file={KEYS_IN_SECRET}=/dev/stdin{further}"
    )


def router_secret_command(source: ExportSource, cluster: Cluster) -> str:
    """The line that creates the Secret with the router's two keys; empty without a router."""
    if not cluster.routed:
        return ""
    file = shlex.quote(source.router_keys_file)
    return f"kubectl create secret generic {router_name(cluster)} --from-file={ROUTER_KEYS}={file}"


def plain_lines(env_file: str, *names: str) -> str:
    """The command that prints settings of `.env` as lines of NAME=VALUE."""
    blank = "[[:space:]]"
    found = f"^{blank}*(export{blank}+)?({'|'.join(names)}){blank}*={blank}*"
    return f"sed -nE 's/{found}/\\2=/p' {shlex.quote(env_file)}"


def image_note(source: ExportSource, cluster: Cluster) -> str:
    """What is missing for the nodes to have the image; empty if it is named by its digest."""
    image = source.image(cluster)
    if is_pinned(image):
        return ""
    if has_registry(image):
        return f"{image} has no digest: a node that pulls it later may run another one"
    return f"{image} is on this machine only: push it to a registry, or load it onto each node"


def readme(source: ExportSource, cluster: Cluster) -> str:
    """The text of README.md."""
    sections = [
        _head(source, cluster),
        _image(source, cluster),
        *([_router_image(cluster)] if cluster.routed and not is_pinned(cluster.router) else []),
        _weights(source, cluster),
        _secret(source, cluster),
        _apply(source, cluster),
        monitoring_steps(source, cluster),
        *([gateway_steps(cluster) if cluster.gateway else ingress_steps(cluster)] if cluster.host else []),
        *([autoscaling_steps(source, cluster)] if cluster.max_replicas else []),
        *([pool_steps(cluster)] if cluster.endpoint_picker else []),
        limits(source, cluster),
    ]
    return "\n".join(sections)


def _head(source: ExportSource, cluster: Cluster) -> str:
    plan = source.plan
    return f"""\
# {cluster.name} on Kubernetes

Profile {plan.profile.name}, models {plan.pair.name}, engine {plan.engine.name}, replicas: {cluster.number}.

`base/` is a kustomize folder without a namespace and without a secret. Its manifests are validated against the
published schemas of Kubernetes, and applied to no cluster. Run the steps in this order.
"""


def _image(source: ExportSource, cluster: Cluster) -> str:
    image = source.image(cluster)
    if not (note := image_note(source, cluster)):
        return f"## 1. The image\n\nNodes pull `{image}`.\n"
    if has_registry(image):
        return f"""\
## 1. The image

{note}. Pin it:

    docker pull {image}
    docker image inspect --format '{{{{index .RepoDigests 0}}}}' {image}
    dflash-deploy export kubernetes --image REPOSITORY@sha256:DIGEST     # and the other options as before
"""
    built = f"for {source.architecture}, the processor of the nodes" if source.architecture else "for their processor"
    return f"""\
## 1. The image

{note}. Build it {built}.

With a registry; `docker push` prints the digest:

    dflash-deploy image build
    docker tag {image} REGISTRY/{image.rpartition("/")[2]}
    docker push REGISTRY/{image.rpartition("/")[2]}
    dflash-deploy export kubernetes --image REGISTRY/{image.rpartition("/")[2].partition(":")[0]}@sha256:DIGEST

Without a registry, on each node of k3s (`imagePullPolicy` is `Never`, so no other registry is asked):

    docker save {image} | sudo k3s ctr images import -
"""


def _router_image(cluster: Cluster) -> str:
    """How the nodes get the router's image."""
    return f"""\
The router and the door have an image of their own. Build it in a checkout of version {__version__}:

    docker build -f images/router/Dockerfile -t {cluster.router} .

Load it onto each node, or push it and export again with `--router-image REPOSITORY@sha256:DIGEST`.
"""


def _weights(source: ExportSource, cluster: Cluster) -> str:
    places = {"target": source.target, "drafter": source.drafter}
    known = {role: path for role, path in places.items() if path}
    owner = f"user {source.user}, group {source.group}"
    if cluster.weights == "host-path":
        listed = "\n".join(f"    {path}" for path in known.values())
        return f"""\
## 2. The weights

Each node needs these directories, readable for {owner}:

{listed}

`dflash-deploy pull` fetches them, verified. A namespace with the Pod Security level `baseline` or `restricted` refuses
host paths: export with `--weights claim` for it.
"""
    return f"""\
## 2. The weights

The claim `{weights_claim(source, cluster)}` has {source.claim_gib} GiB. Fill it once.
{_pulled(source, cluster) if source.pull_files else ""}
{"Without the Hub, from" if source.pull_files else "From"} this machine:

    dflash-deploy pull --verify
    kubectl apply -f base/weights.yaml -f loader.yaml
    kubectl wait --for=condition=Ready pod/{cluster.name}-loader --timeout=10m
{_copies(cluster, known)}
    kubectl delete -f loader.yaml
"""


def _copies(cluster: Cluster, known: Mapping[str, str]) -> str:
    return "\n".join(
        f"    tar -C {shlex.quote(path)} -chf - . | "
        f"kubectl exec -i {cluster.name}-loader -- sh -c 'mkdir -p /models/{role} && tar -C /models/{role} -xf -'"
        for role, path in known.items()
    )


def _pulled(source: ExportSource, cluster: Cluster) -> str:
    """The steps of the Job."""
    image, name = cluster.tool, job_name(source, cluster)
    own = f"""
The Job needs an image of dflash-deploy. Build it in a checkout of version {__version__}, then push or load it:

    pip wheel --no-deps --wheel-dir wheel .
    docker build -f images/tool/Dockerfile -t {image} wheel
"""
    return f"""
From the Hub, in the cluster: a Job runs `pull` with this deployment's lock. It verifies each file. After a
failure it starts again in a new pod, and the download continues.
{"" if has_registry(image) else own}
    kubectl apply -f base/weights.yaml
    kubectl delete job/{name} --ignore-not-found
    kubectl apply -k pull
    {wait_for_job(name)}

The last line waits, and ends with `Complete` or `Failed`. Each try has a log, which is kept for a day:

    kubectl logs -l job-name={name} --prefix --tail=20

If a repository needs a token, create its Secret before the Job:

    {plain_lines(source.env_file, TOKEN)} | cut -d= -f2- | \\
      kubectl create secret generic {token_secret(cluster)} --from-file={TOKEN}=/dev/stdin
"""


def wait_for_job(name: str) -> str:
    """The line that ends when a Job does, and says how. `kubectl wait` would not end for a Job that failed."""
    asked = f"kubectl get job/{name} -o jsonpath='{{.status.conditions[*].type}}'"
    return f"until {asked} | grep -owE 'Complete|Failed'; do sleep 10; done"


def _secret(source: ExportSource, cluster: Cluster) -> str:
    if cluster.routed:
        return f"""\
## 3. The API keys

    {secret_command(source, cluster)}
    {router_secret_command(source, cluster)}

The second Secret has the router's own two keys, with which no client gets an answer. The token for the Hugging Face Hub
stays here. After `keys add` or `keys revoke`, replace the first Secret; the engines read it again within two minutes:

    {secret_command(source, cluster)} --dry-run=client -o yaml | kubectl apply -f -

After a change of the API key itself, also restart the pods:

    {_restart(source, cluster)}
"""
    return f"""\
## 3. The API keys

    {secret_command(source, cluster)}

The token for the Hugging Face Hub stays here. After a key changed, replace the Secret and restart the pods:

    kubectl delete secret {secret_name(cluster)}     # then the command above
    {_restart(source, cluster)}
"""


def _restart(source: ExportSource, cluster: Cluster) -> str:
    if source.nodes == 1:
        return f"kubectl rollout restart deployment/{cluster.name}"
    chosen = ",".join(f"{name}={value}" for name, value in selector(cluster).items())
    return f"kubectl delete pod -l {chosen}     # the leaders: each group restarts together"


def _wait(source: ExportSource, cluster: Cluster) -> str:
    if source.nodes == 1:
        return f"kubectl rollout status deployment/{cluster.name}"
    return f"kubectl wait --for=condition=Available leaderworkerset/{cluster.name}"


def _logged(source: ExportSource, cluster: Cluster) -> str:
    return f"deployment/{cluster.name}" if source.nodes == 1 else f"{cluster.name}-0"


def _apply(source: ExportSource, cluster: Cluster) -> str:
    minutes = max(1, round(STARTS * source.start_seconds / 60))
    router = f"    kubectl rollout status deployment/{router_name(cluster)}\n" if cluster.routed else ""
    routed = (
        "The router has an engine as soon as its pod is ready; until then it answers 503.\n" if cluster.routed else ""
    )
    return f"""\
## 4. Apply and test

    kubectl apply -k base
    {_wait(source, cluster)} --timeout={minutes}m
{router}    dflash-deploy test --kubernetes NAMESPACE

The last line checks each pod and the Service, through port-forwards of your kubectl, and names a pod that differs.
For a look with curl: `kubectl port-forward service/{cluster.name} {PORT}:{PORT}`.

A pod is `Running` and not ready while the engine loads. A first start may take {minutes} minutes; then
Kubernetes restarts it. `kubectl logs {_logged(source, cluster)}` shows the engine's log.
{routed}"""
