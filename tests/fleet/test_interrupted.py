"""`fleet up` that is killed, interrupted or cut off in each phase: the same command continues, and nothing is half."""

import signal
from pathlib import Path

from dflash_deploy.errors import ExitCode
from tests.support.fleet_command import started
from tests.support.fleet_lab import Host, Lab

UP = ("fleet", "up", "--host", "host-b")
"""`fleet up` for the second host."""


def half_written(host: Host) -> list[Path]:
    """Files that a sender left unfinished."""
    return list(host.home.rglob(".*.fleet")) + list(host.home.rglob(".*.fleet.last"))


def test_a_command_that_is_killed_or_interrupted_continues(hosts: Lab) -> None:
    host = hosts.hosts[1]
    for words, end in (
        ("checks the host", signal.SIGKILL),
        ("settings and", signal.SIGINT),
        ("starting", signal.SIGKILL),
    ):
        with started(hosts, *UP) as up:
            up.until(words)
            up.process.send_signal(end)
            code = up.ended()
        assert code == (ExitCode.INTERRUPTED if end is signal.SIGINT else -end), up.said
        (host.deployment / ".env").unlink(missing_ok=True) if words == "checks the host" else None
    done = hosts.dflash("fleet", "up", "--host", "host-b").succeeded()
    assert "host-b       answers at" in done.err
    assert not half_written(host)
    # the gateway has the server's command behind its own
    gateways = host.processes("dflash_deploy.serve.door")
    assert len(gateways) == 1
    assert len(set(host.processes("llamacpp_wheel")) - set(gateways)) == 1


def test_a_cable_pulled_out_in_each_phase_is_named_and_the_same_command_continues(hosts: Lab) -> None:
    host = hosts.hosts[1]
    for words in ("checks the host", "starting"):
        with started(hosts, *UP) as up:
            up.until(words)
            with host.unplugged():
                code = up.ended()
        assert code == ExitCode.PREFLIGHT, up.said
        assert "host-b: " in up.said
        assert "the connection to 10.77.2.2 was lost" in up.said or "cannot be reached over SSH" in up.said
        assert "run the same command again" in up.said
    hosts.dflash("fleet", "up", "--host", "host-b").succeeded()
    with host.unplugged():
        ran = hosts.dflash("fleet", "status", "--host", "host-b", "--json")
        assert ran.code is ExitCode.PREFLIGHT
        assert ran.document["error"]["message"].startswith("host-b: 10.77.2.2 cannot be reached over SSH")
    assert not half_written(host)
