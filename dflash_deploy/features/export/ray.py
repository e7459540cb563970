"""`export ray`: a proven deployment as an application of Ray Serve LLM, whose replica is the plan of one machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from dflash_deploy.catalog.load import load_ray_releases
from dflash_deploy.catalog.releases import RayRelease
from dflash_deploy.catalog.settings import passed_on
from dflash_deploy.deployment.directory import Deployment, changes, last_good
from dflash_deploy.deployment.files import not_written, write_output
from dflash_deploy.deployment.keys import keys_file
from dflash_deploy.document import CommandData, Documented
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.intake.files import shown
from dflash_deploy.intake.parse import parse_json
from dflash_deploy.plan.command import drafter_directory, engine_environment, refusals_of_env
from dflash_deploy.plan.compatible import below
from dflash_deploy.plan.model_metadata import metadata_of
from dflash_deploy.plan.result import Plan
from dflash_deploy.plan.sizes import USUAL_SEQUENCES
from dflash_deploy.planning import plan_of
from dflash_deploy.serve.engines import Build
from dflash_deploy.serve.field import VLLM
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from dflash_deploy.serve.ray_proxy import CALLBACK, INTERVAL, SETTINGS
from dflash_deploy.serve.secrets import SECRETS_FILE
from dflash_deploy.serve.settings import Settings

PREFIX_ROUTER = "ray.serve.llm.request_router.PrefixCacheAffinityRouter"
MOST_REPLICAS = 1000
KEYS_MOUNT = "/etc/dflash"  # where a pod has the Secret with the keys
SERVE_PORT = 8000  # of the endpoint in Kubernetes
IMAGE = "dflash-deploy/ray:{}"  # built as README.md says: no registry has Ray's image with the gateway in it

# Arguments of `vllm serve` that are Ray's own affair: its address, its proxy, and copies, which are replicas there.
_RAYS_OWN = {"host", "port", "served_model_name", "middleware", "disable_access_log_for_endpoints"}
_RAYS_OWN |= {"data_parallel_size", "api_server_count"}
_LISTS = {"allowed_media_domains"}  # arguments that are a list even with one value


@dataclass(frozen=True)
class Exported(Documented):
    """What was written, and for what."""

    directory: str
    """Directory of the files."""
    files: tuple[str, ...]
    """Names of the files."""
    engine: str
    """The engine that answers there, and the one that these settings were proven with."""


class _Plain(yaml.SafeDumper):
    """Writes parts that are used twice twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


DOCUMENTS = {"export ray": CommandData((Exported,))}


def export_to(directory: Path, out: Path, replicas: str) -> Exported:
    """Write the files. Raises NoDeployment, NotPossible with the reason, BadInput, SettingsRefused."""
    least, most = replicas_in(replicas)
    deployment = Deployment.existing(directory)
    if last_good(deployment) is None or changes(deployment):
        hint = f"`dflash-deploy up{deployment.option}` starts them and waits for an answer"
        raise NotPossible("these settings have not answered here yet", hint=hint)
    plan, release = plan_of(deployment), load_ray_releases()[-1]
    for reason, hint in obstacles(plan, release):
        raise NotPossible(f"Ray Serve LLM {release.ray} cannot serve this deployment: {reason}", hint=hint)
    copies = plan.settings.data_parallel_size
    files = files_of(deployment, plan, release, (least * copies, most * copies))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise not_written(out, problem) from None
    for name, text in files.items():
        write_output(out / name, text)
    said = f"Ray {release.ray} runs vLLM {release.vllm}; these settings were proven with {plan.engine_title}"
    return Exported(shown(out), tuple(files), said)


def replicas_in(text: str) -> tuple[int, int]:
    """Fewest and most replicas in `N` or `N-M`. Raises BadInput."""
    found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text, re.ASCII)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MOST_REPLICAS:
        said = f"`{text[:20]}` is not a number of replicas (1-{MOST_REPLICAS}), nor a range of them"
        raise BadInput(said, hint="--replicas 2, or --replicas 1-4 to follow the number of requests")
    return least, most


def obstacles(plan: Plan, release: RayRelease) -> Iterator[tuple[str, str]]:
    """Why that release of Ray cannot serve the plan, each with what to do."""
    settings, other = plan.settings, "`dflash-deploy models list` shows what vLLM serves"
    if plan.engine.kind.template != VLLM:
        yield f"it runs vLLM only, and this deployment {plan.engine.title}", other
        return
    if settings.several_machines:
        yield f"{Settings.nodes}: a replica is one machine here", f"serve a model that fits one machine: {other}"
    if settings.idle_minutes is not None:
        hint = f"`dflash-deploy set {Settings.idle_minutes}=`, `dflash-deploy up`; `--replicas N-M` follows the load"
        yield f"{Settings.idle_minutes}: its replicas do not sleep", hint
    if len(settings.served_model_name) > 1:
        first = f"{Settings.served_model_name}={settings.served_model_name[0]}"
        yield "a model has one name there", f"`dflash-deploy set {first}`, then `dflash-deploy up`"
    yield from _beyond_its_vllm(plan, release, other)


