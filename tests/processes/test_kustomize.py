"""The real kubectl builds the exported folder, and overlays on it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.manifests import Cluster, objects, runs_on
from tests.support.commands import run_command
from tests.support.manifests import VERSIONS, kubectl, plan_for, pod_of, source_for, validated

ENGINES = ("Deployment", "dflash")

Documents = Mapping[tuple[str, str], Mapping[str, Any]]


@pytest.mark.parametrize(
    ("profile", "engine"),
    [("dgx-spark", "aeon-vllm-dflash"), ("rtx-3090", "llamacpp-b11434"), ("h100", "sglang-0.5.23")],
)
def test_kubectl_builds_the_base_and_an_overlay(profile: str, engine: str, tmp_path: Path) -> None:
    source = source_for(plan_for(profile, engine))
    # a text that YAML in Go reads as a number
    source = replace(source, environment={**source.environment, "LIKE_A_NUMBER": "1e6"})
    overlay = {
        "namespace": "vision",
        "resources": ["../base"],
    }
    write(tmp_path, folder(source, Cluster()) | {"mine/kustomization.yaml": yaml.safe_dump(overlay)})
    for place in ("base", "mine"):
        named = built(tmp_path / place)
        assert len(named) == len(objects(source, Cluster()))
        for document in named.values():
            validated(document, VERSIONS[-1])
    deployment = named["Deployment", "dflash"]
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


def test_the_overlay_of_the_page_changes_the_engine_only(tmp_path: Path) -> None:
    source = source_for(plan_for("h100", "vllm-0.33"))
    write(
        tmp_path, folder(source, Cluster()) | {path: text for path, text in shown_files() if path.startswith("mine/")}
    )
    base, patched = built(tmp_path / "base"), built(tmp_path / "mine")
    assert [name for name, document in patched.items() if document.get("spec") != base[name].get("spec")] == [ENGINES]
    added = pod_of(patched[ENGINES])["nodeSelector"].items() - runs_on(source).items()
    assert added == {("example.com/gpu-model", "h100")}


def test_the_shown_claims_replace_the_directories_of_the_nodes(tmp_path: Path) -> None:
    files = {path: text for path, text in shown_files() if path.startswith("claimed/")}
    write(tmp_path, folder(source_for(plan_for("h100", "vllm-0.33")), Cluster()) | files)
    made = built(tmp_path / "claimed")[ENGINES]
    validated(made, VERSIONS[-1])
    volumes = {volume.pop("name"): volume for volume in pod_of(made)["volumes"]}
    assert {role: volumes[role] for role in ("target", "drafter")} == {
        role: {"persistentVolumeClaim": {"claimName": f"my-{role}"}} for role in ("target", "drafter")
    }


def test_the_shown_ingress_sends_to_the_service_and_publishes_no_metrics(tmp_path: Path) -> None:
    files = {path: text for path, text in shown_files() if path.startswith("published/")}
    write(tmp_path, folder(source_for(plan_for("h100", "vllm-0.33")), Cluster()) | files)
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
