"""`fleet` on two hosts with llama.cpp: from nothing to an answer of each, checked, restarted and stopped."""

import stat

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.fleet_lab import Lab, states


def test_two_hosts_to_answers_and_back(hosts: Lab) -> None:
    key = Deployment(hosts.directory).key.reveal()
    up = hosts.dflash("fleet", "up", "--json").succeeded()
    assert states(up.document) == ["ready", "ready"]
    for host in up.document["data"]["hosts"]:
        assert host["endpoint"] == "http://127.0.0.1:8000/v1"
        assert host["checks_passed"] >= 3
        assert host["error"] is None
    # a line for each host, with its phases; llama.cpp leaves the earlier ones before the log is read
    for host in hosts.hosts:
        assert [line for line in up.err.splitlines() if line.startswith(host.name) and "first generation" in line]
        env = host.deployment / ".env"
        assert stat.S_IMODE(env.stat().st_mode) == 0o600
        assert Deployment(host.deployment).key.reveal() == key
    assert "llamacpp_wheel" in hosts.arguments()
    assert key not in hosts.arguments() + up.err + up.out

    again = hosts.dflash("fleet", "up", "--json").succeeded()
    assert states(again.document) == ["ready", "ready"]
    assert "settings and the API key" not in again.err

    tested = hosts.dflash("fleet", "test", "--json").succeeded()
    assert [(host["state"], host["checks_failed"]) for host in tested.document["data"]["hosts"]] == [("passed", [])] * 2
    logs = hosts.dflash("fleet", "logs", "--tail", "3").succeeded().out.splitlines()
    assert {line.split(" | ")[0] for line in logs} == {"host-a", "host-b"}
    assert states(hosts.dflash("fleet", "status", "--json").succeeded().document) == ["ready", "ready"]

    restarted = hosts.dflash("fleet", "restart", "--host", "host-b", "--json").succeeded()
    assert states(restarted.document) == ["ready"]
    assert states(hosts.dflash("fleet", "down", "--json").succeeded().document) == ["stopped", "stopped"]
    assert "llamacpp_wheel" not in hosts.arguments()


def test_one_host_fails_and_the_other_serves(hosts: Lab) -> None:
    other = hosts.hosts[1]
    blocker = hosts.directory / "fleet.yaml"
    # an address that the host does not have
    blocker.write_text(f"{blocker.read_text()}    settings: {{DFLASH_BIND: 10.99.0.1}}\n")
    ran = hosts.dflash("fleet", "up", "--json")
    assert ran.code is ExitCode.PREFLIGHT, ran.err
    assert states(ran.document) == ["ready", "failed"]
    assert ran.document["error"]["message"].startswith(f"{other.name}: DFLASH_BIND=`10.99.0.1` is not an address")
