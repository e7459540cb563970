"""The real kubectl builds the exported folder, and overlays on it; and the lines of its README that run a Job."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.folder import folder
from dflash_deploy.features.export.objects import objects, router_objects
from dflash_deploy.features.export.pods import runs_on
from dflash_deploy.features.export.readme import job_name, pull_objects, readme
from tests.support.commands import run_command
from tests.support.manifests import VERSIONS, kubectl, plan_for, pod_of, source_for, validated


@pytest.mark.parametrize(
    ("profile", "engine"),
    [("dgx-spark", "aeon-vllm-dflash"), ("rtx-3090", "llamacpp-b11434"), ("h100", "sglang-0.5.23")],
)
def test_kubectl_builds_the_base_and_an_overlay(profile: str, engine: str, tmp_path: Path) -> None:
    cluster = Cluster(replicas=3, max_replicas=5, weights="claim", host="llm.example.com")
    source = source_for(plan_for(profile, engine), weights_bytes=1, pull_files={"dflash.lock": "{}"})
    # a text that YAML in Go reads as a number
    source = replace(source, environment={**source.environment, "LIKE_A_NUMBER": "1e6"})
    gateway = folder(source, replace(cluster, gateway="infra/public", endpoint_picker="picker"))
    texts = gateway | folder(source, cluster)
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
    for path, text in {**texts, "mine/kustomization.yaml": yaml.safe_dump(overlay)}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    counts = {
        "pull": len(pull_objects(source, cluster)),
        "monitoring": 3,
        "ingress": 1,
        "gateway": 1,
        "autoscaling": 1,
        "inference": 3,
    }
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


def overlays() -> dict[str, str]:
    """The overlays of the page of Kubernetes, by what they are about."""
    page = (Path(__file__).parents[2] / "docs/how-to/kubernetes.md").read_text()
    blocks = re.findall(r"```yaml\n# kubernetes/mine/kustomization.yaml\n(.*?)```", page, re.DOTALL)
    return {"patches" if "patches" in block else "folders": block for block in blocks}


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_overlays_of_the_page_change_the_engines_only(replicas: int, tmp_path: Path) -> None:
    cluster = Cluster(replicas=replicas, host="llm.example.com")
    source = source_for(plan_for("h100", "vllm-0.33"))
    blocks = overlays()
    assert blocks.keys() == {"patches", "folders"}
    texts = folder(source, cluster) | {f"{name}/kustomization.yaml": text for name, text in blocks.items()}
    built = {}
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    for place in ("base", *blocks):
        done = run_command(str(kubectl()), "kustomize", str(tmp_path / place))
        assert done.returncode == 0, done.stderr
        documents = list(yaml.safe_load_all(done.stdout))
        built[place] = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in documents if "spec" in one}
    assert built["base"].items() <= built["folders"].items()
    assert {"Ingress", "ServiceMonitor"} <= {kind for kind, _ in built["folders"]}
    changed = [name for name, spec in built["patches"].items() if spec != built["base"][name]]
    assert changed == [("Deployment", "dflash")]
    deployment = built["patches"]["Deployment", "dflash"]
    assert deployment["replicas"] == replicas
    added = pod_of({"spec": deployment})["nodeSelector"].items() - runs_on(source).items()
    assert added == {("example.com/gpu-model", "h100")}


@pytest.mark.parametrize("end", ["SuccessCriteriaMet Complete", "FailureTarget Failed"])
def test_the_lines_of_the_readme_replace_an_older_job_and_end_with_it(end: str, tmp_path: Path) -> None:
    """The lines run with a `kubectl` that writes down its arguments. At first, the Job has no condition."""
    source = source_for(plan_for("h100", "vllm-0.33"), weights_bytes=1, pull_files={"dflash.lock": "{}"})
    cluster = Cluster(weights="claim")
    steps = readme(source, cluster).partition("From the Hub, in the cluster")[2].partition("The last line waits")[0]
    wanted = ("    kubectl apply", "    kubectl delete", "    until")
    lines = [line.strip() for line in steps.splitlines() if line.startswith(wanted)]
    asked = tmp_path / "asked"
    second = f'[ "$1" = get ] && [ "$(grep -c ^get {asked})" -gt 1 ] && echo "{end}"'
    for name, script in {"kubectl": f'echo "$*" >> {asked}\n{second}\nexit 0', "sleep": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = run_command("sh", "-c", f"PATH={tmp_path}:/usr/bin:/bin; " + "\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [end.split()[1]]
    job = f"job/{job_name(source, cluster)}"
    got = f"get {job} -o jsonpath={{.status.conditions[*].type}}"
    assert asked.read_text().splitlines() == [
        "apply -f base/weights.yaml", f"delete {job} --ignore-not-found", "apply -k pull", got, got
    ]  # fmt: skip
