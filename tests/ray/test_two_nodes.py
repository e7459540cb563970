"""Two nodes, two replicas with their drafter, the gateway in Ray's proxy: what clients outside get, and a death."""

import pytest

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.operations.keys import add_key
from tests.support.cli import dflash
from tests.support.commands import run_command, wait_until
from tests.support.fleet_lab import pids_in
from tools.cluster.lab import REPLICA, Cluster, outcome


def test_the_endpoint_passes_all_checks_from_outside(two_nodes: Cluster) -> None:
    prefix = ("ip", "netns", "exec", two_nodes.outside)
    options = ("--url", two_nodes.url, "--key-file", str(two_nodes.key_file))
    tested = dflash("test", *options, "--json", at=two_nodes.root, prefix=prefix).succeeded()
    passed = {one["name"] for one in tested.document["data"]["checks"] if one["status"] == "passed"}
    assert passed >= {"live", "auth", "lossless", "text", "turns", "stream", "vision", "json", "burst", "drafts"}
    status = dflash("status", *options, "--json", at=two_nodes.root, prefix=prefix).succeeded()
    assert status.document["data"]["state"] == "ready"


@pytest.mark.parametrize("path", ["/v1/models", "/docs", "/openapi.json", "/-/routes", "/metrics"])
def test_what_ray_answers_to_anybody_needs_a_key(two_nodes: Cluster, path: str) -> None:
    assert two_nodes.status(path) == 401
    assert two_nodes.status(path, key=two_nodes.key_file.read_text()) == 200


def test_a_key_opens_the_cluster_as_soon_as_it_is_added_on_the_box(two_nodes: Cluster) -> None:
    key = "w" * 40
    assert two_nodes.status("/v1/models", key=key) == 401
    add_key(two_nodes.box, "app", scope="infer")
    (added,) = (one.key for one in Deployment(two_nodes.box).further_keys if one.name == "app")
    assert wait_until(lambda: two_nodes.status("/v1/models", key=added) == 200, 30)
    assert two_nodes.status("/-/routes", key=added) == 403


def test_a_limit_of_a_key_holds_before_the_cluster(two_nodes: Cluster) -> None:
    add_key(two_nodes.box, "one", in_flight=1)
    (key,) = (one.key for one in Deployment(two_nodes.box).further_keys if one.name == "one")
    assert wait_until(lambda: two_nodes.status("/v1/models", key=key) == 200, 30)
    (file := two_nodes.root / "one").write_text(key)
    seen = outcome(two_nodes.load(10, 3, file))
    assert seen["requests"] > seen["failures"] > 0
    assert all(one["problem"].startswith("429 ") for one in seen["failed"])


def test_its_speed_is_measured_from_outside(two_nodes: Cluster) -> None:
    options = ("--url", two_nodes.url, "--key-file", str(two_nodes.key_file), "-w", "chat", "--concurrency", "4")
    prefix = ("ip", "netns", "exec", two_nodes.outside)
    measured = dflash("bench", *options, "--json", at=two_nodes.root, prefix=prefix).succeeded()
    (row,) = measured.document["data"]["rows"]
    assert row["failed"] == 0
    assert row["acceptance_length"] > 1


def test_rays_own_commands_need_the_token(two_nodes: Cluster) -> None:
    command = two_nodes.command(two_nodes.head, "ray", "status", "--address", f"{two_nodes.head.address}:6379")
    variables = {**two_nodes.environment, "RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "x" * 32}
    assert run_command(*command, variables=variables, timeout=120).returncode != 0
    assert run_command(*command, variables=two_nodes.environment, timeout=120).returncode == 0


def test_clients_do_not_notice_that_a_replica_is_killed(two_nodes: Cluster) -> None:
    clients = two_nodes.load(seconds=30, clients=4)
    assert wait_until(lambda: bool(pids_in(two_nodes.other.namespace, REPLICA)), 30)
    two_nodes.other.kill(REPLICA)
    seen = outcome(clients)
    assert seen["requests"] > 8
    assert seen["failed"] == []
    two_nodes.wait_whole()
