"""What is wrong with a host is one line with its name, a hint and exit code 3; after the fix the same command works."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_deploy.errors import ExitCode
from tests.support.commands import checked
from tests.support.fleet_lab import Host, Lab


@contextmanager
def changed_key(lab: Lab, host: Host) -> Iterator[None]:
    host.stop()
    host.new_host_key()
    host.start()
    yield
    lab.trust()


@contextmanager
def unknown(lab: Lab, host: Host) -> Iterator[None]:
    known = lab.root / "known_hosts"
    known.write_text(
        "".join(line for line in known.read_text().splitlines(keepends=True) if not line.startswith(f"{host.address} "))
    )
    yield
    lab.trust()


@contextmanager
def no_login(lab: Lab, host: Host) -> Iterator[None]:
    keys = host.root / "authorized_keys"
    text = keys.read_text()
    keys.write_text("")
    yield
    keys.write_text(text)


@contextmanager
def other_version(lab: Lab, host: Host) -> Iterator[None]:
    program = lab.root / "program"
    program.write_text("#!/bin/sh\necho dflash-deploy 0.0.9\n")
    program.chmod(0o755)
    lab.write_fleet(program=str(program))
    yield
    lab.write_fleet()


@contextmanager
def full_disk(lab: Lab, host: Host) -> Iterator[None]:
    host.stop()
    host.start(before=f"mount -t tmpfs -o size=64k none {host.home} && head -c 1M /dev/zero >{host.home}/fill; ")
    lab.wait_for(host)
    yield
    host.stop()
    host.start()
    lab.wait_for(host)


@contextmanager
def unplugged(lab: Lab, host: Host) -> Iterator[None]:
    with host.unplugged():
        yield


@contextmanager
def wrong_address(lab: Lab, host: Host) -> Iterator[None]:
    file = lab.directory / "fleet.yaml"
    text = file.read_text()
    file.write_text(text.replace(host.address, "no-such-host.invalid"))
    yield
    file.write_text(text)


@contextmanager
def a_shell_that_prints(lab: Lab, host: Host) -> Iterator[None]:
    host.stop()
    host.start(server_lines=("ForceCommand echo '\x1b]0;hello\x07 Welcome!'",))
    lab.wait_for(host)
    yield
    host.stop()
    host.start()
    lab.wait_for(host)


@dataclass(frozen=True)
class HostFault:
    """A fault of the second host, the message that names it, and a word of the hint."""

    make: Callable[[Lab, Host], AbstractContextManager[None]]
    said: str
    hint: str


FAULTS = {
    "a changed key": HostFault(changed_key, "host-b: the SSH key of 10.77.2.2 has changed", "ssh-keygen -R"),
    "an unknown host": HostFault(unknown, "host-b: the SSH key of 10.77.2.2 is not known", "ssh 10.77.2.2"),
    "no login": HostFault(no_login, "host-b: 10.77.2.2 rejects the login", "ssh-copy-id"),
    "a full disk": HostFault(full_disk, "host-b: its disk is full", "free space"),
    "a cable that is out": HostFault(unplugged, "host-b: 10.77.2.2 cannot be reached over SSH", "same command again"),
    "a name without an address": HostFault(wrong_address, "host-b: the host name no-such-host.invalid", "fleet.yaml"),
    "a shell that prints": HostFault(a_shell_that_prints, "host-b: it does not print what was asked", "start-up files"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_the_same_command_works_after_it(fault: str, hosts: Lab) -> None:
    found = FAULTS[fault]
    with found.make(hosts, hosts.hosts[1]):
        ran = hosts.dflash("fleet", "init", "--json")
        assert ran.code is ExitCode.PREFLIGHT, ran.err
        error = ran.document["error"]
        assert error["message"].startswith(found.said)
        assert found.hint in error["hint"]
        assert [host["state"] for host in ran.document["data"]["hosts"]] == ["usable", "failed"]
        assert "\x1b" not in ran.out + ran.err
    hosts.dflash("fleet", "init").succeeded()


def test_a_host_with_another_version_is_named_by_every_command(hosts: Lab) -> None:
    with other_version(hosts, hosts.hosts[1]):
        for command in ("up", "status", "test", "down", "restart"):
            ran = hosts.dflash("fleet", command, "--json")
            assert ran.code is ExitCode.PREFLIGHT, ran.err
            for host in ran.document["data"]["hosts"]:
                assert "it has dflash-deploy 0.0.9, this machine has 0.1.0" in host["error"]["message"]
    assert not any(host.deployment.exists() for host in hosts.hosts)


def test_a_host_that_was_never_prepared_names_the_command_that_does_it(hosts: Lab) -> None:
    ran = hosts.dflash("fleet", "status", "--json")
    assert ran.code is ExitCode.PREFLIGHT
    assert ran.document["error"]["hint"] == "`dflash-deploy fleet up` makes it"
    ran = hosts.dflash("fleet", "down", "--json").succeeded()
    assert [host["state"] for host in ran.document["data"]["hosts"]] == ["absent", "absent"]


def test_without_an_ssh_client_the_package_is_named(hosts: Lab, tmp_path: Path) -> None:
    for program in ("ip", "python3"):
        (tmp_path / program).symlink_to(checked("sh", "-c", f"command -v {program}").strip())
    ran = hosts.dflash("fleet", "status", environment={"PATH": str(tmp_path)})
    assert ran.code is ExitCode.PREFLIGHT
    assert "openssh-client" in ran.err
