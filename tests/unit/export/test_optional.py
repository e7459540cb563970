"""The folders beside the base: what they publish, and what only labelled namespaces reach."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError

from dflash_deploy.assets import asset_text
from dflash_deploy.door.caddyfile import PATHS
from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.objects import objects, router_objects
from dflash_deploy.features.export.optional import ingress_objects, monitoring_objects, route_objects
from dflash_deploy.intake.parse import parse_packaged_yaml
from tests.support.manifests import VERSIONS, plan_for, source_for, validated

SOURCE = source_for(plan_for("h100"))
HOST = Cluster(host="llm.example.com", replicas=2)


def paths() -> dict[str, str]:
    (rule,) = ingress_objects(SOURCE, HOST)["ingress.yaml"]["spec"]["rules"]
    assert rule["host"] == "llm.example.com"
    return {one["path"]: one["pathType"] for one in rule["http"]["paths"]}


def test_the_ingress_publishes_the_paths_of_the_door() -> None:
    found = paths()
    assert {f"{path}*" if kind == "Prefix" else path for path, kind in found.items()} == set(PATHS)
    # `test --url` asks it first
    assert found["/health"] == "Exact"
    assert not {"/", "/metrics", "/workers", "/engine_metrics"} & found.keys()
    assert all(path.endswith("/") for path, kind in found.items() if kind == "Prefix")


@pytest.mark.parametrize("cluster", [HOST, Cluster(host="llm.example.com")])
def test_the_ingress_sends_to_the_service_of_the_endpoint(cluster: Cluster) -> None:
    spec = ingress_objects(SOURCE, cluster)["ingress.yaml"]["spec"]
    services = {one["backend"]["service"]["name"] for one in spec["rules"][0]["http"]["paths"]}
    assert services == {objects(SOURCE, cluster)["service.yaml"]["metadata"]["name"]}
    assert spec["tls"] == [{"hosts": ["llm.example.com"], "secretName": "dflash-tls"}]


def test_the_route_of_a_gateway_publishes_the_paths_of_the_ingress_and_nothing_else() -> None:
    cluster = replace(HOST, gateway="infra/public")
    spec = route_objects(cluster)["httproute.yaml"]["spec"]
    assert spec["hostnames"] == ["llm.example.com"]
    (rule,) = spec["rules"]
    kinds = {"Exact": "Exact", "PathPrefix": "Prefix"}
    found = [(one["path"]["value"], kinds[one["path"]["type"]]) for one in rule["matches"]]
    assert len(found) == len(set(found)) <= 64
    assert dict(found) == paths()
    # a Gateway compares a prefix without its last slash: that path has to be published anyway
    assert {path.rstrip("/") for path, kind in found if kind == "Prefix"} <= dict(found).keys()
    # neither filters, which would change requests, nor a limit for a long answer
    assert rule.keys() == {"matches", "backendRefs", "timeouts"}
    service = objects(SOURCE, cluster)["service.yaml"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}]


@pytest.mark.parametrize(
    ("gateway", "reference"),
    [
        ("public", {"name": "public", "sectionName": "https"}),
        ("infra/public", {"namespace": "infra", "name": "public", "sectionName": "https"}),
        ("public:web-tls", {"name": "public", "sectionName": "web-tls"}),
        ("infra/public:web", {"namespace": "infra", "name": "public", "sectionName": "web"}),
    ],
)
def test_a_route_names_one_listener_so_that_no_key_passes_without_tls(gateway: str, reference: dict[str, str]) -> None:
    texts = folder(SOURCE, replace(HOST, gateway=gateway))
    assert yaml.safe_load(texts["gateway/httproute.yaml"])["spec"]["parentRefs"] == [reference]
    assert "kubectl apply -k gateway" in texts["README.md"]
    assert f"listener `{reference['sectionName']}`" in texts["README.md"]
    # two objects for one host would both answer
    assert not [name for name in texts if name.startswith("ingress/")]
    assert "apply -k ingress" not in texts["README.md"]


def test_without_a_host_there_is_no_ingress() -> None:
    assert not [name for name in folder(SOURCE, Cluster()) if name.startswith("ingress/")]


@pytest.mark.parametrize("replicas", [1, 2])
def test_prometheus_reads_each_engine_once_with_a_key_of_its_own(replicas: int) -> None:
    cluster = Cluster(replicas=replicas)
    made = {**objects(SOURCE, cluster), **(router_objects(SOURCE, cluster) if replicas > 1 else {})}
    monitor = monitoring_objects(SOURCE, cluster)["servicemonitor.yaml"]["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    services = [
        one for one in made.values() if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()
    ]
    assert [one["spec"]["selector"]["app.kubernetes.io/component"] for one in services] == ["engine"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in services[0]["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "dflash-metrics", "key": "key"}
    assert {one["targetLabel"] for one in endpoint["relabelings"]} == {"job", "deployment", "replica"}
    policy = monitoring_objects(SOURCE, cluster)["network.yaml"]["spec"]
    assert policy["podSelector"]["matchLabels"] == made["deployment.yaml"]["spec"]["selector"]["matchLabels"]
    assert policy["ingress"][0]["from"] == [{"namespaceSelector": {"matchLabels": {"dflash.dev/metrics": "true"}}}]


def test_the_rules_are_those_of_monitor_export_and_the_limits_of_the_deployment() -> None:
    groups = monitoring_objects(SOURCE, Cluster())["rules.yaml"]["spec"]["groups"]
    packaged = [
        group
        for name in ("rules.yaml", "alerts.yaml")
        for group in parse_packaged_yaml(asset_text("monitoring", name))["groups"]
    ]
    assert [group for group in groups if group in packaged] == packaged
    (limits,) = [group for group in groups if group not in packaged]
    labels = {rule["labels"]["deployment"] for rule in limits["rules"]}
    (endpoint,) = monitoring_objects(SOURCE, Cluster())["servicemonitor.yaml"]["spec"]["endpoints"]
    assert labels == {one["replacement"] for one in endpoint["relabelings"] if one["targetLabel"] == "deployment"}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("servicemonitor.yaml", {"endpoint": []}),
        ("servicemonitor.yaml", {"endpoints": [{"authorisation": {}}]}),
        ("rules.yaml", {"groups": [{"name": "a", "rule": []}]}),
        ("httproute.yaml", {"hostname": ["llm.example.com"]}),
        ("httproute.yaml", {"rules": [{"matches": [{"path": {"type": "Prefix", "value": "/"}}]}]}),
        ("httproute.yaml", {"rules": [{"timeouts": {"request": "1 h"}}]}),
    ],
)
def test_the_schemas_of_custom_resources_refuse_a_misspelt_field(file: str, change: dict[str, Any]) -> None:
    made = {**monitoring_objects(SOURCE, Cluster()), **route_objects(replace(HOST, gateway="public"))}
    document = made[file]
    validated(document, VERSIONS[-1])
    with pytest.raises(ValidationError):
        validated({**document, "spec": {**document["spec"], **change}}, VERSIONS[-1])
