"""`export kubernetes`: a folder without a key, from a deployment that images can run."""

import base64
import re
import shutil
from pathlib import Path

import pytest
import yaml

from dflash_deploy import planning
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import DeployError, ExitCode
from dflash_deploy.features.export.manifests import Cluster
from dflash_deploy.features.export.operations import export_kubernetes
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.serve.api_keys import api_keys
from dflash_deploy.serve.secrets import SECRETS_FILE, read_secrets
from tests.support.cli import dflash, edit_env, initialise
from tests.support.commands import run_command
from tests.support.machines import SPARK
from tests.support.manifests import kubectl, pod_of


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    place = tmp_path / "vision"
    initialise("--profile", "cpu", "--runtime", "compose", at=place)
    return place


def test_no_file_has_a_key(deployment: Path) -> None:
    edit_env(deployment, DFLASH_API_KEYS=f"alice:{'b7' * 20}", HF_TOKEN="hf_" + "a1b2c3d4e5" * 3)
    ran = dflash("export", "kubernetes", "--json", at=deployment).succeeded()
    data = ran.document["data"]
    out = deployment / "kubernetes"
    assert data["directory"] == str(out)
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        *data["files"],
        ".dflash-export.json",
    }
    read = Deployment(deployment)
    secrets = [read.key.reveal(), read.further_keys[0].key, read.secrets["HF_TOKEN"].reveal()]
    texts = [path.read_text() for path in out.rglob("*") if path.is_file()] + [ran.out, ran.err]
    for secret in secrets:
        assert len(secret) > 20
        assert not [text for text in texts if secret in text]
        assert not [text for text in texts if base64.b64encode(secret.encode()).decode() in text]


def test_the_printed_line_makes_a_secret_that_the_engine_reads(deployment: Path, tmp_path: Path) -> None:
    edit_env(deployment, DFLASH_API_KEYS=f"alice:{'b7' * 20}", HF_TOKEN="hf_" + "a1b2c3d4e5" * 3)
    ran = dflash("export", "kubernetes", "--json", at=deployment).succeeded()
    line = ran.document["data"]["secret_command"]
    assert line in (deployment / "kubernetes/README.md").read_text()
    path = f"{kubectl().parent}:/usr/bin:/bin"
    done = run_command("sh", "-c", f"PATH={path}; {line} --dry-run=client -o yaml")
    assert done.returncode == 0, done.stderr
    secret = yaml.safe_load(done.stdout)
    document = yaml.safe_load((deployment / "kubernetes/base/deployment.yaml").read_text())
    volumes = {volume["name"]: volume for volume in pod_of(document)["volumes"]}
    assert secret["metadata"]["name"] == volumes["keys"]["secret"]["secretName"]
    (name,) = secret["data"]
    settings = yaml.safe_load((deployment / "kubernetes/base/settings.yaml").read_text())["data"]
    assert settings[SECRETS_FILE] == f"/run/secrets/{name}"
    mounted = tmp_path / name
    mounted.write_bytes(base64.b64decode(secret["data"][name]))
    assert "hf_" not in mounted.read_text()
    assert all(re.match(r"[A-Z_]+=", row) for row in mounted.read_text().splitlines())
    found = read_secrets({SECRETS_FILE: str(mounted)})
    read = Deployment(deployment)
    assert [key.key for key in api_keys(found)] == [read.key.reveal(), read.further_keys[0].key]


def test_a_second_export_follows_the_settings_and_stops_at_an_edited_file(deployment: Path) -> None:
    out = deployment / "kubernetes"
    dflash("export", "kubernetes", at=deployment).succeeded()
    edit_env(deployment, MAX_NUM_SEQS="3")
    dflash("export", "kubernetes", at=deployment).succeeded()
    assert yaml.safe_load((out / "base/settings.yaml").read_text())["data"]["MAX_NUM_SEQS"] == "3"
    (out / "base/service.yaml").write_text("kind: mine\n")
    edit_env(deployment, MAX_NUM_SEQS="2")
    ran = dflash("export", "kubernetes", at=deployment)
    assert ran.code is ExitCode.USAGE
    assert "base/service.yaml was edited" in ran.err
    assert yaml.safe_load((out / "base/settings.yaml").read_text())["data"]["MAX_NUM_SEQS"] == "3"


