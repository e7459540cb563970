"""Autoscaling: one more engine as soon as requests wait, no engine that flaps, and the time of a start in words."""

import re
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError

from dflash_deploy.assets import asset_text
from dflash_deploy.catalog.hardware import FirstStart
from dflash_deploy.features.export.cluster import Cluster, ExportSource
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.objects import objects
from dflash_deploy.features.export.optional import autoscaling_objects
from dflash_deploy.intake.parse import parse_packaged_yaml
from tests.support.manifests import VERSIONS, plan_for, source_for, validated

SOURCE = source_for(plan_for("h100"))
SCALED = Cluster(name="vision", replicas=2, max_replicas=5)
FILE = "scaledobject.yaml"


def spec_of(source: ExportSource = SOURCE, cluster: Cluster = SCALED) -> dict[str, Any]:
    document = autoscaling_objects(source, cluster)[FILE]
    validated(document, VERSIONS[-1])
    spec = document["spec"]
    assert isinstance(spec, dict)
    return spec


def test_one_engine_more_as_soon_as_a_request_waits() -> None:
    (trigger,) = spec_of()["triggers"]
    engines = 3
    most = int(trigger["metadata"]["threshold"])
    assert most == SOURCE.plan.settings.max_num_seqs
    # as Kubernetes computes it for AverageValue
    assert trigger["metricType"] == "AverageValue"
    assert ceil(engines * most / most) == engines
    assert ceil((engines * most + 1) / most) == engines + 1
    # without data, the number stays
    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_the_query_has_recorded_series_of_this_deployment_only() -> None:
    (trigger,) = spec_of()["triggers"]
    query = trigger["metadata"]["query"]
    found = re.findall(r"(dflash:\w+)\{([^}]*)\}", query)
    rules = [
        rule
        for group in parse_packaged_yaml(asset_text("monitoring", "rules.yaml"))["groups"]
        for rule in group["rules"]
    ]
    # for each engine: vLLM, SGLang, llama.cpp
    for name, chosen in found:
        assert len([rule for rule in rules if rule["record"] == name]) >= 3
        assert chosen == 'deployment="vision"'
    assert {name for name, _ in found} == {"dflash:queue", "dflash:running"}


@pytest.mark.parametrize(
    ("prometheus", "asked"),
    [("", "http://prometheus-operated.monitoring.svc:9090"), ("https://p.example.com/x", "https://p.example.com/x")],
)
def test_the_prometheus_is_that_of_the_operator_or_a_named_one(prometheus: str, asked: str) -> None:
    (trigger,) = spec_of(cluster=replace(SCALED, prometheus=prometheus))["triggers"]
    assert trigger["metadata"]["serverAddress"] == asked


@pytest.mark.parametrize("seconds", [660.0, 2000.0, 9000.0])
def test_the_next_engine_waits_for_the_start_of_the_last_one(seconds: float) -> None:
    plan = SOURCE.plan
    known = plan.profile.model_copy(update={"first_start": FirstStart(seconds=seconds, source="a test")})
    source = source_for(replace(plan, profile=known))
    behavior = spec_of(source)["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    (up,) = behavior["scaleUp"]["policies"]
    (down,) = behavior["scaleDown"]["policies"]
    assert up["value"] == down["value"] == 1
    # Kubernetes allows no more
    assert up["periodSeconds"] == min(1800, max(1200, seconds))
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == min(3600, max(1200, seconds))
    texts = folder(source, SCALED)
    minutes = f"about {round(max(1200, seconds) / 60)} minutes until it answers"
    assert minutes in texts["README.md"]
    assert minutes in texts["autoscaling/scaledobject.yaml"]


@pytest.mark.parametrize(
    ("source", "file", "kind"),
    [
        (SOURCE, "deployment.yaml", "Deployment"),
        (source_for(plan_for("dgx-spark-x2", master_addr="10.0.0.1")), "group.yaml", "LeaderWorkerSet"),
    ],
)
def test_the_number_of_engines_is_that_of_keda_only(source: ExportSource, file: str, kind: str) -> None:
    spec = spec_of(source)
    target = objects(source, SCALED)[file]
    assert (target["apiVersion"], target["kind"], target["metadata"]["name"]) == (
        spec["scaleTargetRef"]["apiVersion"], spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]
    )  # fmt: skip
    assert target["kind"] == kind
    # `apply` would set it back
    assert "replicas" not in target["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 5)


def test_one_engine_that_may_become_several_has_the_router() -> None:
    texts = folder(SOURCE, Cluster(max_replicas=3))
    assert "base/router.yaml" in texts
    # they would share it
    assert "base/cache.yaml" not in texts
    assert yaml.safe_load(texts["base/deployment.yaml"])["spec"]["strategy"]["type"] == "RollingUpdate"


@pytest.mark.parametrize("replicas", [1, 3])
def test_without_a_maximum_nothing_scales(replicas: int) -> None:
    texts = folder(SOURCE, Cluster(replicas=replicas))
    assert not [name for name in texts if name.startswith("autoscaling/")]
    assert yaml.safe_load(texts["base/deployment.yaml"])["spec"]["replicas"] == replicas
    assert "KEDA" not in texts["README.md"]


def test_the_schema_refuses_a_misspelt_field() -> None:
    document = autoscaling_objects(SOURCE, SCALED)[FILE]
    for change in ({"minReplicas": 1}, {"triggers": [{"type": "prometheus", "metadata": {"threshold": 4}}]}):
        with pytest.raises(ValidationError):
            validated({**document, "spec": {**document["spec"], **change}}, VERSIONS[-1])
