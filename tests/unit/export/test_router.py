"""Several replicas: the router in front of them, what it may do, and that only it reaches the engines."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.objects import objects, router_objects
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.drain import SETTLES
from dflash_deploy.serve.router.__main__ import arguments
from dflash_deploy.serve.router.files import RouterKeys
from dflash_deploy.serve.router.pods import ACCOUNT
from dflash_deploy.serve.settings import Settings
from tests.support.manifests import plan_for, plans_by_name, pod_of, source_for
from tests.support.rows import each_of, first_of

SEVERAL = Cluster(name="vision", replicas=3)
SOURCE = source_for(plan_for("h100"))


def containers() -> dict[str, dict[str, Any]]:
    pod = pod_of(router_objects(SOURCE, SEVERAL)["router.yaml"])
    return {container["name"]: container for container in pod["containers"]}


def test_one_replica_has_no_router() -> None:
    texts = folder(SOURCE, Cluster())
    assert not [name for name in texts if "router" in name or "engines" in name]
    service = yaml.safe_load(texts["base/service.yaml"])
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "engine"


def test_the_service_of_the_endpoint_is_the_doors() -> None:
    made = {**objects(SOURCE, SEVERAL), **router_objects(SOURCE, SEVERAL)}
    router = made["router.yaml"]["spec"]["template"]["metadata"]["labels"]
    assert made["service.yaml"]["metadata"]["name"] == "vision"
    assert made["service.yaml"]["spec"]["selector"] == router
    engines = made["deployment.yaml"]["spec"]["template"]["metadata"]["labels"]
    assert made["engines-service.yaml"]["spec"]["selector"] == engines
    # a Deployment takes no pod of the other
    assert made["router.yaml"]["spec"]["selector"]["matchLabels"] == router != engines


def test_only_the_router_reaches_the_engines() -> None:
    made = {**objects(SOURCE, SEVERAL), **router_objects(SOURCE, SEVERAL)}
    labels = made["router.yaml"]["spec"]["template"]["metadata"]["labels"]
    (ingress,) = made["network.yaml"]["spec"]["ingress"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": labels}}]
    (clients,) = made["router-network.yaml"]["spec"]["ingress"]
    assert {"podSelector": {}} in clients["from"]
    assert clients["ports"] == [{"protocol": "TCP", "port": 8000}]
    reached = made["router-network.yaml"]["spec"]["egress"]
    engines = made["deployment.yaml"]["spec"]["selector"]["matchLabels"]
    assert {"podSelector": {"matchLabels": engines}} in [to for rule in reached for to in rule.get("to", ())]
    # SMG itself answers some routes without a key: no policy has to keep others from its port
    own = {one["name"]: one["value"] for one in containers()["router"]["env"]}
    assert own["DFLASH_BIND"] == "127.0.0.1"
    assert "ports" not in containers()["router"]


def test_the_account_lists_pods_and_nothing_else() -> None:
    made = router_objects(SOURCE, SEVERAL)
    assert made["router-role.yaml"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    name = made["router-account.yaml"]["metadata"]["name"]
    assert made["router-binding.yaml"]["subjects"] == [{"kind": "ServiceAccount", "name": name}]
    assert made["router-binding.yaml"]["roleRef"]["name"] == made["router-role.yaml"]["metadata"]["name"]
    pod = pod_of(made["router.yaml"])
    assert pod["serviceAccountName"] == name
    # only the router has its token: the door is published
    assert pod["automountServiceAccountToken"] is False
    holders = [
        (one["name"], mount["mountPath"])
        for one in pod["containers"]
        for mount in one["volumeMounts"]
        if mount["name"] == "account"
    ]
    assert holders == [("router", str(ACCOUNT))]
    (account,) = [volume["projected"] for volume in pod["volumes"] if volume["name"] == "account"]
    token, certificate, namespace = account["sources"]
    assert token["serviceAccountToken"]["path"] == "token"
    assert certificate["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert namespace["downwardAPI"]["items"][0]["path"] == "namespace"
    # the engines have no account
    assert pod_of(objects(SOURCE, SEVERAL)["deployment.yaml"])["automountServiceAccountToken"] is False


def test_the_router_reaches_the_usual_ports_of_kubernetes() -> None:
    egress = router_objects(SOURCE, SEVERAL)["router-network.yaml"]["spec"]["egress"]
    open_to_all = {port["port"] for rule in egress if "to" not in rule for port in rule["ports"]}
    # kubeadm and k3s, minikube, MicroK8s
    assert {443, 6443, 8443, 16443} <= open_to_all


@pytest.mark.parametrize(("set_to", "seconds"), [("", 120), ("0", 0), ("600", 600)])
def test_the_router_and_its_engines_drain_before_they_are_killed(set_to: str, seconds: int) -> None:
    settings = Settings({**SOURCE.plan.values, Settings.drain_seconds.name: set_to})
    source = replace(SOURCE, plan=replace(SOURCE.plan, settings=settings))
    router = router_objects(source, SEVERAL)
    pods = [router["router.yaml"], objects(source, SEVERAL)["deployment.yaml"]]
    for pod in map(pod_of, pods):
        left = pod["terminationGracePeriodSeconds"] - seconds
        for container in pod["containers"]:
            *command, waits = container["lifecycle"]["preStop"]["exec"]["command"]
            # an engine breaks off its answers at SIGTERM, which comes after these seconds; Caddy ends its own after it
            assert (command, int(waits)) in [
                (["python3", "-m", "dflash_deploy.serve.drain"], seconds),
                (["python3", "-m", "dflash_deploy.serve.router.drain"], seconds),
                (["sleep"], SETTLES),
            ]
            for name in ("livenessProbe", "startupProbe"):
                # a hung engine has no answers to wait for
                assert container.get(name, {}).get("terminationGracePeriodSeconds", 15) == 15
            assert container["livenessProbe"]["terminationGracePeriodSeconds"]
            assert "terminationGracePeriodSeconds" not in container["readinessProbe"]
        assert left == SETTLES + 10
    assert f"grace_period {max(1, seconds)}s" in router["router-files.yaml"]["data"]["Caddyfile"]


def test_keys_are_in_files_of_secrets_only() -> None:
    pod = pod_of(router_objects(SOURCE, SEVERAL)["router.yaml"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in containers()["router"]["volumeMounts"]}
    assert mounts["/run/dflash/router/keys.json"]["name"] == "keys"
    assert volumes["keys"]["secret"]["secretName"] == "vision-router"
    assert not [mount for mount in containers()["door"]["volumeMounts"] if mount["name"] == "keys"]
    assert "secretKeyRef" not in json.dumps(pod)
    settings = objects(SOURCE, SEVERAL)["settings.yaml"]["data"]
    assert settings["DFLASH_KEYS_FILE"] == "/run/secrets/keys.json"
    readme = folder(SOURCE, SEVERAL)["README.md"]
    assert "--from-file=keys.json=/srv/vision/.dflash/keys/keys.json" in readme
    assert "create secret generic vision-router --from-file=keys.json=/srv/vision/.dflash/router/keys.json" in readme


@each_of(plans_by_name().items(), name=first_of)
def test_the_router_starts_with_the_values_of_one_engine(named: tuple[str, Plan]) -> None:
    plan = named[1]
    source = source_for(plan)
    pod = pod_of(router_objects(source, SEVERAL)["router.yaml"])
    (router, _) = pod["containers"]
    environment = {one["name"]: one["value"] for one in router["env"]}
    given = arguments(Settings(environment), RouterKeys("admin", "probe"))
    assert given["host"] == "127.0.0.1"
    assert given["balance_abs_threshold"] == max(1, (plan.settings.max_num_seqs or 4) // 8)
    assert given["max_payload_size"] > plan.settings.max_body_mib << 20
    assert Settings(environment).served_model_name == plan.settings.served_model_name


def test_changed_paths_of_the_door_replace_the_router() -> None:
    values = {**SOURCE.plan.values, Settings.max_body_mib.name: "7"}
    other = replace(SOURCE, plan=replace(SOURCE.plan, settings=Settings(values)))
    made = [router_objects(one, SEVERAL) for one in (SOURCE, other)]
    assert made[0]["router-files.yaml"] != made[1]["router-files.yaml"]
    digests = {one["router.yaml"]["spec"]["template"]["metadata"]["annotations"]["dflash.dev/settings"] for one in made}
    assert len(digests) == 2