def test_two_deployments_do_not_share_a_folder(deployment: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    initialise("--profile", "cpu", "--runtime", "compose", at=other)
    dflash("export", "kubernetes", "--out", "../out", at=deployment).succeeded()
    before = (tmp_path / "out/README.md").read_text()
    ran = dflash("export", "kubernetes", "--out", "../out", at=other)
    assert ran.code is ExitCode.USAGE
    assert "has the export of another deployment" in ran.err
    assert (tmp_path / "out/README.md").read_text() == before


@pytest.mark.parametrize(
    ("edits", "out", "code", "said"),
    [
        ({"DFLASH_RUNTIME": "native"}, "out", ExitCode.USAGE, "the deployment runs natively"),
        ({"REPLICAS": "2"}, "out", ExitCode.USAGE, "REPLICAS=2: a pod has one engine"),
        ({"NODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1"}, "out", ExitCode.USAGE, "NODES=2: a model"),
        ({}, ".dflash/out", ExitCode.USAGE, "is a directory of a deployment"),
        ({}, ".", ExitCode.USAGE, "has files that this command did not write"),
        ({}, ".env", ExitCode.USAGE, ".env"),
        ({"MAX_MODEL_LEN": "999999"}, "out", ExitCode.PREFLIGHT, "999999"),
        (
            {"EXTRA_ARGS": "'--lora-modules hf_a1b2c3d4e5a1b2c3d4e5'"},
            "out",
            ExitCode.USAGE,
            "the setting EXTRA_ARGS would",
        ),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_writes_nothing(
    deployment: Path, edits: dict[str, str], out: str, code: ExitCode, said: str
) -> None:
    if edits:
        edit_env(deployment, **edits)
    before = {path: path.read_bytes() for path in deployment.rglob("*") if path.is_file()}
    with pytest.raises(DeployError) as refused:
        export_kubernetes(deployment, deployment / out)
    assert refused.value.exit_code is code
    assert said in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.hint
    assert {path: path.read_bytes() for path in deployment.rglob("*") if path.is_file()} == before


def test_a_refusal_is_shown_with_a_hint(deployment: Path) -> None:
    ran = dflash("export", "kubernetes", "--name", "Vision", at=deployment)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "`Vision` is not a valid name" in ran.err
    assert "hint:" in ran.err


def test_the_key_in_another_setting_is_refused(deployment: Path) -> None:
    edit_env(deployment, SERVED_MODEL_NAME=Deployment(deployment).key.reveal())
    ran = dflash("export", "kubernetes", at=deployment)
    assert ran.code is not ExitCode.DONE
    assert Deployment(deployment).key.reveal() not in ran.err
    assert not (deployment / "kubernetes").exists()


def test_a_domain_is_left_to_the_cluster(deployment: Path) -> None:
    edit_env(deployment, DFLASH_DOMAIN="ai.example.com")
    done = export_kubernetes(deployment, deployment / "out")
    assert done.domain == "ai.example.com"
    texts = [path.read_text() for path in (deployment / "out").rglob("*") if path.is_file()]
    assert not [text for text in texts if "ai.example.com" in text]
    said = dflash("export", "kubernetes", "--out", "out", at=deployment).succeeded().out
    assert "domain       publish ai.example.com with an Ingress: https://" in said


def test_a_dgx_spark_is_exported_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with its GPU writes the folder in this process, since this one has none."""
    monkeypatch.setattr(planning, "read_facts", lambda: SPARK)
    place = tmp_path / "spark"
    place.mkdir()
    create(Deployment(place), plan_deployment(SPARK, Choice(), load_catalog()))
    image = f"registry.example.com/dflash-vllm@sha256:{'0' * 64}"
    done = export_kubernetes(place, tmp_path / "out", Cluster(name="spark", image=image))
    assert not done.image_note
    document = yaml.safe_load((tmp_path / "out/base/deployment.yaml").read_text())
    pod = pod_of(document)
    assert pod["nodeSelector"]["kubernetes.io/arch"] == "arm64"
    assert pod["containers"][0]["image"] == image
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert f"Nodes pull `{image}`" in (tmp_path / "out/README.md").read_text()
    shutil.rmtree(tmp_path / "out")