def _beyond_its_vllm(plan: Plan, release: RayRelease, other: str) -> Iterator[tuple[str, str]]:
    needed = plan.pair.family.needs.get(plan.engine.engine)
    if needed is not None and below(release.vllm, needed):
        yield f"{plan.pair.family.title} needs vLLM {needed}; it pins {release.vllm}", other
    architecture = metadata_of(plan.checkpoints.drafter).architecture or plan.pair.drafter.architecture
    if plan.drafting and architecture and architecture not in release.drafters:
        hint = f"`dflash-deploy set {Settings.dflash_drafter}=off` serves without it"
        yield f"its vLLM {release.vllm} does not load drafters with the architecture {architecture}", hint
    for field in (Settings.kv_cache_dtype, Settings.dflash_kv_cache_dtype):
        if (dtype := plan.values.get(field.name)) and dtype not in release.kv_dtypes:
            hint = f"`dflash-deploy set {field}=`, then `dflash-deploy up`"
            yield f"its vLLM {release.vllm} has no KV cache of type {dtype}", hint
    for name in arguments(plan, release):
        if name not in release.arguments:
            hint = f"`dflash-deploy set {Settings.extra_args}=…` without it, then `dflash-deploy up`"
            yield f"its vLLM {release.vllm} has no argument --{name.replace('_', '-')}", hint


def arguments(plan: Plan, release: RayRelease) -> dict[str, Any]:
    """The plan's own arguments of the engine, by their names in Python. Raises SettingsRefused."""
    with refusals_of_env():
        settings = Settings(engine_environment(plan))
        words = plan.engine.kind.arguments(settings, Build(release.vllm, plan.engine.cpu))
    # after `serve` and the target
    return dict(named(words[2:], release.arguments))


