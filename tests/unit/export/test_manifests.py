"""Manifests of every profile and engine: valid for each version of Kubernetes, and the same engine as in Compose."""

import json
import re
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import ValidationError

from dflash_deploy.assets import asset
from dflash_deploy.catalog import load_catalog
from dflash_deploy.catalog.hardware import FirstStart
from dflash_deploy.deployment import Deployment
from dflash_deploy.deployment.render import ALL_GPUS, compose_text
from dflash_deploy.errors import BadInput, NotPossible
from dflash_deploy.export.cluster import Cluster, ExportSource
from dflash_deploy.export.folder import folder
from dflash_deploy.export.objects import loader, objects
from dflash_deploy.export.pod import quantity
from dflash_deploy.export.pull import job_name, pull_objects
from dflash_deploy.export.readme import readme
from dflash_deploy.export.router import router_objects
from dflash_deploy.plan import Plan
from dflash_deploy.serve.settings import Settings
from tests.support.manifests import VERSIONS, plan_for, plans, pod_of, source_for, validated

PLANS = {f"{plan.profile.name}-{plan.engine.name}": plan for plan in plans()}

SHAPES = {
    "one": Cluster(),
    "three": Cluster(
        replicas=3,
        weights="claim",
        runtime_class="nvidia",
        storage_class="local-path",
        image="r.example/v:1",
        host="llm.example.com",
        ingress_class="traefik",
    ),
    "one to four": Cluster(
        host="llm.example.com", gateway="infra/public:https", max_replicas=4, endpoint_picker="llm-d-picker"
    ),
}
CLUSTERS = tuple(SHAPES.values())

SEVERAL_NODES = plan_for("dgx-spark-x2", master_addr="10.0.0.1")


def container_of(source: ExportSource, cluster: Cluster = CLUSTERS[0]) -> dict[str, Any]:
    (container,) = pod_of(objects(source, cluster)["deployment.yaml"])["containers"]
    assert isinstance(container, dict)
    return container


def every_document(plan: Plan, cluster: Cluster) -> list[dict[str, Any]]:
    """All objects of a plan in one shape, read from the files' texts as kubectl reads them."""
    pulled = {".env": "A=b\n", "dflash.lock": "{}"}
    source = source_for(plan, weights_bytes=2**35, locked={"target": f"a/b@{'0' * 40}"}, pull_files=pulled)
    documents = [yaml.safe_load(text) for name, text in folder(source, cluster).items() if name.endswith(".yaml")]
    return [document for document in documents if document["kind"] != "Kustomization"]


def form_of(value: Any) -> Any:
    """The fields of a document with the types of their values; of the settings, which are texts, only the type."""
    if isinstance(value, dict):
        if value.get("kind") == "ConfigMap":
            assert all(isinstance(text, str) for text in value["data"].values())
            value = {**value, "data": {}}
        return {key: form_of(one) for key, one in value.items()}
    return [form_of(one) for one in value] if isinstance(value, list) else type(value).__name__


def test_every_profile_and_engine_is_valid_in_every_version() -> None:
    exported = {**PLANS, f"{SEVERAL_NODES.profile.name}-{SEVERAL_NODES.engine.name}": SEVERAL_NODES}
    shapes = {
        name: {shape: every_document(plan, cluster) for shape, cluster in SHAPES.items()}
        for name, plan in exported.items()
    }
    written = [one for made in shapes.values() for documents in made.values() for one in documents]
    # documents with the same fields and types are the same to a schema, which takes 0.1 s for each
    documents = {json.dumps(form_of(one), sort_keys=True): one for one in written}.values()
    kinds = {document["kind"] for document in documents}
    assert kinds == {
        "ConfigMap", "Deployment", "HTTPRoute", "InferencePool", "Ingress", "Job", "LeaderWorkerSet", "NetworkPolicy",
        "PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "PrometheusRule", "Role", "RoleBinding", "ScaledObject",
        "Service", "ServiceAccount", "ServiceMonitor",
    }  # fmt: skip
    assert VERSIONS[0] == "1.29"
    assert len(VERSIONS) >= 9
    for version in VERSIONS:
        assert {validated(document, version) for document in documents} == {version}
    print(f"{'documents':34}" + "".join(f"{shape:>13}" for shape in SHAPES))
    for name, made in shapes.items():
        print(f"{name:34}" + "".join(f"{len(made[shape]):13}" for shape in SHAPES))
    print(
        f"all {len(written)}, of {len(documents)} forms, are valid in {len(VERSIONS)} versions: {', '.join(VERSIONS)}"
    )


