"""Two real llama.cpp servers behind the real router: killed, hung, restarted, or with wrong settings."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.operations.status import status
from tests.support.askers import WHOLE, asking
from tests.support.cli import dflash, edit_env
from tests.support.commands import eventually
from tests.support.llamacpp_native import server_of
from tests.support.proxies import FailsAndSaysHealthy
from tests.support.two_engines import (
    CLIENTS,
    answered,
    askers_of,
    engine_tokens,
    engines,
    first_engine_behind,
    healthy,
    members,
    under_load,
)


def test_both_engines_answer_and_status_shows_each(two_engines: Path) -> None:
    found = dflash("status", "--json", at=two_engines).succeeded().document["data"]
    assert [(one["replica"], one["state"], one["routed"]) for one in found["replicas"]] == [
        (1, "ready", True),
        (2, "ready", True),
    ]
    assert found["state"] == "ready"
    assert found["router"]["state"] == found["door"]["state"] == "running"
    one = dflash("status", "--replica", "2", "--json", at=two_engines).succeeded().document["data"]
    assert one["endpoint"] == found["replicas"][1]["endpoint"]
    refused = dflash("status", "--replica", "3", at=two_engines)
    assert refused.code == ExitCode.USAGE
    lines = dflash("logs", at=two_engines).succeeded().out
    assert {"engine 1 ", "engine 2 ", "door ", "router "} <= {line.partition("|")[0] for line in lines.splitlines()}
    assert "engine 1 " not in dflash("logs", "--replica", "1", at=two_engines).succeeded().out


def test_a_rolling_restart_and_a_new_key_lose_no_request(two_engines: Path) -> None:
    before = [member.engine.identity for member in members(two_engines).values()]
    ran, askers = under_load(two_engines, lambda: dflash("restart", at=two_engines), least=100)
    ran.succeeded()
    assert not askers.errors()
    assert not set(before) & {member.engine.identity for member in members(two_engines).values()}

    old = Deployment.existing(two_engines).key
    ran, askers = under_load(two_engines, lambda: dflash("keys", "rotate", "--json", at=two_engines), least=100)
    assert ran.succeeded().document["data"]["proof"] == {
        "old_key": {"before": 200, "after": 401},
        "new_key": {"after": 200},
    }
    assert not askers.errors()
    assert {answered(two_engines, old.reveal()) for _ in range(CLIENTS)} == {401}


def test_clients_with_one_system_prompt_use_both_engines(two_engines: Path) -> None:
    def generated() -> list[int]:
        return [engine_tokens(url, two_engines)["generation"] for url in engines(two_engines)]

    # each engine has a sequence for each of these clients: the one that has their prefix could take them all
    askers, before = replace(askers_of(two_engines), system="Count as you were told. " * 20), generated()
    with asking(askers, clients=4):
        eventually(lambda: all(now > then for now, then in zip(generated(), before, strict=True)))
    assert not askers.errors()


def test_a_killed_engine_loses_only_its_own_streams_and_comes_back(two_engines: Path) -> None:
    askers = askers_of(two_engines)
    with asking(askers, CLIENTS):
        eventually(lambda: len(askers.asked) > CLIENTS)
        os.kill(server_of(two_engines, 1), signal.SIGKILL)
        eventually(lambda: not healthy(two_engines, 1))
        after = len(askers.asked)
        eventually(lambda: len(askers.asked) > after + 5 * CLIENTS)
        dflash("up", at=two_engines).succeeded()
        eventually(lambda: healthy(two_engines, 1))
    assert len(askers.errors()) <= CLIENTS
    assert set(askers.outcomes()) <= {WHOLE, "stream ends with an error", "stream cut off"}
    assert {member.answered.state for member in members(two_engines).values()} == {"ready"}


def test_an_engine_that_hangs_is_left_out_and_taken_in_again(two_engines: Path) -> None:
    askers, server = askers_of(two_engines), server_of(two_engines, 2)
    with asking(askers, CLIENTS):
        eventually(lambda: len(askers.asked) > CLIENTS)
        os.kill(server, signal.SIGSTOP)
        try:
            eventually(lambda: not healthy(two_engines, 2))
            out = time.monotonic()
            done = len(askers.asked)
            eventually(lambda: len(askers.asked) > done + 5 * CLIENTS)
        finally:
            os.kill(server, signal.SIGCONT)
        eventually(lambda: healthy(two_engines, 2))
    # nobody who asked after it was out has waited for it
    assert all(asked.outcome == WHOLE for asked in askers.asked if asked.at > out)


def test_an_engine_that_fails_each_request_and_says_it_is_healthy_harms_no_client(two_engines: Path) -> None:
    askers, failing = askers_of(two_engines), FailsAndSaysHealthy.failing
    FailsAndSaysHealthy.asked.clear()
    with first_engine_behind(two_engines, FailsAndSaysHealthy), asking(askers, CLIENTS):
        eventually(lambda: any(not fails for _, fails in FailsAndSaysHealthy.asked))
        failing.set()
        try:
            eventually(lambda: any(fails for _, fails in FailsAndSaysHealthy.asked))
            done = len(askers.asked)
            eventually(lambda: len(askers.asked) > done + 5 * CLIENTS)
        finally:
            failing.clear()
        again = time.monotonic()
        # it gets requests again without a command
        eventually(lambda: any(at > again and not fails for at, fails in FailsAndSaysHealthy.asked))
    assert not askers.errors()


def test_settings_that_fail_stop_at_the_first_engine_and_go_back(two_engines: Path) -> None:
    before = {number: member.engine.identity for number, member in members(two_engines).items()}
    edit_env(two_engines, EXTRA_ARGS="--seed none")
    try:
        ran, askers = under_load(two_engines, lambda: dflash("up", at=two_engines), least=50)
    finally:
        edit_env(two_engines, EXTRA_ARGS="")
    assert ran.code == ExitCode.NOT_READY
    assert "engine 1" in ran.err
    assert "last working settings" in ran.err
    assert not askers.errors()
    after = members(two_engines)
    assert {member.answered.state for member in after.values()} == {"ready"}
    # the second one has not been touched
    assert after[2].engine.identity == before[2]
    dflash("up", at=two_engines).succeeded()


def test_one_engine_is_stopped_restarted_and_checked_alone(two_engines: Path) -> None:
    ran, askers = under_load(two_engines, lambda: dflash("down", "--replica", "2", at=two_engines), least=40)
    ran.succeeded()
    assert not askers.errors()
    assert members(two_engines)[2].answered.state == "absent"
    ran, askers = under_load(two_engines, lambda: dflash("up", at=two_engines), least=40)
    ran.succeeded()
    assert not askers.errors()
    other = members(two_engines)[1].engine.identity
    dflash("restart", "--replica", "2", at=two_engines).succeeded()
    assert members(two_engines)[1].engine.identity == other
    tested = dflash("test", "--only", "auth,drafts", "--json", at=two_engines).succeeded().document["data"]
    assert set(tested["acceptance_by_engine"]) == {"engine 1", "engine 2"}
    at_end = {check["name"]: check["status"] for check in tested["checks"] if check["name"] in {"alike", "door: auth"}}
    assert at_end == {"alike": "passed", "door: auth": "passed"}


def test_a_comparison_without_drafts_needs_one_engine(two_engines: Path) -> None:
    refused = dflash("test", "--baseline", at=two_engines)
    assert refused.code == ExitCode.USAGE
    assert "--replica 1" in refused.err


def test_fewer_and_more_engines_while_the_others_answer(two_engines: Path) -> None:
    edit_env(two_engines, REPLICAS="1")
    dflash("up", at=two_engines).succeeded()
    assert not status(two_engines).members
    edit_env(two_engines, REPLICAS="2")
    dflash("up", at=two_engines).succeeded()
    assert {member.answered.state for member in members(two_engines).values()} == {"ready"}
