"""An InferencePool: it chooses the pods that answer requests, and says what it cannot do."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError

from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.objects import objects
from dflash_deploy.features.export.optional import CANNOT, pool_objects
from tests.support.manifests import VERSIONS, plan_for, source_for, validated

SOURCE = source_for(plan_for("h100"))
POOLED = Cluster(name="vision", replicas=2, host="llm.example.com", gateway="infra/public", endpoint_picker="picker")


def test_the_pool_has_the_pods_that_answer_requests() -> None:
    spec = pool_objects(POOLED)["pool.yaml"]["spec"]
    several = objects(source_for(plan_for("dgx-spark-x2", master_addr="10.0.0.1")), POOLED)["group.yaml"]
    template = several["spec"]["leaderWorkerTemplate"]
    wanted = spec["selector"]["matchLabels"].items()
    assert wanted <= objects(SOURCE, POOLED)["deployment.yaml"]["spec"]["template"]["metadata"]["labels"].items()
    assert wanted <= template["leaderTemplate"]["metadata"]["labels"].items()
    assert not wanted <= template["workerTemplate"]["metadata"]["labels"].items()
    (engine,) = template["leaderTemplate"]["spec"]["containers"]
    assert spec["targetPorts"] == [{"number": port["containerPort"]} for port in engine["ports"]]


@pytest.mark.parametrize(("picker", "port"), [("picker", 9002), ("picker:9003", 9003)])
def test_without_its_picker_any_engine_answers(picker: str, port: int) -> None:
    reference = pool_objects(replace(POOLED, endpoint_picker=picker))["pool.yaml"]["spec"]["endpointPickerRef"]
    assert reference == {"name": "picker", "port": {"number": port}, "failureMode": "FailOpen"}


def test_the_route_replaces_that_of_the_gateway_and_publishes_the_same_paths() -> None:
    texts = folder(SOURCE, POOLED)
    ours, theirs = (yaml.safe_load(texts[f"{place}/httproute.yaml"]) for place in ("inference", "gateway"))
    assert ours["metadata"]["name"] == theirs["metadata"]["name"]
    (one,), (other,) = ours["spec"]["rules"], theirs["spec"]["rules"]
    pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "vision"}
    assert one.pop("backendRefs") == [pool]
    assert other.pop("backendRefs") == [{"name": "vision", "port": 8000}]
    assert ours["spec"] == theirs["spec"]


def test_the_gateway_reaches_the_engines_and_no_one_else_does() -> None:
    policy = pool_objects(POOLED)["network.yaml"]["spec"]
    assert policy["podSelector"] == objects(SOURCE, POOLED)["deployment.yaml"]["spec"]["selector"]
    labelled = {"namespaceSelector": {"matchLabels": {"dflash.dev/client": "true"}}}
    assert policy["ingress"] == [{"from": [labelled], "ports": [{"protocol": "TCP", "port": 8000}]}]


def test_what_it_cannot_do_is_in_the_file_and_in_the_readme() -> None:
    texts = folder(SOURCE, POOLED)
    for line in CANNOT:
        assert line in texts["README.md"]
        assert f"# {line}\n" in texts["inference/pool.yaml"]
    assert not [name for name in folder(SOURCE, replace(POOLED, endpoint_picker="")) if name.startswith("inference/")]


@pytest.mark.parametrize("change", [{"targetPort": 8000}, {"targetPorts": []}, {"selector": {}}])
def test_the_schema_refuses_another_field(change: dict[str, Any]) -> None:
    document = pool_objects(POOLED)["pool.yaml"]
    validated(document, VERSIONS[-1])
    with pytest.raises(ValidationError):
        validated({**document, "spec": {**document["spec"], **change}}, VERSIONS[-1])