def test_each_engine_of_each_profile_is_exported() -> None:
    listed = {
        f"{profile.name}-{choice.release}"
        for profile in load_catalog().profiles.values()
        for choice in profile.engines
        if profile.hardware.machines == 1
    }
    assert listed <= PLANS.keys()
    assert {plan.engine.engine for plan in PLANS.values()} >= {"vllm", "sglang", "llamacpp"}


@pytest.mark.parametrize("field", ["livenesProbe", "readinessProb"])
def test_the_schemas_refuse_a_misspelt_field(field: str) -> None:
    document = objects(source_for(plan_for("dgx-spark")), Cluster())["deployment.yaml"]
    pod_of(document)["containers"][0][field] = {}
    for version in (VERSIONS[0], VERSIONS[-1]):
        with pytest.raises(ValidationError, match=field):
            validated(document, version)


@pytest.mark.parametrize("name", PLANS)
def test_the_settings_are_those_of_compose(name: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    deployment = Deployment(tmp_path, text="")
    service = yaml.safe_load(compose_text(deployment, plan))["services"]["engine"]
    expanded = {
        key: re.sub(r"\$\{(\w+):[-?]([^}]*)\}", lambda found: plan.values.get(found[1]) or found[2], value)
        for key, value in service["environment"].items()
    }
    for only_docker in ("DFLASH_KEYS_FILE", "DFLASH_LIMITS_DIRECTORY", ALL_GPUS):
        expanded.pop(only_docker, None)
    data = objects(source_for(plan), Cluster())["settings.yaml"]["data"]
    assert data == {key: value for key, value in expanded.items() if value}
    # the engine reads them without a complaint
    assert Settings(data).target.startswith("/models/target")


def test_the_numbers_of_this_machines_gpus_are_left_out() -> None:
    plan = plan_for("rtx-3090-x4", replicas=2)
    assert plan.values["CUDA_VISIBLE_DEVICES"]
    data = objects(source_for(plan), Cluster())["settings.yaml"]["data"]
    assert not {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"} & data.keys()


def test_the_container_is_confined_as_in_compose() -> None:
    base = yaml.safe_load(asset("compose", "base.yaml").read_text("utf-8"))["services"]["engine"]
    document = objects(source_for(plan_for("dgx-spark")), Cluster())["deployment.yaml"]
    pod, container = pod_of(document), pod_of(document)["containers"][0]
    assert base["read_only"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"]["drop"] == base["cap_drop"]
    assert base["security_opt"] == ["no-new-privileges:true"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 1000
    assert container["livenessProbe"]["exec"]["command"] == base["healthcheck"]["test"][1:]
    assert f"{container['livenessProbe']['periodSeconds']}s" == base["healthcheck"]["interval"]
    assert pod["terminationGracePeriodSeconds"] > int(base["stop_grace_period"].removesuffix("s"))
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/models/target", "/models/drafter", "/run/secrets", "/cache", *base["tmpfs"], "/dev/shm"}
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/cache", "/tmp", "/dev/shm"}
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(("measured", "allowed"), [(None, 3600), (30, 3600), (660, 3600), (2000, 6000)])
def test_a_start_may_take_an_hour_or_three_times_what_was_measured(measured: float | None, allowed: int) -> None:
    """A measurement is of the profile's usual models on a local disk: a fast one shortens nothing."""
    plan = plan_for("h100")
    known = None if measured is None else FirstStart(seconds=measured, source="a test")
    source = source_for(replace(plan, profile=plan.profile.model_copy(update={"first_start": known})))
    probe = container_of(source)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == allowed
    deadline = objects(source, Cluster())["deployment.yaml"]["spec"]["progressDeadlineSeconds"]
    assert deadline > allowed
    assert f"--timeout={allowed // 60}m" in folder(source, Cluster())["README.md"]


@pytest.mark.parametrize("name", PLANS)
def test_no_profile_shortens_the_first_start(name: str) -> None:
    probe = container_of(source_for(PLANS[name]))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600


@pytest.mark.parametrize(
    ("profile", "engine", "gpus"),
    [
        ("cpu", None, None),
        ("dgx-spark", None, 1),
        ("rtx-3090", "llamacpp-b11434", 1),
        ("rtx-3090-x2", "vllm-0.33", 2),
        ("rtx-3090-x4", "vllm-0.33", 4),
    ],
)
def test_a_pod_asks_for_the_gpus_that_its_engine_uses(profile: str, engine: str | None, gpus: int | None) -> None:
    cluster = Cluster(gpu_resource="example.com/gpu", runtime_class="nvidia")
    document = objects(source_for(plan_for(profile, engine)), cluster)["deployment.yaml"]
    (container,) = pod_of(document)["containers"]
    assert container["resources"].get("limits") == (gpus and {"example.com/gpu": gpus})
    assert pod_of(document).get("runtimeClassName") == (gpus and "nvidia")


@pytest.mark.parametrize(
    ("engine", "extra", "gpus"),
    [
        ("vllm-0.33", "--data-parallel-size 2", 4),
        ("vllm-0.33", "--data_parallel_size=2 --pipeline-parallel-size 3", 12),
        ("vllm-0.33", "-dp 4 -dp 2", 4),
        ("vllm-0.33", "-pcp 2", 4),
        ("sglang-0.5.23", "--dp-size 2 --pp-size 2", 8),
        ("sglang-0.5.23", "--dp-size 2 --enable-dp-attention", 2),
        ("vllm-0.33", "--max-logprobs 2", 2),
    ],
)
def test_further_parallelism_asks_for_more_gpus(engine: str, extra: str, gpus: int) -> None:
    container = container_of(with_extra(plan_for("rtx-3090-x2", engine), extra))
    assert container["resources"]["limits"] == {"nvidia.com/gpu": gpus}


@pytest.mark.parametrize("extra", ["--data-parallel-size auto", "-pp", "--pipeline-parallel-size=0", "-dp 99999"])
def test_parallelism_without_a_number_is_refused(extra: str) -> None:
    with pytest.raises(NotPossible, match="is not a valid number for -"):
        folder(with_extra(plan_for("rtx-3090-x2", "vllm-0.33"), extra), Cluster())


def test_data_parallelism_over_several_nodes_is_refused() -> None:
    source = with_extra(plan_for("dgx-spark-x2", master_addr="10.0.0.1"), "--data-parallel-size 2")
    with pytest.raises(NotPossible, match="data parallelism over several nodes") as refused:
        folder(source, Cluster())
    assert "--replicas 2" in refused.value.hint


def with_extra(plan: Plan, extra: str) -> ExportSource:
    settings = Settings({**plan.values, Settings.extra_args.name: extra})
    return source_for(replace(plan, settings=settings))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_container_asks_for_processor_and_memory(cluster: Cluster) -> None:
    """Without both, Kubernetes evicts a pod first."""
    source = source_for(plan_for("h100"), weights_bytes=1, pull_files={"dflash.lock": "1"})
    made = {**objects(source, cluster), **router_objects(source, cluster), **pull_objects(source, cluster)}
    pods = [pod_of(one) for one in made.values() if one["kind"] in {"Deployment", "Job"}]
    pods.append(loader(source, cluster)["spec"])
    names = {container["name"] for pod in pods for container in pod["containers"]}
    assert names == {"engine", "router", "door", "pull", "loader"}
    for container in (container for pod in pods for container in pod["containers"]):
        asked = container["resources"]["requests"]
        assert re.fullmatch(r"[1-9]\d*m?", asked["cpu"])
        assert re.fullmatch(r"[1-9]\d*[MG]i", asked["memory"])


@pytest.mark.parametrize("name", PLANS)
def test_an_engine_asks_for_what_it_has_in_the_memory_of_the_node(name: str) -> None:
    plan = PLANS[name]
    asked = container_of(source_for(plan))["resources"]["requests"]
    memory = int(asked["memory"].removesuffix("Gi")) * 2**30
    assert plan.memory is not None
    if plan.profile.hardware.unified or plan.engine.cpu:
        assert memory > plan.memory.target + plan.memory.drafter
        assert memory < plan.profile.hardware.memory_gib * 2**30
    else:
        assert int(asked["cpu"]) > plan.profile.match.gpus
        assert memory < 2**30 * 64


def test_a_dgx_spark_is_arm64() -> None:
    pod = pod_of(objects(source_for(plan_for("dgx-spark")), Cluster())["deployment.yaml"])
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("", "Never"),
        ("someone/vllm:1", "Never"),
        ("localhost:5000/vllm:1", "IfNotPresent"),
        (f"ghcr.io/me/vllm@sha256:{'0' * 64}", "IfNotPresent"),
    ],
)
def test_no_image_is_searched_on_docker_hub(image: str, policy: str) -> None:
    source = source_for(plan_for("h100"))
    container = container_of(source, Cluster(image=image))
    assert container["imagePullPolicy"] == policy
    assert container["image"] == image or source.plan.settings.dflash_image


def test_no_pod_is_added_before_one_is_gone() -> None:
    # RollingUpdate does not wait for the end of a pod that it deleted, which still has the GPU
    alone = objects(source_for(plan_for("h100")), Cluster())["deployment.yaml"]["spec"]
    assert alone["strategy"] == {"type": "Recreate"}
    spec = objects(source_for(plan_for("h100")), Cluster(replicas=4))["deployment.yaml"]["spec"]
    assert spec["replicas"] == 4
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_the_cache_of_one_pod_is_kept_and_never_shared() -> None:
    source = source_for(plan_for("h100"))
    kept, several = objects(source, Cluster()), objects(source, Cluster(replicas=2))
    assert kept["cache.yaml"]["metadata"]["name"] == "dflash-cache"
    assert "cache.yaml" not in several
    volumes = {volume["name"]: volume for volume in pod_of(several["deployment.yaml"])["volumes"]}
    assert volumes["cache"] == {"name": "cache", "emptyDir": {}}


def test_changed_settings_replace_the_pods() -> None:
    source = source_for(plan_for("h100"))
    other = replace(source, environment={**source.environment, "MAX_NUM_SEQS": "3"})
    digests = [
        objects(one, Cluster())["deployment.yaml"]["spec"]["template"]["metadata"]["annotations"]
        for one in (source, other)
    ]
    assert digests[0] != digests[1]


def test_the_engine_reaches_nothing_unless_it_may_fetch_images() -> None:
    source = source_for(plan_for("h100"))
    assert objects(source, Cluster())["network.yaml"]["spec"]["egress"] == []
    values = {**source.plan.values, Settings.allowed_media_domains.name: "example.com"}
    allowed = replace(source, plan=replace(source.plan, settings=Settings(values)))
    (dns, web) = objects(allowed, Cluster())["network.yaml"]["spec"]["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert {port["port"] for port in web["ports"]} == {80, 443}
    blocks = {to["ipBlock"]["cidr"]: to["ipBlock"]["except"] for to in web["to"] if "ipBlock" in to}
    metadata_of_clouds = ip_address("169.254.169.254")
    assert not [cidr for cidr, without in blocks.items() if _reaches(cidr, without, metadata_of_clouds)]
    for other in ("93.184.216.34", "10.0.0.7", "2606:2800:220:1::1"):
        assert [cidr for cidr, without in blocks.items() if _reaches(cidr, without, ip_address(other))]


def _reaches(cidr: str, without: list[str], address: IPv4Address | IPv6Address) -> bool:
    return address in ip_network(cidr) and not any(address in ip_network(one) for one in without)


def test_the_engine_reaches_the_receiver_of_its_traces() -> None:
    source = source_for(plan_for("h100"))
    values = {**source.plan.values, Settings.otlp_traces_endpoint.name: "http://collector.observability:4317"}
    traced = replace(source, plan=replace(source.plan, settings=Settings(values)))
    (dns, receiver) = objects(traced, Cluster())["network.yaml"]["spec"]["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert receiver == {"ports": [{"protocol": "TCP", "port": 4317}]}
    both = replace(
        source, plan=replace(source.plan, settings=Settings({**values, "ALLOWED_MEDIA_DOMAINS": "a.example"}))
    )
    (_, web, receiver) = objects(both, Cluster())["network.yaml"]["spec"]["egress"]
    assert {port["port"] for port in web["ports"]} == {80, 443}
    # it may be a pod, or a node: no address is left out
    assert receiver == {"ports": [{"protocol": "TCP", "port": 4317}]}


def test_one_claim_has_target_and_drafter() -> None:
    source = source_for(plan_for("h100"), weights_bytes=50 * 2**30)
    cluster = Cluster(weights="claim", storage_class="fast")
    made = objects(source, cluster)
    claim = made["weights.yaml"]["spec"]
    assert claim["resources"]["requests"]["storage"] == "55Gi"
    assert claim["storageClassName"] == "fast"
    mounts = {mount["mountPath"]: mount.get("subPath") for mount in container_of(source, cluster)["volumeMounts"]}
    assert mounts["/models/target"] == "target"
    assert mounts["/models/drafter"] == "drafter"
    pod = loader(source, cluster)["spec"]
    assert pod["volumes"] == [{"name": "weights", "persistentVolumeClaim": {"claimName": "dflash-weights"}}]
    assert "/srv/weights" not in json.dumps(made)


def test_a_claim_of_another_mode_has_another_name() -> None:
    """Kubernetes refuses to change the mode of a claim, which a second export with other replicas would do."""
    one, several = (source_for(plan) for plan in (plan_for("h100"), plan_for("dgx-spark-x2", master_addr="10.0.0.1")))
    modes: dict[str, set[str]] = {}
    for plain, replicas in ((one, 1), (one, 2), (several, 1), (several, 2)):
        cluster = Cluster(weights="claim", replicas=replicas)
        source = replace(plain, weights_bytes=1, pull_files={"dflash.lock": "1"})
        made = [objects(source, cluster), pull_objects(source, cluster), loader(source, cluster)]
        claim = objects(source, cluster)["weights.yaml"]
        name = claim["metadata"]["name"]
        modes.setdefault(name, set()).add(*claim["spec"]["accessModes"])
        assert set(re.findall(r"'claimName': '([\w-]*weights[\w-]*)'", str(made))) == {name}
        assert f"`{name}`" in readme(source, cluster)
    assert modes == {"dflash-weights": {"ReadWriteOnce"}, "dflash-weights-shared": {"ReadWriteMany"}}


def test_a_changed_lock_is_another_job() -> None:
    source = source_for(plan_for("h100"), weights_bytes=1, pull_files={"dflash.lock": "1"})
    other = replace(source, pull_files={"dflash.lock": "2"})
    name = "v" * 40
    names = {job_name(one, Cluster(name=name, weights="claim")) for one in (source, other)}
    assert len(names) == 2
    # a pod of a Job adds six characters
    assert max(map(len, names)) + 6 <= 63


def test_the_job_is_confined_and_writes_to_the_claim_only() -> None:
    source = source_for(plan_for("h100"), weights_bytes=1, pull_files={"dflash.lock": "1"})
    cluster = Cluster(weights="claim")
    pod = pod_of(pull_objects(source, cluster)["job.yaml"])
    (job,), (engine,) = pod["containers"], pod_of(objects(source, cluster)["deployment.yaml"])["containers"]
    assert job["securityContext"] == engine["securityContext"]
    assert pod["securityContext"] == pod_of(objects(source, cluster)["deployment.yaml"])["securityContext"]
    writable = {mount["name"] for mount in job["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"weights", "work", "tmp"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["weights"]["persistentVolumeClaim"]["claimName"] == "dflash-weights"
    assert volumes["token"]["secret"]["optional"]
    # `pull` ends at SIGTERM only if it is not the first process
    assert pod["shareProcessNamespace"] is True
    # with OnFailure, Kubernetes deletes the pod of a Job that failed, and its log
    assert pod["restartPolicy"] == "Never"


def test_without_a_lock_that_a_job_can_have_the_claim_is_filled_by_hand() -> None:
    texts = folder(source_for(plan_for("h100"), weights_bytes=1), Cluster(weights="claim"))
    assert "loader.yaml" in texts
    assert not [name for name in texts if name.startswith("pull/")]
    assert "kubectl apply -k pull" not in texts["README.md"]


@pytest.mark.parametrize(
    ("size", "expected"),
    [("16g", "16Gi"), ("", "1Gi"), ("512m", "512Mi"), ("1.5g", "1536Mi"), ("1GB", "1Gi"), ("64k", "64Ki"), ("9", "9")],
)
def test_sizes_are_those_of_kubernetes(size: str, expected: str) -> None:
    assert quantity({Settings.dflash_shm_size.name: size}) == expected


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"name": "Vision"}, "`Vision` is not a valid name"),
        ({"name": "a" * 41}, "is not a valid name"),
        ({"name": "1st"}, "is not a valid name"),
        ({"name": "a-"}, "is not a valid name"),
        ({"replicas": 0}, "is not a valid number of replicas"),
        ({"image": "a b"}, "is not a valid image"),
        ({"image": "a@sha256:12"}, "is not a valid image"),
        ({"gpu_resource": "gpu"}, "is not a valid GPU resource"),
        ({"runtime_class": "Nvidia!"}, "is not a valid runtime class"),
        ({"storage_class": "-"}, "is not a valid storage class"),
        ({"host": "https://a.example.com"}, "is not a valid host"),
        ({"host": "localhost"}, "is not a valid host"),
        ({"host": "a.example.com\n"}, "is not a valid host"),
        ({"ingress_class": "traefik"}, "an ingress class needs a host"),
        ({"max_replicas": 65}, r"`65` is not a valid maximum of replicas \(2-64\)"),
        ({"replicas": 3, "max_replicas": 3}, r"`3` is not a valid maximum of replicas \(4-64\)"),
        ({"prometheus": "http://p:9090"}, "a URL of Prometheus is for autoscaling"),
        ({"prometheus": "http://user:word@p", "max_replicas": 2}, "is not a valid URL of Prometheus"),
        ({"prometheus": "p:9090", "max_replicas": 2}, "is not a valid URL of Prometheus"),
        ({"endpoint_picker": "p"}, "for several replicas behind a Gateway"),
        ({"endpoint_picker": "p", "host": "a.example.com", "gateway": "g"}, "for several replicas behind a Gateway"),
        ({"endpoint_picker": "P:1"}, "is not a valid endpoint picker"),
        ({"gateway": "public"}, "a gateway needs a host"),
        ({"gateway": "a/b/c", "host": "a.example.com"}, "is not a valid gateway"),
        ({"gateway": "public:", "host": "a.example.com"}, "is not a valid gateway"),
        ({"gateway": "public", "host": "a.example.com", "ingress_class": "nginx"}, "would publish the same host"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(choice: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Cluster(**choice)


def test_the_longest_name_fits() -> None:
    name = "v" * 40
    source = source_for(plan_for("h100"), weights_bytes=1)
    assert len(f"{name}-0123456789-01234") <= 63
    for document in objects(source, Cluster(name=name, weights="claim")).values():
        assert len(document["metadata"]["name"]) <= 63
