"""The real kubectl builds the exported folder, and overlays on it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.objects import objects, router_objects
from dflash_deploy.features.export.pods import runs_on
from tests.support.commands import run_command
from tests.support.manifests import VERSIONS, kubectl, plan_for, pod_of, source_for, validated

ENGINES = ("Deployment", "dflash")

Documents = Mapping[tuple[str, str], Mapping[str, Any]]


@pytest.mark.parametrize(
    ("profile", "engine"),
    [("dgx-spark", "aeon-vllm-dflash"), ("rtx-3090", "llamacpp-b11434"), ("h100", "sglang-0.5.23")],
)
def test_kubectl_builds_the_base_and_an_overlay(profile: str, engine: str, tmp_path: Path) -> None:
    cluster = Cluster(replicas=3, weights="claim")
    source = source_for(plan_for(profile, engine), weights_bytes=1)
    # a text that YAML in Go reads as a number
    source = replace(source, environment={**source.environment, "LIKE_A_NUMBER": "1e6"})
    overlay = {
        "namespace": "vision",
        "resources": ["../base"],
        "patches": [
            {
                "target": {"kind": "Deployment", "name": "dflash"},
                "patch": '[{"op":"add","path":"/spec/replicas","value":2}]',
            }
        ],
    }
    write(tmp_path, folder(source, cluster) | {"mine/kustomization.yaml": yaml.safe_dump(overlay)})
    counts = {"monitoring": 3}
    for place in (*counts, "base", "mine"):
        named = built(tmp_path / place)
        assert len(named) == counts.get(place, len(objects(source, cluster)) + len(router_objects(source, cluster)))
        for document in named.values():
            validated(document, VERSIONS[-1])
    (subject,) = named["RoleBinding", "dflash-router"]["subjects"]
    assert subject["namespace"] == "vision"
    deployment = named["Deployment", "dflash"]
    assert deployment["spec"]["replicas"] == 2
    assert deployment["metadata"]["namespace"] == "vision"


def write(directory: Path, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_text(text)


def built(directory: Path) -> Documents:
    """What `kubectl kustomize` makes of a folder, by kind and name."""
    done = run_command(str(kubectl()), "kustomize", str(directory))
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(found) == len(documents)
    return found


def shown_files() -> list[tuple[str, str]]:
    """The files that the page of Kubernetes adds to an export: path and text."""
    page = (Path(__file__).parents[2] / "docs/how-to/kubernetes.md").read_text()
    return re.findall(r"```yaml\n# kubernetes/(\S+)\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_overlays_of_the_page_change_the_engines_only(replicas: int, tmp_path: Path) -> None:
    cluster = Cluster(replicas=replicas)
    source = source_for(plan_for("h100", "vllm-0.33"))
    (folders, patches) = (text for path, text in shown_files() if path == "mine/kustomization.yaml")
    overlays = {"folders/kustomization.yaml": folders, "patches/kustomization.yaml": patches}
    write(tmp_path, folder(source, cluster) | overlays)
    base, whole, patched = (built(tmp_path / place) for place in ("base", "folders", "patches"))
    assert base.items() <= whole.items()
    assert "ServiceMonitor" in {kind for kind, _ in whole}
    assert [name for name, document in patched.items() if document.get("spec") != base[name].get("spec")] == [ENGINES]
    deployment = patched[ENGINES]
    assert deployment["spec"]["replicas"] == replicas
    added = pod_of(deployment)["nodeSelector"].items() - runs_on(source).items()
    assert added == {("example.com/gpu-model", "h100")}


def test_the_shown_ingress_sends_to_the_service_and_publishes_no_metrics(tmp_path: Path) -> None:
    files = {path: text for path, text in shown_files() if path.startswith("published/")}
    write(tmp_path, folder(source_for(plan_for("h100", "vllm-0.33")), Cluster(replicas=2)) | files)
    base, made = built(tmp_path / "base"), built(tmp_path / "published")
    service = base["Service", "dflash"]
    assert made.keys() == {*base, ("Ingress", "dflash")}
    validated(made["Ingress", "dflash"], VERSIONS[-1])
    (rule,) = made["Ingress", "dflash"]["spec"]["rules"]
    ports = [port["name"] for port in service["spec"]["ports"]]
    sent = [one["backend"]["service"] for one in rule["http"]["paths"]]
    assert sent == [{"name": service["metadata"]["name"], "port": {"name": port}} for port in (*ports, *ports)]
    assert {one["path"]: one["pathType"] for one in rule["http"]["paths"]} == {"/health": "Exact", "/v1": "Prefix"}


def test_the_shown_patches_name_another_resource_and_class(tmp_path: Path) -> None:
    files = {path: text for path, text in shown_files() if path.startswith("classes/")}
    write(tmp_path, folder(source_for(plan_for("h100", "vllm-0.33")), Cluster()) | files)
    made = built(tmp_path / "classes")
    (container,) = pod_of(made[ENGINES])["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": 1}
    assert made["PersistentVolumeClaim", "dflash-cache"]["spec"]["storageClassName"] == "fast"
