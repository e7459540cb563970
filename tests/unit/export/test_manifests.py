"""Manifests of every profile and engine: valid for each version of Kubernetes, and the same engine as in Compose."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import ValidationError

from dflash_deploy.assets import asset
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import ALL_GPUS, compose_text
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput
from dflash_deploy.features.export import folder as export_folder
from dflash_deploy.features.export.folder import folder, yaml_of
from dflash_deploy.features.export.manifests import Cluster, objects
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.settings import Settings
from tests.support.manifests import (
    SHAPES,
    VERSIONS,
    container_of,
    plan_for,
    plans_by_name,
    pod_of,
    source_for,
    validated,
)
from tests.support.rows import yaml_document

PLANS = plans_by_name()


class Once:
    """Writes and reads each text once: nine of ten documents are, byte for byte, those of another plan."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.documents: dict[str, Any] = {}

    def written(self, document: Mapping[str, Any]) -> str:
        key = repr(document)
        if key not in self.texts:
            self.texts[key] = yaml_of(document)
        return self.texts[key]

    def read(self, text: str) -> Any:
        if text not in self.documents:
            self.documents[text] = yaml_document(text)
        return self.documents[text]


def every_document(plan: Plan, cluster: Cluster, once: Once) -> list[dict[str, Any]]:
    """All objects of a plan in one shape, read from the files' texts as kubectl reads them."""
    source = source_for(plan, locked={"target": f"a/b@{'0' * 40}"})
    documents = [once.read(text) for name, text in folder(source, cluster).items() if name.endswith(".yaml")]
    return [document for document in documents if document["kind"] != "Kustomization"]


def form_of(value: Any) -> Any:
    """The fields of a document with the types of their values; of the settings, which are texts, only the type."""
    if isinstance(value, dict):
        if value.get("kind") == "ConfigMap":
            assert all(isinstance(text, str) for text in value["data"].values())
            value = {**value, "data": {}}
        return {key: form_of(one) for key, one in value.items()}
    return [form_of(one) for one in value] if isinstance(value, list) else type(value).__name__


def test_every_profile_and_engine_is_valid_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Once()
    monkeypatch.setattr(export_folder, "yaml_of", once.written)
    shapes = {
        name: {shape: every_document(plan, cluster, once) for shape, cluster in SHAPES.items()}
        for name, plan in PLANS.items()
    }
    written = [one for made in shapes.values() for documents in made.values() for one in documents]
    # documents with the same fields and types are the same to a schema, which takes 10 ms for each
    documents = {json.dumps(form_of(one), sort_keys=True): one for one in written}.values()
    kinds = {document["kind"] for document in documents}
    assert kinds == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PersistentVolumeClaim", "Service",
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


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"name": "Vision"}, "`Vision` is not a valid name"),
        ({"name": "a" * 41}, "is not a valid name"),
        ({"name": "1st"}, "is not a valid name"),
        ({"name": "a-"}, "is not a valid name"),
        ({"image": "a b"}, "is not a valid image"),
        ({"image": "a@sha256:12"}, "is not a valid image"),
        ({"runtime_class": "Nvidia!"}, "is not a valid runtime class"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(choice: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Cluster(**choice)


def test_the_longest_name_fits() -> None:
    name = "v" * 40
    source = source_for(plan_for("h100"))
    assert len(f"{name}-0123456789-01234") <= 63
    for document in objects(source, Cluster(name=name)).values():
        assert len(document["metadata"]["name"]) <= 63
