"""`export ray` as a person runs it: only settings that answered, no key in any file, reasons for a refusal."""

from pathlib import Path

import yaml

from dflash_deploy.deployment.directory import Deployment, remember_good
from dflash_deploy.errors import ExitCode
from tests.support.cli import dflash

FILES = {"README.md", "ray.env", "rayservice.yaml", "serve.yaml"}


def deployment(directory: Path, engine: str = "vllm") -> Path:
    options = ("--profile", "cpu", "--engine", engine, "--runtime", "compose")
    dflash("init", *options, at=directory).succeeded()
    return directory


def test_settings_that_never_answered_are_not_exported(tmp_path: Path) -> None:
    ran = dflash("export", "ray", "cluster", "--json", at=deployment(tmp_path))
    assert ran.code is ExitCode.USAGE
    assert ran.document["error"] == {
        **ran.document["error"],
        "message": "these settings have not answered here yet",
        "hint": "`dflash-deploy up` starts them and waits for an answer",
    }
    assert not (tmp_path / "cluster").exists()


def test_settings_that_changed_since_they_answered_are_not_exported(tmp_path: Path) -> None:
    remember_good(Deployment(deployment(tmp_path)))
    dflash("set", "MAX_NUM_SEQS=2", at=tmp_path).succeeded()
    assert dflash("export", "ray", "cluster", at=tmp_path).code is ExitCode.USAGE


def test_proven_settings_become_four_files_without_a_key(tmp_path: Path) -> None:
    remember_good(Deployment(deployment(tmp_path)))
    dflash("keys", "add", "app", at=tmp_path).succeeded()
    ran = dflash("export", "ray", "a/cluster", "--replicas", "1-3", "--json", at=tmp_path).succeeded()
    texts = {file.name: file.read_text() for file in (tmp_path / "a" / "cluster").iterdir()}
    assert set(texts) == set(ran.document["data"]["files"]) == FILES
    found = Deployment(tmp_path)
    for secret in found.known_secrets:
        assert not any(secret.reveal() in text for text in (*texts.values(), ran.out, ran.err))
    service = yaml.safe_load(texts["rayservice.yaml"])
    assert yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    # the same again changes nothing
    dflash("export", "ray", "a/cluster", "--replicas", "1-3", at=tmp_path).succeeded()
    assert {file.name: file.read_text() for file in (tmp_path / "a" / "cluster").iterdir()} == texts


def test_what_ray_cannot_serve_is_refused_with_the_reason(tmp_path: Path) -> None:
    remember_good(Deployment(deployment(tmp_path, "llamacpp")))
    ran = dflash("export", "ray", "cluster", "--json", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "it runs vLLM only, and this deployment llama.cpp" in ran.document["error"]["message"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    remember_good(Deployment(deployment(tmp_path)))
    (tmp_path / "file").write_text("")
    ran = dflash("export", "ray", "file/cluster", at=tmp_path)
    assert ran.code is ExitCode.USAGE
    assert "cannot be written" in ran.err
