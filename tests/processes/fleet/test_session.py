"""What a command on a host prints is bounded, and a call ends in time; `ssh` is a program of the tests."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_deploy.errors import HostNotTrusted, HostUnfit, HostUnreachable, Interrupted
from dflash_deploy.features.fleet.file import Fleet, FleetHost
from dflash_deploy.features.fleet.settings import failure_of_all, on_each
from dflash_deploy.features.fleet.ssh import MOST_MESSAGES, Calls, Session

HOST = FleetHost(name="a", address="x")
FLEET = Fleet(hosts=(HOST, FleetHost(name="b", address="y"), FleetHost(name="c", address="z")))


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Session]:
    """A session whose `ssh` is a script."""

    def session(script: str) -> Session:
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return Session(FLEET, HOST, Calls())

    return session


def test_output_and_messages_are_returned(ssh: Callable[[str], Session]) -> None:
    content = b"line\n" * 100_000
    output = ssh("cat; echo said >&2; exit 7").run(["true"], stdin=content)
    assert (output.code, output.out, output.err) == (7, content.decode(), "said\n")


def test_output_without_an_end_is_ended(ssh: Callable[[str], Session]) -> None:
    with pytest.raises(HostUnfit, match="printed more than"):
        ssh("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done").run(["true"])


def test_a_line_without_an_end_is_ended(ssh: Callable[[str], Session]) -> None:
    with pytest.raises(HostUnfit, match="printed more than"):
        ssh("tr '\\0' x </dev/zero").run(["true"], on_line=lambda line: None)


def test_messages_without_an_end_are_cut(ssh: Callable[[str], Session]) -> None:
    output = ssh("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo last >&2").run(["true"])
    assert len(output.err) == MOST_MESSAGES
    assert output.err.endswith("last\n")


def test_a_command_that_takes_too_long_is_ended(ssh: Callable[[str], Session]) -> None:
    with pytest.raises(HostUnreachable, match="no answer within 1 s"):
        ssh("sleep 600 & sleep 600").run(["true"], seconds=1)


def test_a_failure_of_ssh_is_named(ssh: Callable[[str], Session]) -> None:
    with pytest.raises(HostNotTrusted):
        ssh("echo 'Host key verification failed.' >&2; exit 255").run(["true"])


def test_input_that_is_not_read_is_no_failure(ssh: Callable[[str], Session]) -> None:
    assert ssh("echo written").send(b"x" * 1_000_000, "file")


def test_lines_arrive_before_the_end(ssh: Callable[[str], Session]) -> None:
    lines: list[bytes] = []
    ssh("echo one; echo; printf two").run(["true"], on_line=lines.append)
    assert lines == [b"one", b""]


def test_one_failure_leaves_the_other_hosts_running(ssh: Callable[[str], Session]) -> None:
    ssh('case "$*" in *" y "*) echo "Connection refused" >&2; exit 255;; esac; echo fine')
    outcomes = on_each(FLEET, FLEET.hosts, lambda session: session.require(["true"]))
    assert [outcome.result for outcome in outcomes.values()] == ["fine\n", None, "fine\n"]
    failure = failure_of_all(outcomes)
    assert isinstance(failure, HostUnreachable)
    assert failure.message.startswith("b: y cannot be reached")


def test_several_failures_are_one_error_with_all_names(ssh: Callable[[str], Session]) -> None:
    ssh('case "$*" in *" x "*) echo fine;; *) exit 255;; esac')
    failure = failure_of_all(on_each(FLEET, FLEET.hosts, lambda session: session.require(["true"])))
    assert isinstance(failure, HostUnreachable)
    assert failure.message.startswith("2 of 3 hosts failed (b, c); b: y cannot be reached")


def test_ending_all_calls_ends_those_that_run_and_refuses_new_ones(ssh: Callable[[str], Session]) -> None:
    session = ssh("sleep 600")
    ended: list[BaseException] = []

    def call() -> None:
        try:
            session.run(["true"], seconds=None)
        except BaseException as problem:
            ended.append(problem)

    thread = threading.Thread(target=call)
    thread.start()
    calls = session._calls
    while not calls._running:
        time.sleep(0.01)
    calls.end()
    thread.join(60)
    assert not thread.is_alive()
    with pytest.raises(Interrupted):
        session.run(["true"])