def named(words: list[str], known: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Arguments of a command line as names and values; `known` tells `--no-NAME` from a name with `no_`."""
    at = 0
    while at < len(words):
        flag, equals, value = words[at].partition("=")
        at += 1
        values = [value] if equals else []
        while not equals and at < len(words) and not words[at].startswith("--"):
            values.append(words[at])
            at += 1
        name = flag.lstrip("-").replace("-", "_")
        if name in _RAYS_OWN:
            continue
        if name not in known and name.removeprefix("no_") in known:
            yield name.removeprefix("no_"), False
        elif len(values) > 1 or name in _LISTS:
            yield name, values
        else:
            yield name, _typed(values[0]) if values else True


def _typed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def application(
    deployment: Deployment, plan: Plan, release: RayRelease, replicas: tuple[int, int], address: tuple[str, int]
) -> dict[str, Any]:
    """The document of serve.yaml. `address`: where the proxy listens."""
    settings, sequences = plan.settings, plan.settings.max_num_seqs or USUAL_SEQUENCES
    kwargs = arguments(plan, release)
    if plan.drafting:
        kwargs["speculative_config"]["model"] = str(deployment.path(drafter_directory(settings)))
    # a replica holds as many waiting requests as running ones; further ones wait for the first replica with room
    deployed: dict[str, Any] = {"max_ongoing_requests": 2 * sequences, "num_replicas": replicas[1]}
    if replicas[0] < deployed["num_replicas"]:
        scaling = {"min_replicas": replicas[0], "max_replicas": deployed.pop("num_replicas")}
        deployed["autoscaling_config"] = {**scaling, "target_ongoing_requests": sequences}
    if settings.enable_prefix_caching is not False:
        # by default it ignores the load
        router = {"imbalanced_threshold": sequences, "do_eviction": True}
        deployed["request_router_config"] = {"request_router_class": PREFIX_ROUTER, "request_router_kwargs": router}
    bundle = {"CPU": 1} if plan.engine.cpu else {"CPU": 1, "GPU": 1}
    gpus, weights = settings.tensor_parallel_size or 1, str(deployment.path(settings.model_host_path))
    config: dict[str, Any] = {
        "model_loading_config": {"model_id": _name(plan), "model_source": weights},
        "accelerator_config": {"kind": "cpu" if plan.engine.cpu else "gpu"},
        "placement_group_config": {"bundles": [dict(bundle) for _ in range(gpus)], "strategy": "STRICT_PACK"},
        "deployment_config": deployed,
        "engine_kwargs": kwargs,
    }
    # secrets are not in the plan; Ray chooses the GPUs of a replica
    own = {name: value for name, value in plan.values.items() if passed_on(name) and not name.startswith("CUDA_")}
    if variables := {name: value for name, value in own.items() if value}:
        config["runtime_env"] = {"env_vars": variables}
    built = {"import_path": "ray.serve.llm:build_openai_app", "args": {"llm_configs": [config]}}
    return {
        # one proxy, so that the limits of a key count over all replicas
        "proxy_location": "HeadOnly",
        "http_options": {"host": address[0], "port": address[1]},
        "applications": [{"name": "dflash", "route_prefix": "/", **built}],
    }


def _name(plan: Plan) -> str:
    return plan.settings.served_model_name[0] if plan.settings.served_model_name else plan.pair.name


def environment(plan: Plan, secrets: str, keys: str = "") -> dict[str, str]:
    """The environment of Ray's processes: the gateway with its settings, and Ray's own ports closed by a token."""
    own = {field.name: plan.values.get(field.name, "") for field in SETTINGS}
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": CALLBACK,
        SECRETS_FILE: secrets,
        **({KEYS_FILE: keys} if keys else {}),
        Settings.served_model_name.name: _name(plan),
        **{name: value for name, value in own.items() if value},
        INTERVAL: "1000",
        # as natively: an allowed domain must not redirect to another one
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def files_of(deployment: Deployment, plan: Plan, release: RayRelease, replicas: tuple[int, int]) -> Mapping[str, str]:
    """The texts of all files by name."""
    settings, keys = plan.settings, shlex.quote(str(deployment.env_file.resolve()))
    here = application(deployment, plan, release, replicas, (settings.dflash_bind, settings.dflash_port))
    variables = environment(plan, str(deployment.env_file.resolve()), str(keys_file(deployment).resolve()))
    readme = (resources.files(__package__) / "README.txt").read_text("utf-8")
    named = {"ray": release.ray, "of_vllm": release.vllm, "env": keys, "image": IMAGE.format(release.ray)}
    return {
        "serve.yaml": _yaml(here),
        "rayservice.yaml": _yaml(rayservice(deployment, plan, release, replicas)),
        "ray.env": "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()),
        "README.md": readme.format(**named, port=settings.dflash_port),
    }


def _yaml(document: object) -> str:
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=120)


def rayservice(deployment: Deployment, plan: Plan, release: RayRelease, replicas: tuple[int, int]) -> dict[str, Any]:
    """The document of rayservice.yaml: KubeRay's RayService with serve.yaml inside, whose paths pods have too."""
    settings, image = plan.settings, IMAGE.format(release.ray)
    served = application(deployment, plan, release, replicas, ("0.0.0.0", SERVE_PORT))  # noqa: S104 - inside the pod
    variables = environment(plan, f"{KEYS_MOUNT}/keys.env")
    # authOptions sets the first one, with the token
    env = [{"name": name, "value": value} for name, value in variables.items() if name != "RAY_AUTH_MODE"]
    places = [settings.model_host_path, *([drafter_directory(settings)] if plan.drafting else [])]
    weights = [
        {"name": "weights", "mountPath": str(one), "subPath": one.name, "readOnly": True}
        for one in map(deployment.path, places)
    ]
    keys = {"name": "keys", "mountPath": KEYS_MOUNT, "readOnly": True}
    volumes = [
        {"name": "weights", "persistentVolumeClaim": {"claimName": "dflash-weights", "readOnly": True}},
        {"name": "keys", "secret": {"secretName": "dflash-keys"}},
    ]
    head = {"name": "ray-head", "image": image, "env": env, "volumeMounts": [*weights, keys]}
    head["ports"] = [{"name": "serve", "containerPort": SERVE_PORT}]
    # KubeRay's own readiness of a worker asks its proxy, and only the head has one
    raylet = {"httpGet": {"path": "/api/healthz", "port": 52365}, "periodSeconds": 5}
    worker = {"name": "ray-worker", "image": image, "env": env, "volumeMounts": weights, "readinessProbe": raylet}
    if not plan.engine.cpu:
        worker["resources"] = {"limits": {"nvidia.com/gpu": settings.tensor_parallel_size or 1}}
    workers = {
        "groupName": "replicas",
        **dict(zip(("replicas", "minReplicas", "maxReplicas"), (replicas[0], *replicas), strict=True)),
        "rayStartParams": {},
        "template": {"spec": {"containers": [worker], "volumes": volumes[:1]}},
    }
    cluster = {
        "rayVersion": release.ray,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": replicas[0] < replicas[1],
        "headGroupSpec": {
            "rayStartParams": {"num-gpus": "0"},
            "template": {"spec": {"containers": [head], "volumes": volumes}},
        },
        "workerGroupSpecs": [workers],
    }
    spec = {"serveConfigV2": _yaml(served), "rayClusterConfig": cluster}
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "dflash"}, "spec": spec}
