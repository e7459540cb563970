"""The folder for the Prometheus Operator, which only labelled namespaces reach the engines with."""

from typing import Any

import pytest
from jsonschema import ValidationError

from dflash_deploy.assets import asset_text
from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.objects import monitoring_objects, objects, router_objects
from dflash_deploy.intake.parse import parse_packaged_yaml
from tests.support.manifests import VERSIONS, plan_for, source_for, validated

SOURCE = source_for(plan_for("h100"))


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
    ],
)
def test_the_schemas_of_custom_resources_refuse_a_misspelt_field(file: str, change: dict[str, Any]) -> None:
    document = monitoring_objects(SOURCE, Cluster())[file]
    validated(document, VERSIONS[-1])
    with pytest.raises(ValidationError):
        validated({**document, "spec": {**document["spec"], **change}}, VERSIONS[-1])
