"""The real helm accepts the values for production-stack's chart, and its pods run the command of the plan."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.features.export.cluster import Cluster, ExportSource
from dflash_deploy.features.export.stack import VALUES, stack_folder
from dflash_deploy.plan.command import engine_command
from tests.support.helm import chart, helm, rendered
from tests.support.manifests import VERSIONS, plan_for, pod_of, source_for, validated

IMAGE = f"registry.example.com/dflash-vllm@sha256:{'0' * 64}"
SHAPES = {
    "one": Cluster(),
    "several": Cluster(name="vision", replicas=2, weights="claim", image=IMAGE, runtime_class="nvidia"),
}
PLANS = (("dgx-spark", "aeon-vllm-dflash"), ("h100", "vllm-0.33"), ("rtx-3090-x4", "vllm-0.33"))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Helm and the chart."""
    place = tmp_path_factory.mktemp("helm")
    return helm(place), chart(place)


def written(command: list[str]) -> list[tuple[str, ...]]:
    """The arguments with their values, in any order; long names with hyphens, as vLLM reads them."""
    found: list[list[str]] = []
    for word in command:
        if word.startswith("--"):
            found.append([word.replace("_", "-")])
        else:
            found[-1].append(word)
    return sorted(tuple(one) for one in found)


def made(parts: tuple[Path, Path], source: ExportSource, cluster: Cluster, place: Path) -> dict[str, dict[str, Any]]:
    values = place / VALUES
    values.write_text(stack_folder(source, cluster)[VALUES])
    documents = rendered(*parts, values)
    for document in documents:
        for version in (VERSIONS[0], VERSIONS[-1]):
            validated(document, version)
    print(f"{len(documents)} documents of {source.plan.profile.name}, {cluster.replicas} replicas")
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in documents}


def references(node: Any) -> Iterator[tuple[str, str]]:
    """The Secrets that a document names, and their entries."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if key == "secretKeyRef":
            yield value["name"], value["key"]
        yield from references(value)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("profile", "engine"), PLANS)
def test_a_pod_of_the_chart_runs_the_command_of_the_plan(
    parts: tuple[Path, Path], profile: str, engine: str, shape: str, tmp_path: Path
) -> None:
    plan, cluster = plan_for(profile, engine), SHAPES[shape]
    source = source_for(plan, locked={"drafter": f"a/b@{'0' * 40}"})
    objects = made(parts, source, cluster, tmp_path)
    deployment = objects["Deployment/vision-engine-deployment-vllm"]
    (container,) = pod_of(deployment)["containers"]
    wanted = engine_command(plan)
    command = container["command"]
    assert command[:3] == wanted[:3] == ["vllm", "serve", "/models/target"]
    parallel = ("--tensor-parallel-size", str(plan.settings.tensor_parallel_size or 1))
    assert written(command[3:]) == sorted({*written(wanted[3:]), parallel})
    # behind all others, it is the first one that sees a request
    assert command[-2:] == wanted[-2:]
    assert container["image"] == source.image(cluster)
    assert deployment["metadata"]["annotations"]["dflash.dev/drafter"].startswith("a/b@")
    assert deployment["spec"]["replicas"] == cluster.replicas
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod_of(deployment)["securityContext"]["runAsUser"] == 1000
    assert container["livenessProbe"]["exec"]["command"][-1] == "dflash_deploy.serve.gateway.health"
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 3600
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert mounts == {"/models/target", "/models/drafter", "/cache", "/tmp", "/dev/shm"}
    named = {one["name"] for one in pod_of(deployment)["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == named
    # each key is in a Secret that exists, and that of the router opens no route of the owner
    keys = f"{cluster.name}-stack-keys"
    assert container["envFrom"] == [{"secretRef": {"name": keys}}]
    assert set(references(deployment)) == {(keys, "VLLM_API_KEY")}
    router = objects["Deployment/vision-deployment-router"]
    assert set(references(router)) == {(f"{cluster.name}-stack-router", "key")}
    assert not objects["Secret/vision-secrets"].get("data")
    # the router finds the engines of this release only
    arguments = pod_of(router)["containers"][0]["args"]
    chosen = dict(pair.split("=") for pair in arguments[arguments.index("--k8s-label-selector") + 1].split(","))
    assert chosen.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert set(chosen.values()) == {cluster.name}


def test_the_chart_refuses_a_value_of_another_type(parts: tuple[Path, Path], tmp_path: Path) -> None:
    values = yaml.safe_load(stack_folder(source_for(plan_for("h100")), Cluster())[VALUES])
    values["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]["maxModelLen"] = "long"
    (tmp_path / VALUES).write_text(yaml.safe_dump(values))
    with pytest.raises(AssertionError, match="maxModelLen"):
        rendered(*parts, tmp_path / VALUES)
