"""The real kubectl builds the exported folder, and an overlay of a person on it."""

from pathlib import Path

import pytest
import yaml

from dflash_deploy.export.cluster import Cluster
from dflash_deploy.export.folder import folder
from dflash_deploy.export.objects import objects
from dflash_deploy.export.pull import pull_objects
from dflash_deploy.export.router import router_objects
from tests.support.commands import run_command
from tests.support.manifests import VERSIONS, kubectl, plan_for, source_for, validated


@pytest.mark.parametrize(
    ("profile", "engine"),
    [("dgx-spark", "aeon-vllm-dflash"), ("rtx-3090", "llamacpp-b11434"), ("h100", "sglang-0.5.23")],
)
def test_kubectl_builds_the_base_and_an_overlay(profile: str, engine: str, tmp_path: Path) -> None:
    cluster = Cluster(replicas=3, weights="claim", host="llm.example.com")
    source = source_for(plan_for(profile, engine), weights_bytes=1, pull_files={"dflash.lock": "{}"})
    texts = folder(source, cluster)
    overlay = {
        "namespace": "vision",
        "resources": ["../base"],
        "patches": [
            {
                "target": {"kind": "Deployment", "name": "dflash"},
                "patch": '[{"op":"replace","path":"/spec/replicas","value":2}]',
            }
        ],
    }
    for path, text in {**texts, "mine/kustomization.yaml": yaml.safe_dump(overlay)}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    counts = {"pull": len(pull_objects(source, cluster)), "monitoring": 3, "ingress": 1}
    for place in (*counts, "base", "mine"):
        done = run_command(str(kubectl()), "kustomize", str(tmp_path / place))
        assert done.returncode == 0, done.stderr
        built = list(yaml.safe_load_all(done.stdout))
        assert len(built) == counts.get(place, len(objects(source, cluster)) + len(router_objects(source, cluster)))
        for document in built:
            validated(document, VERSIONS[-1])
    named = {(document["kind"], document["metadata"]["name"]): document for document in built}
    (subject,) = named["RoleBinding", "dflash-router"]["subjects"]
    assert subject["namespace"] == "vision"
    deployment = named["Deployment", "dflash"]
    assert deployment["spec"]["replicas"] == 2
    assert deployment["metadata"]["namespace"] == "vision"
