"""The journal: events in order, without secrets, and none of them fails a command."""

import fcntl
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dflash_deploy.deployment import journal
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.journal import NAME, engine_work, events, record
from dflash_deploy.errors import EngineNotReady, FileRefused, RolledBack
from dflash_deploy.operations.status import history

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
KEY = "a-key-of-this-deployment-0123456789abcdefg"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    (tmp_path / ".env").write_text(f"VLLM_API_KEY={KEY}\n")
    found = Deployment(tmp_path)
    found.make_state()
    return found


def texts(deployment: Deployment, since: datetime = LONG_AGO) -> list[str]:
    return [one.text for one in events(deployment, since)]


def test_events_are_kept_in_order_and_privately(deployment: Deployment) -> None:
    record(deployment, "ready", "up", "first")
    record(deployment, "stopped", "down", "second\nline")
    assert texts(deployment) == ["first", "second line"]
    assert texts(deployment, datetime.now(UTC) + timedelta(minutes=1)) == []
    assert (deployment.state / NAME).stat().st_mode & 0o777 == 0o600


def test_no_secret_is_in_it(deployment: Deployment) -> None:
    record(deployment, "failed", "up", f"the engine got {KEY}")
    assert KEY not in (deployment.state / NAME).read_text()


def test_half_a_line_damages_no_other(deployment: Deployment) -> None:
    record(deployment, "ready", "up", "first")
    with (deployment.state / NAME).open("ab") as file:
        file.write(b'{"at": "2026-11-23T00:00:00Z", "event": "rea')
    record(deployment, "ready", "up", "second")
    assert texts(deployment) == ["first", "second"]


@pytest.mark.parametrize("at", ["2026-13-40T00:00:00Z", "0000-01-01T00:00:00Z", "9999-01-01T25:00:00Z"])
def test_a_time_that_does_not_exist_is_damage(deployment: Deployment, at: str) -> None:
    (deployment.state / NAME).write_text(f'{{"at": "{at}", "event": "ready", "command": "up", "text": "lost"}}\n')
    record(deployment, "ready", "up", "kept")
    assert texts(deployment) == ["kept"]
    assert [one.text for one in history(deployment.directory, 3600).events] == ["kept"]


def test_text_that_is_not_utf_8_is_kept_without_it(deployment: Deployment) -> None:
    record(deployment, "failed", "up", "no file \udcff.json")
    assert texts(deployment) == ["no file ?.json"]


def test_the_journal_of_a_root_run_belongs_to_the_owner_of_env(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    owner = deployment.env_file.stat()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda descriptor, uid, gid: given.append((uid, gid)))
    record(deployment, "ready", "up", "its own")
    assert given == []
    seen = os.fstat
    # a file that root created, as the user who runs this test cannot create it
    monkeypatch.setattr(
        os,
        "fstat",
        lambda descriptor: os.stat_result([*seen(descriptor)[:4], owner.st_uid + 1, *seen(descriptor)[5:10]]),
    )
    record(deployment, "ready", "up", "of root")
    assert given == [(owner.st_uid, owner.st_gid)]


def test_a_journal_that_cannot_be_read_is_an_error_of_the_past(deployment: Deployment) -> None:
    (deployment.state / NAME).mkdir()
    with pytest.raises(FileRefused, match=NAME):
        history(deployment.directory, 3600)


def test_a_line_that_is_damaged_is_left_out(deployment: Deployment) -> None:
    record(deployment, "ready", "up", "first")
    with (deployment.state / NAME).open("ab") as file:
        file.write(b'{"at": "2026-11-23T0\n\xff\xfe\n[]\n{"at": "soon", "event": "", "command": "", "text": ""}\n')
    record(deployment, "ready", "up", "second")
    assert texts(deployment) == ["first", "second"]


@pytest.mark.parametrize("kind", ["directory", "link", "missing"])
def test_a_journal_that_cannot_be_written_fails_no_command(deployment: Deployment, kind: str) -> None:
    place = deployment.state / NAME
    if kind == "directory":
        place.mkdir()
    elif kind == "link":
        place.symlink_to(deployment.directory / "elsewhere")
    else:
        deployment.state.rmdir()
    record(deployment, "ready", "up", "lost")
    assert texts(deployment) == []
    assert not (deployment.directory / "elsewhere").exists()


def test_an_old_half_is_kept_and_an_older_one_is_not(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_BYTES", 300)
    for number in range(12):
        record(deployment, "ready", "up", f"event {number}")
    kept = texts(deployment)
    assert kept == [f"event {number}" for number in range(12)][-len(kept) :]
    assert 3 <= len(kept) < 12


def test_another_writer_is_not_waited_for_and_the_file_stays(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(deployment, "ready", "up", "first")
    with monkeypatch.context() as small:
        small.setattr(journal, "MOST_BYTES", 10)
        with (deployment.state / NAME).open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            record(deployment, "ready", "up", "second")
            assert not (deployment.state / f"{NAME}.1").exists()
        record(deployment, "ready", "up", "third")
    assert (deployment.state / f"{NAME}.1").exists()
    assert texts(deployment) == ["first", "second", "third"]


def test_the_past_is_the_journal(deployment: Deployment) -> None:
    record(deployment, "ready", "up", "first")
    past = history(deployment.directory, 3600)
    assert [(one.event, one.command, one.text) for one in past.events] == [("ready", "up", "first")]


@pytest.mark.parametrize(
    ("problem", "event", "said"),
    [
        (EngineNotReady("no \udcff", hint="yes"), "failed", "no ?"),
        (RolledBack("back", hint="yes"), "rolled-back", "back"),
        (KeyboardInterrupt(), "failed", "interrupted"),
        (RuntimeError("a defect"), "failed", "RuntimeError: a defect"),
    ],
)
def test_a_failure_is_recorded_and_stays_what_it_is(
    deployment: Deployment, problem: BaseException, event: str, said: str
) -> None:
    with pytest.raises(type(problem)) as raised, engine_work(deployment, "up"):
        raise problem
    assert raised.value is problem
    assert [(one.event, one.text) for one in events(deployment, LONG_AGO)] == [(event, said)]
