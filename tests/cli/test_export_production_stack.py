"""`export production-stack`: values without a key, for deployments that the chart can run."""

import base64
from pathlib import Path

import pytest
import yaml

from dflash_deploy import planning
from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import BadInput, ExitCode
from dflash_deploy.features.export.cluster import Cluster
from dflash_deploy.features.export.operations import check_production_stack, export_kubernetes, export_production_stack
from dflash_deploy.plan.result import Choice
from dflash_deploy.rules.table import plan_deployment
from tests.support.cli import dflash, edit_env, initialise
from tests.support.commands import run_command
from tests.support.machines import SPARK
from tests.support.manifests import kubectl

FURTHER = f"alice:{'b7' * 20},stack-router:{'c8' * 20}"


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment of a machine with a GPU; the commands run in this process, since this one has none."""
    monkeypatch.setattr(planning, "read_facts", lambda: SPARK)
    place = tmp_path / "vision"
    place.mkdir()
    create(Deployment(place), plan_deployment(SPARK, Choice(), load_catalog()))
    edit_env(place, DFLASH_API_KEYS=FURTHER)
    return place


def test_the_values_have_no_key_and_the_lines_make_the_secrets_that_they_name(spark: Path, tmp_path: Path) -> None:
    done = export_production_stack(spark, tmp_path / "out")
    read = Deployment(spark)
    texts = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    for secret in (read.key.reveal(), *(key.key for key in read.further_keys)):
        assert not [name for name, text in texts.items() if secret in text]
    made = {}
    for line in done.secret_commands:
        assert line in texts["README.md"]
        ran = run_command("sh", "-c", f"PATH={kubectl().parent}:/usr/bin:/bin; {line} --dry-run=client -o yaml")
        assert ran.returncode == 0, ran.stderr
        secret = yaml.safe_load(ran.stdout)
        entries = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
        made[secret["metadata"]["name"]] = entries
    values = yaml.safe_load(texts["values.yaml"])
    engine, router = values["servingEngineSpec"]["vllmApiKey"], values["routerSpec"]["vllmApiKey"]
    assert made[engine["secretName"]][engine["secretKey"]] == read.key.reveal()
    assert made[engine["secretName"]] == {"VLLM_API_KEY": read.key.reveal(), "DFLASH_API_KEYS": FURTHER}
    # the router opens /sleep with its key to clients without one: it is not the owner's
    assert made[router["secretName"]][router["secretKey"]] == "c8" * 20


def test_a_check_names_each_value_and_an_edited_file_stays(spark: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_production_stack(spark, out, Cluster(replicas=2))
    (out / "mine.yaml").write_text("routerSpec: {tag: v1}\n")
    assert not check_production_stack(spark, out).differs
    edit_env(spark, MAX_NUM_SEQS="3")
    found = {one.place: (one.folder, one.plan) for one in check_production_stack(spark, out).differs}
    model = "servingEngineSpec.modelSpec[0]"
    assert found.pop(f"{model}.vllmConfig.maxNumSeqs") == ("16", "3")
    assert ("16", "3") in [change for place, change in found.items() if place.startswith(f"{model}.env[")]
    assert all(place.startswith(f"{model}.") for place in found)
    (out / "values.yaml").write_text("mine: 1\n")
    with pytest.raises(BadInput, match=r"values\.yaml was edited") as refused:
        export_production_stack(spark, out)
    assert "a values file of your own" in refused.value.hint
    assert (out / "values.yaml").read_text() == "mine: 1\n"
    with pytest.raises(BadInput, match="production-stack"):
        export_kubernetes(spark, out)


def test_a_deployment_that_the_chart_cannot_run_is_refused_with_another_way(tmp_path: Path) -> None:
    initialise("--profile", "cpu", "--runtime", "compose", at=tmp_path)
    ran = dflash("export", "production-stack", "--json", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "dflash-deploy export kubernetes" in ran.document["error"]["hint"]
    assert not (tmp_path / "production-stack").exists()
