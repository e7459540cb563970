"""The README of the kustomize folder, and the Job that downloads the weights.

The README has what the user runs, in which order, and what they see then. It has steps for what only some clusters
have: the Prometheus Operator, an Ingress. It ends with what holds in the cluster, and what the user has to do there
themselves. The Job runs `pull` with the deployment's lock, and fills the claim of the weights before the engine starts.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.features.export.cluster import PULL, Cluster, ExportSource, has_registry, is_pinned
from dflash_deploy.features.export.objects import CACHE_SIZE, CLIENT_LABEL, metadata, router_name, selector
from dflash_deploy.features.export.optional import KEY, KEY_NAME, METRICS_LABEL, metrics_secret, tls_secret
from dflash_deploy.features.export.pods import (
    CONFINED,
    FURTHER_KEYS,
    KEYS_IN_SECRET,
    PORT,
    STARTS,
    cache_claim,
    pod_security,
    runs_on,
    secret_name,
    shares_weights,
    weights_claim,
)
from dflash_deploy.serve.drain import SETTLES
from dflash_deploy.serve.router.files import KEYS as ROUTER_KEYS
from dflash_deploy.serve.settings import Settings


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
    inputs = [source.pull_files, cluster.tool, source.user, source.group, weights_claim(source, cluster)]
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
            {"name": "weights", "persistentVolumeClaim": {"claimName": weights_claim(source, cluster)}},
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
        *([ingress_steps(cluster)] if cluster.host else []),
        limits(source, cluster),
    ]
    return "\n".join(sections)


def _head(source: ExportSource, cluster: Cluster) -> str:
    plan = source.plan
    return f"""\
# {cluster.name} on Kubernetes

Profile {plan.profile.name}, models {plan.pair.name}, engine {plan.engine.name}, replicas: {cluster.replicas}.

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
{router}    dflash-deploy export test NAMESPACE

The last line checks each pod and the Service, through port-forwards of your kubectl, and names a pod that differs.
For a look with curl: `kubectl port-forward service/{cluster.name} {PORT}:{PORT}`.

A pod is `Running` and not ready while the engine loads. A first start may take {minutes} minutes; then
Kubernetes restarts it. `kubectl logs {_logged(source, cluster)}` shows the engine's log.
{routed}"""
