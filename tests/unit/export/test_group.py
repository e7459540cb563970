"""One model over several nodes: a LeaderWorkerSet whose pods get their rank of it."""

import re
from typing import Any

import pytest
from jsonschema import ValidationError

from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.objects import objects, router_objects
from dflash_deploy.serve.settings import Settings
from tests.support.manifests import VERSIONS, plan_for, source_for, validated

SOURCE = source_for(plan_for("dgx-spark-x2", master_addr="10.0.0.1"))
MADE = objects(SOURCE, Cluster())
TEMPLATE = MADE["group.yaml"]["spec"]["leaderWorkerTemplate"]
LEADER = "dflash-0.dflash-0.vision"
"""With a headless Service for each group, which has the name of its leader."""


def environment_of(template: dict[str, Any], index: int) -> dict[str, str]:
    """The engine's environment: LeaderWorkerSet puts its variables first, and Kubernetes expands those before."""
    group = {"LWS_LEADER_ADDRESS": LEADER, "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(index)}
    (container,) = template["spec"]["containers"]
    own = {one["name"]: one.get("value", "10.1.0.7") for one in container["env"]}
    expanded = {name: re.sub(r"\$\((\w+)\)", lambda found: group[found[1]], value) for name, value in own.items()}
    return {**MADE["settings.yaml"]["data"], **group, **expanded}


@pytest.mark.parametrize(("part", "index"), [("leaderTemplate", 0), ("workerTemplate", 1)])
def test_each_pod_is_a_rank_of_its_group(part: str, index: int) -> None:
    settings = Settings(environment_of(TEMPLATE[part], index))
    assert (settings.nodes, settings.node_rank, settings.master_addr) == (2, index, LEADER)
    assert settings.answers_requests == (index == 0)
    assert settings.dflash_bind == "0.0.0.0"
    # those of the machines are other interfaces and addresses
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & environment_of(TEMPLATE[part], index).keys()
    assert "NCCL_SOCKET_IFNAME" in SOURCE.environment


def test_a_group_has_a_pod_for_each_machine_and_restarts_together() -> None:
    assert TEMPLATE["size"] == 2
    assert TEMPLATE["restartPolicy"] == "RecreateGroupOnPodRestart"
    spec = MADE["group.yaml"]["spec"]
    # workers are created before the leader is ready: it waits for them
    assert spec["startupPolicy"] == "LeaderCreated"
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert "deployment.yaml" not in MADE
    assert "cache.yaml" not in MADE
    for part in ("leaderTemplate", "workerTemplate"):
        (container,) = TEMPLATE[part]["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}


@pytest.mark.parametrize("replicas", [1, 2])
def test_no_service_takes_the_name_under_which_the_leader_is_found(replicas: int) -> None:
    """LeaderWorkerSet makes a headless Service only if none has its name: a usual one resolves no pod."""
    cluster = Cluster(replicas=replicas)
    made = {**objects(SOURCE, cluster), **(router_objects(SOURCE, cluster) if replicas > 1 else {})}
    spec, name = made["group.yaml"]["spec"], made["group.yaml"]["metadata"]["name"]
    shared = spec.get("networkConfig", {}).get("subdomainPolicy", "Shared") == "Shared"
    headless = {name} if shared else {f"{name}-{index}" for index in range(spec["replicas"])}
    assert not headless & {one["metadata"]["name"] for one in made.values() if one["kind"] == "Service"}


def test_all_ranks_end_together_and_are_evicted_one_at_a_time() -> None:
    (leader,), (worker,) = (TEMPLATE[part]["spec"]["containers"] for part in ("leaderTemplate", "workerTemplate"))
    # without its workers, a leader that drains breaks off all answers
    assert leader["lifecycle"] == worker["lifecycle"]
    wanted = MADE["disruption.yaml"]["spec"]
    assert wanted["maxUnavailable"] == 1
    (expression,) = wanted["selector"]["matchExpressions"]
    for part in ("leaderTemplate", "workerTemplate"):
        labels = TEMPLATE[part]["metadata"]["labels"]
        assert labels[expression["key"]] in expression["values"]
        assert wanted["selector"]["matchLabels"].items() <= labels.items()


def test_only_the_leader_is_probed_and_gets_requests() -> None:
    (leader,), (worker,) = (TEMPLATE[part]["spec"]["containers"] for part in ("leaderTemplate", "workerTemplate"))
    probes = {"startupProbe", "readinessProbe", "livenessProbe"}
    assert probes <= leader.keys()
    assert not probes & worker.keys()
    wanted = MADE["service.yaml"]["spec"]["selector"].items()
    assert wanted <= TEMPLATE["leaderTemplate"]["metadata"]["labels"].items()
    assert not wanted <= TEMPLATE["workerTemplate"]["metadata"]["labels"].items()


def test_the_ranks_reach_each_other_and_no_one_else_reaches_a_worker() -> None:
    policy = MADE["network.yaml"]["spec"]
    (expression,) = policy["podSelector"]["matchExpressions"]
    components = {
        TEMPLATE[part]["metadata"]["labels"]["app.kubernetes.io/component"]
        for part in ("leaderTemplate", "workerTemplate")
    }
    assert set(expression["values"]) == components
    clients, ranks = policy["ingress"]
    assert clients["ports"] == [{"protocol": "TCP", "port": 8000}]
    assert ranks == {"from": [{"podSelector": policy["podSelector"]}]}
    assert {"to": [{"podSelector": policy["podSelector"]}]} in policy["egress"]


@pytest.mark.parametrize("cluster", [Cluster(), Cluster(replicas=2, weights="claim")])
def test_the_group_is_valid_in_every_version(cluster: Cluster) -> None:
    made = objects(SOURCE, cluster)
    for version in VERSIONS:
        validated(made["group.yaml"], version)
        validated(made["network.yaml"], version)
        for part in ("leaderTemplate", "workerTemplate"):
            template = made["group.yaml"]["spec"]["leaderWorkerTemplate"][part]
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template}
            validated(pod, version)
    assert "rollout" not in folder(SOURCE, Cluster())["README.md"]


def test_the_schema_refuses_a_misspelt_field() -> None:
    document = MADE["group.yaml"]
    with pytest.raises(ValidationError):
        validated({**document, "spec": {**document["spec"], "startupPolice": "LeaderCreated"}}, VERSIONS[0])
