"""A deployment whose files are not what they should be: refused with a reason, or read without what is damaged."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_deploy.deployment.directory import (
    Deployment,
    changes,
    last_good,
    mark_restored,
    remember_good,
    restored_since,
)
from dflash_deploy.deployment.files import PUBLIC, write_if_changed
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.errors import DirectoryBusy, FileInvalid, FileRefused, NoDeployment
from dflash_deploy.serve.settings import Settings
from dflash_deploy.startup.progress import remember_seconds, usual_seconds


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    deployment = Deployment(tmp_path)
    deployment.write_env({Settings.max_model_len.name: "4096"})
    return deployment


def fifo(file: Path) -> None:
    os.mkfifo(file)


def directory(file: Path) -> None:
    file.mkdir()


def device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def endless(file: Path) -> None:
    file.touch()
    os.truncate(file, 2**40)


def zeros(file: Path) -> None:
    file.write_bytes(b"\0" * 3000)


def no_text(file: Path) -> None:
    file.write_bytes(b"A=\xff\n")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (fifo, "is a FIFO, not a file"),
        (directory, "is a directory, not a file"),
        (device, "is a device, not a file"),
        (endless, "too large: 1099511627776 bytes (limit: 262144)"),
        (no_text, "is not UTF-8 text"),
    ],
)
def test_an_env_that_is_no_text_file_is_refused_at_once(
    deployment: Deployment, damage: Callable[[Path], None], says: str
) -> None:
    deployment.env_file.unlink()
    damage(deployment.env_file)
    for read in (lambda: Deployment.existing(deployment.directory), lambda: Deployment(deployment.directory).secrets):
        with pytest.raises(FileInvalid) as refusal:
            read()
        assert says in refusal.value.message


def test_a_link_that_leads_nowhere_is_no_deployment(deployment: Deployment) -> None:
    deployment.env_file.unlink()
    deployment.env_file.symlink_to("nowhere")
    with pytest.raises(NoDeployment):
        Deployment.existing(deployment.directory)


def test_a_directory_of_another_user_is_refused_and_not_a_defect(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(FileRefused, match="Permission denied"):
        deployment.exists()


@pytest.mark.parametrize("damage", [fifo, directory, device, endless, zeros, no_text])
def test_damaged_last_working_settings_are_set_aside(deployment: Deployment, damage: Callable[[Path], None]) -> None:
    remember_good(deployment)
    assert last_good(deployment) is not None
    (deployment.state / "last-good.env").unlink()
    damage(deployment.state / "last-good.env")
    assert changes(deployment) == ()
    assert last_good(deployment) is None
    remember_good(deployment)
    assert last_good(deployment) is not None


@pytest.mark.parametrize("damage", [fifo, directory, device, endless, zeros, no_text])
def test_a_damaged_note_about_a_rollback_is_set_aside(deployment: Deployment, damage: Callable[[Path], None]) -> None:
    mark_restored(deployment, "the engine died")
    assert restored_since(deployment).endswith("the engine died")
    (deployment.state / "runs-last-good").unlink()
    damage(deployment.state / "runs-last-good")
    assert restored_since(deployment) == ""
    remember_good(deployment)


@pytest.mark.parametrize("damage", [fifo, directory, device, endless, zeros, no_text])
def test_damaged_times_of_the_last_start_are_set_aside(
    deployment: Deployment, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    deployment.make_state()
    damage(deployment.state / "last-start.json")
    assert usual_seconds(deployment) == {}
    assert "last-start.json" in caplog.text
    remember_seconds(deployment, {"loading the weights": 1.25})
    assert usual_seconds(deployment) == {"loading the weights": 1.2}


@pytest.mark.parametrize("content", ["[1]", '{"a": "b"}', '{"a": -1}', '{"a": 1e400}', "null", '{"a": ' + "9" * 5000])
def test_times_of_another_kind_are_set_aside(deployment: Deployment, content: str) -> None:
    (deployment.make_state() / "last-start.json").write_text(content)
    assert usual_seconds(deployment) == {}
    assert (deployment.state / "last-start.json.damaged").read_text() == content


@pytest.mark.parametrize("content", [b"\xff", b"old", b"new text and more", b"new text\r\n"])
def test_a_generated_file_that_is_not_the_same_byte_for_byte_is_written_again(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "compose.yaml"
    file.write_bytes(content)
    assert write_if_changed(file, "new text\n", mode=PUBLIC)
    assert file.read_bytes() == b"new text\n"
    assert not write_if_changed(file, "new text\n", mode=PUBLIC)


def test_who_holds_the_lock_is_shown_in_a_few_characters_whatever_is_written_there(deployment: Deployment) -> None:
    with command_lock(deployment, "up"):
        (deployment.state / "lock").write_bytes(b"\xff" * 10_000)
        with pytest.raises(DirectoryBusy) as busy, command_lock(deployment, "down"):
            pass
    assert len(busy.value.message) < 500
