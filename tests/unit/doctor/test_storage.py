"""Room on disk, and weights that the engine's user may read."""

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.doctor import deployment as examined
from dflash_deploy.host.machine import DiskRoom
from dflash_deploy.runtime.protocol import EngineState
from tests.support.examined import (
    NVIDIA_DOCKER,
    a_deployment,
    a_machine,
    a_plan,
    a_subject,
    by_name,
    only,
    whole_weights,
)
from tests.support.gguf import header
from tests.support.machines import GIB
from tests.support.scripted import ScriptedRuntime


@pytest.fixture(autouse=True)
def _no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examined, "has_image", lambda name: False)


def room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(examined, "disk_room", lambda path: DiskRoom(Path("/disk"), 1, free))


def test_all_that_is_missing_is_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 60 * GIB)
    check = only(examined.disk, a_subject())
    assert check.status == "ok"
    assert check.saw.startswith("60.0 GiB free at /disk, 52.0 GiB needed: ")
    for part in (
        "20.0 GiB of the target in /nowhere/models/target",
        "3.0 GiB of the drafter in /nowhere/models/drafter",
        "26.0 GiB for the image in /nowhere/docker",
        "3.0 GiB for caches in /nowhere/docker",
    ):
        assert part in check.saw


def test_too_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 40 * GIB)
    check = only(examined.disk, a_subject())
    assert check.status == "no"
    assert check.fix.startswith("free 12.0 GiB there")


def test_what_is_there_is_not_needed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(examined, "has_image", lambda name: True)
    room(monkeypatch, 4 * GIB)
    subject = a_subject(a_plan(models=whole_weights(tmp_path)))
    check = only(examined.disk, subject)
    assert check.status == "ok"
    assert "3.0 GiB needed: 3.0 GiB for caches" in check.saw


def test_a_deployment_that_runs_has_written_all_of_it(tmp_path: Path) -> None:
    running = ScriptedRuntime([EngineState("running")])
    check = only(examined.disk, a_subject(a_plan(models=whole_weights(tmp_path)), runtime=running))
    assert (check.status, check.saw) == ("ok", "weights, image and caches are already on disk")


def test_a_download_that_was_interrupted_needs_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    room(monkeypatch, 60 * GIB)
    (tmp_path / "target").mkdir()
    with (tmp_path / "target" / "model-00001-of-00002.safetensors").open("wb") as shard:
        shard.truncate(15 * GIB)
    check = only(examined.disk, a_subject(a_plan(models=tmp_path)))
    assert f"5.0 GiB of the target in {tmp_path}/target" in check.saw


def test_file_systems_are_judged_each_for_itself(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    systems = {memory.stat().st_dev, tmp_path.stat().st_dev}
    engine = replace(NVIDIA_DOCKER, root=str(memory))
    checks = list(examined.disk(a_subject(a_plan(models=tmp_path), a_machine(engine=engine)), a_plan(models=tmp_path)))
    assert len(checks) == len(systems)


def test_an_engine_elsewhere_has_its_own_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 60 * GIB)
    elsewhere = a_machine(engine=replace(NVIDIA_DOCKER, host="ssh://gpu-box"))
    assert "image" not in only(examined.disk, a_subject(facts=elsewhere)).saw


def test_weights_that_are_missing_are_named() -> None:
    checks = by_name(examined.weights, a_subject())
    assert [check.status for check in checks.values()] == ["warning", "warning"]
    assert "20.0 GiB to download" in checks["weights of target"].saw


def test_weights_that_up_cannot_download_keep_it_from_starting(tmp_path: Path) -> None:
    plan = a_plan(models=whole_weights(tmp_path), repos=False)
    assert {check.status for check in by_name(examined.weights, a_subject(plan)).values()} == {"ok"}
    (tmp_path / "target" / "tokenizer.json").symlink_to("/nowhere/blob")
    check = by_name(examined.weights, a_subject(plan))["weights of target"]
    assert check.status == "no"
    assert "tokenizer.json is a broken symlink to /nowhere/blob" in check.saw


def test_llama_cpp_wants_one_file(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    plan = a_plan(models=tmp_path, family="llamacpp", MODEL_FILE="model-Q4.gguf")
    assert "model-Q4.gguf is missing" in by_name(examined.weights, a_subject(plan))["weights of target"].saw
    (tmp_path / "target" / "model-Q4.gguf").write_bytes(header())
    assert by_name(examined.weights, a_subject(plan))["weights of target"].status == "ok"


def test_weights_are_readable_for_the_owner_of_env(tmp_path: Path) -> None:
    models = whole_weights(tmp_path / "models")
    deployment = a_deployment(tmp_path)
    subject = a_subject(a_plan(models=models), deployment=deployment)
    assert {check.status for check in by_name(examined.weights, subject).values()} == {"ok"}


def test_weights_that_another_user_s_container_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = whole_weights(tmp_path / "models")
    monkeypatch.setattr(examined, "_engine_user", lambda subject, plan: (54321, 54321))
    subject = a_subject(a_plan(models=models), deployment=a_deployment(tmp_path))
    assert {check.status for check in by_name(examined.weights, subject).values()} == {"ok"}
    (models / "target" / "model.safetensors").chmod(0o640)
    (models / "drafter").chmod(0o700)
    checks = by_name(examined.weights, subject)
    assert checks["weights of target"].saw.startswith(
        f"{models}/target/model.safetensors is not readable for user 54321"
    )
    assert checks["weights of drafter"].saw.startswith(f"{models}/drafter is not readable")
    assert checks["weights of drafter"].status == "no"


def test_root_is_judged_as_others_in_a_container_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = whole_weights(tmp_path / "models")
    (models / "target" / "model.safetensors").chmod(0o000)
    monkeypatch.setattr(examined, "_engine_user", lambda subject, plan: (0, 0))
    deployment = a_deployment(tmp_path)
    native = a_subject(a_plan(models=models, runtime="native"), deployment=deployment)
    contained = a_subject(a_plan(models=models), deployment=deployment)
    assert by_name(examined.weights, native)["weights of target"].status == "ok"
    assert by_name(examined.weights, contained)["weights of target"].status == "no"


def test_a_group_has_its_share(tmp_path: Path) -> None:
    models = whole_weights(tmp_path)
    file = models / "target" / "model.safetensors"
    file.chmod(0o040)
    assert examined.first_unreadable(models / "target", 54321, file.stat().st_gid) is None
    assert examined.first_unreadable(models / "target", 54321, 54321) == file
