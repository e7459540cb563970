"""`fleet` on two hosts with llama.cpp, over real SSH: from nothing to an answer of each, checked, and stopped."""

import stat

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.fleet_lab import Lab, states

OPTIONS = ("--", "--profile", "cpu", "--engine", "llamacpp", "--runtime", "native", "--port", "8000")


def test_two_hosts_to_answers_and_back(hosts: Lab) -> None:
    init = hosts.dflash("fleet", "init", "--json", *OPTIONS).succeeded()
    assert [row["exit_code"] for row in init.document["data"]["hosts"]] == [0, 0]
    keys = {Deployment(host.deployment).key.reveal() for host in hosts.hosts}
    assert len(keys) == 1
    (key,) = keys
    assert {stat.S_IMODE((host.deployment / ".env").stat().st_mode) for host in hosts.hosts} == {0o600}

    up = hosts.dflash("fleet", "up", "--json").succeeded()
    assert states(up.document) == ["ready", "ready"]
    assert {row["endpoint"] for row in up.document["data"]["hosts"]} == {"http://127.0.0.1:8000/v1"}
    for host in hosts.hosts:
        assert [line for line in up.err.splitlines() if line.startswith(f"{host.name} | ")]
    assert "llamacpp_wheel" in hosts.arguments()
    assert key not in hosts.arguments() + up.err + up.out

    assert states(hosts.dflash("fleet", "status", "--json").succeeded().document) == ["ready", "ready"]
    tested = hosts.dflash("fleet", "test", "--json").succeeded()
    assert all("checks passed" in row["message"] for row in tested.document["data"]["hosts"])
    logs = hosts.dflash("fleet", "logs", "--tail", "3").succeeded().out.splitlines()
    assert {line.split(" | ")[0] for line in logs} == {"host-a", "host-b"}
    hosts.dflash("fleet", "down", "--json").succeeded()
    assert "llamacpp_wheel" not in hosts.arguments()


def test_a_host_that_is_cut_off_is_named_and_the_other_answers(hosts: Lab) -> None:
    hosts.dflash("fleet", "init", *OPTIONS).succeeded()
    other = hosts.hosts[1]
    with other.unplugged():
        ran = hosts.dflash("fleet", "status", "--json")
    assert ran.code is ExitCode.PREFLIGHT
    assert ran.document["error"]["message"].startswith(f"{other.name}: ssh: ")
    assert ran.document["data"]["hosts"][0]["exit_code"] != ran.code


def test_an_unknown_host_key_is_not_accepted(hosts: Lab) -> None:
    host = hosts.hosts[1]
    host.stop()
    host.new_host_key()
    host.start()
    ran = hosts.dflash("fleet", "init", "--json", *OPTIONS)
    assert ran.code is ExitCode.PREFLIGHT
    assert "Host key verification failed" in ran.document["error"]["message"]
    assert not host.deployment.exists()
