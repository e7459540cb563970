"""Failures of a host, named from what OpenSSH 9.2 and the scripts print."""

import pytest

from dflash_deploy.errors import (
    DeployError,
    ExitCode,
    HostNotTrusted,
    HostUnfit,
    HostUnprepared,
    HostUnreachable,
)
from dflash_deploy.features.fleet import scripts, ssh
from dflash_deploy.features.fleet.file import FleetHost

HOST = FleetHost(name="spark-b", address="10.0.0.2", user="nvidia", port=2222)
ELSEWHERE = FleetHost(name="spark-c", address="10.0.0.3", program="/opt/bin/dflash-deploy")

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key for 10.0.0.2 has changed and you have requested strict checking.
Host key verification failed.
"""


@pytest.mark.parametrize(
    ("err", "kind", "said", "hint"),
    [
        (CHANGED, HostNotTrusted, "spark-b: the SSH key of 10.0.0.2 has changed", "ssh-keygen -R 10.0.0.2"),
        (
            "No ED25519 host key is known for 10.0.0.2 and you have requested strict checking.\n"
            "Host key verification failed.",
            HostNotTrusted,
            "spark-b: the SSH key of 10.0.0.2 is not known on this machine",
            "ssh -p 2222 nvidia@10.0.0.2",
        ),
        (
            "nvidia@10.0.0.2: Permission denied (publickey).",
            HostNotTrusted,
            "rejects the login: nvidia@10.0.0.2: Permission denied (publickey).",
            "ssh-copy-id",
        ),
        (
            "ssh: Could not resolve hostname spark-b: Name or service not known",
            HostUnreachable,
            "the host name 10.0.0.2 cannot be resolved",
            "fleet.yaml",
        ),
        (
            "ssh: connect to host 10.0.0.2 port 22: No route to host",
            HostUnreachable,
            "spark-b: 10.0.0.2 cannot be reached over SSH: ssh: connect to host 10.0.0.2 port 22: No route to host",
            "run the same command again",
        ),
        (
            "Timeout, server 10.0.0.2 not responding.",
            HostUnreachable,
            "the connection to 10.0.0.2 was lost",
            "run the same command again",
        ),
        ("", HostUnreachable, "no message", "run the same command again"),
    ],
)
def test_a_failure_of_ssh(err: str, kind: type[DeployError], said: str, hint: str) -> None:
    found = ssh.connection_failure(HOST, err)
    assert type(found) is kind
    assert said in found.message
    assert hint in found.hint
    assert found.exit_code is ExitCode.PREFLIGHT


@pytest.mark.parametrize(
    ("host", "code", "err", "kind", "said"),
    [
        (HOST, scripts.ABSENT, "", HostUnprepared, "is not installed there"),
        (ELSEWHERE, scripts.ABSENT, "", HostUnfit, "/opt/bin/dflash-deploy cannot be executed"),
        (ELSEWHERE, scripts.OTHER_VERSION, "other version: dflash-deploy 0.0.9\n", HostUnfit, "dflash-deploy 0.0.9,"),
        (HOST, scripts.DAMAGED, "", HostUnfit, "a file arrived incomplete"),
        (HOST, scripts.NO_TOOL, "", HostUnfit, "flock or sha256sum is missing"),
        (HOST, scripts.NO_DIRECTORY, "mkdir: cannot create directory: Permission denied", HostUnfit, "Permission"),
        (HOST, scripts.NO_DIRECTORY, "cat: write error: No space left on device", HostUnfit, "its disk is full"),
        (HOST, scripts.NO_PYTHON, "", HostUnfit, "no Python 3.11 or newer"),
        (HOST, scripts.NO_PIP, "ERROR: No matching distribution found for dflash-deploy", HostUnfit, "package index"),
        (HOST, scripts.NO_PIP, "ERROR: [Errno 28] No space left on device", HostUnfit, "its disk is full"),
        (HOST, 1, "sh: 1: Syntax error", HostUnfit, "exit code 1: sh: 1: Syntax error"),
    ],
)
def test_a_failure_of_a_script(host: FleetHost, code: int, err: str, kind: type[DeployError], said: str) -> None:
    found = ssh.script_failure(host, code, err)
    assert type(found) is kind
    assert found.message.startswith(host.name)
    assert said in found.message
    assert found.hint


def test_a_message_of_a_host_has_no_control_characters_and_a_limit() -> None:
    said = ssh.last_line("first\n\x1b]0;title\x07" + "x" * 10_000)
    assert "\x1b" not in said
    assert len(said) < 200
