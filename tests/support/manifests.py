"""Manifests of every profile and engine, and the published schemas of Kubernetes that they are checked against."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from jsonschema import Draft202012Validator
from kubernetes_validate import utils
from referencing import Registry, Resource

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import environment_of
from dflash_deploy.errors import DeployError
from dflash_deploy.features.export.manifests import Cluster, ExportSource, objects
from dflash_deploy.plan.result import Choice, Plan
from dflash_deploy.rules.table import plan_deployment
from tests.support.machines import MACHINES

OLDEST = "1.29"

VERSIONS = [one for one in map(utils.major_minor, utils.all_versions()) if int(one[2:]) >= int(OLDEST[2:])]
VERSIONS = list(dict.fromkeys(VERSIONS))
"""The versions of Kubernetes that the manifests are for, as far as their schemas are published."""

SHAPES = {"usual": Cluster(), "chosen": Cluster(name="vision", runtime_class="nvidia", image="r.example/v:1")}
"""The choices of an export."""


def validated(document: Mapping[str, Any], version: str) -> str:
    """The version whose strict schema accepts a document: unknown fields are errors too. Raises ValidationError."""
    try:
        _validator(version, document["kind"], document["apiVersion"]).validate(document)
    except jsonschema.ValidationError as problem:
        raise kubernetes_validate.ValidationError(problem, version=version) from None
    return version


@cache
def _validator(version: str, kind: str, api_version: str) -> Draft202012Validator:
    """The strict schema of a kind. kubernetes_validate.validate reads its 3 MB of definitions for each document."""
    # rbac.authorization.k8s.io/v1 is rbac-v1
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = utils.schema_contents(f"{_folder(version)}/{kind.lower()}-{short}.json", version)
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(version))


@cache
def _definitions(version: str) -> Any:
    whole = Resource.from_contents(utils.schema_contents(f"{_folder(version)}/_definitions.json", version))
    return (whole @ Registry()).crawl()


def _folder(version: str) -> str:
    (newest, *_) = [one for one in reversed(utils.all_versions()) if utils.major_minor(one) == version]
    return f"kubernetes-json-schema/v{newest}-local-strict"


def plan_for(profile: str, engine: str | None = None, **choice: Any) -> Plan:
    """The plan of a profile's own machine, with containers."""
    return plan_deployment(
        MACHINES[profile], Choice(profile=profile, engine=engine, runtime="compose", **choice), load_catalog()
    )


def plans() -> Iterator[Plan]:
    """A plan for each profile of one machine with each of its engines; and with each other engine that it can run."""
    catalog = load_catalog()
    for name, profile in catalog.profiles.items():
        if profile.hardware.machines > 1:
            continue
        for engine in catalog.engines:
            try:
                yield plan_for(name, engine)
            except DeployError:
                # the profile cannot run this engine; those that it lists it can
                assert engine not in {choice.release for choice in profile.engines}


@cache
def plans_by_name() -> dict[str, Plan]:
    """The same by the names of profile and engine."""
    return {f"{plan.profile.name}-{plan.engine.name}": plan for plan in plans()}


def source_for(plan: Plan, *, locked: Mapping[str, str] | None = None) -> ExportSource:
    """What an export of the plan reads, with weights below /srv."""
    return ExportSource(
        plan=plan,
        environment=environment_of(plan),
        env_file="/srv/vision/.env",
        target="/srv/weights/target",
        drafter="/srv/weights/drafter" if plan.drafting else "",
        user=1000,
        group=1000,
        locked=locked or {},
    )


def pod_of(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The pod's specification in a Deployment."""
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def container_of(source: ExportSource, cluster: Cluster = SHAPES["usual"]) -> dict[str, Any]:
    """The engine's container in an export."""
    (container,) = pod_of(objects(source, cluster)["deployment.yaml"])["containers"]
    assert isinstance(container, dict)
    return container


def kubectl() -> Path:
    """The real kubectl."""
    import sys

    return Path(sys.executable).parent / "kubectl"
