"""The main job on the real engine: `init`, `up`, `test`, and what they say."""

from pathlib import Path

import httpx
import pytest

from dflash_deploy.bench.workload import Prompt
from dflash_deploy.checks.run import CHECKS
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.redact import Secret
from tests.support.cli import dflash, edit_env
from tests.support.ports import free_port
from tests.support.server import Server

NOT_FOR_THE_TINY_PAIR = {"digit", "shape", "tools", "reasoning"}


def test_all_checks_pass(drafting: Server) -> None:
    data = dflash("test", "--json", at=drafting.directory).succeeded().document["data"]
    assert {check["name"] for check in data["checks"]} == set(CHECKS)
    statuses = {check["name"]: check["status"] for check in data["checks"]}
    assert {name for name, status in statuses.items() if status == "skipped"} == NOT_FOR_THE_TINY_PAIR
    assert set(statuses.values()) == {"passed", "skipped"}
    assert data["acceptance_length"] > 3
    assert set(data["acceptance_by_workload"]) == {
        "long answer",
        "without thinking",
        "short answer",
        "counting",
        "image",
        "a long prompt",
        "half of the context",
    }


def test_somebody_elses_endpoint_is_tested_without_a_deployment(drafting: Server, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{drafting.key}\n")
    with drafting.connect() as endpoint:
        ran = dflash("test", "--url", f"{endpoint.url}/v1", "--key-file", str(key), at=tmp_path).succeeded()
    assert "good: acceptance length" in ran.out
    assert drafting.key not in ran.out + ran.err


def test_up_twice_changes_nothing(drafting: Server) -> None:
    data = dflash("up", "--json", at=drafting.directory).succeeded().document["data"]
    assert data["changed"] is False
    assert data["state"] == "ready"
    assert set(data) >= {"endpoint", "model", "runtime", "state"}


def test_status_is_a_real_generation(drafting: Server) -> None:
    data = dflash("status", "--json", at=drafting.directory).succeeded().document["data"]
    assert data["state"] == "ready"
    assert data["acceptance_length"] > 1
    assert data["engine"].startswith("process ")
    # torch alone holds more than this, the tiny pair and its cache less than that
    assert 0.5 < data["memory_gib"] < 8


def test_the_key_is_in_env_and_nowhere_else(drafting: Server) -> None:
    assert drafting.places_of_the_key() == [drafting.directory / ".env"]
    for verb in (["logs"], ["status"], ["plan", "--json"], ["test", "--json"], ["up"]):
        ran = dflash(*verb, at=drafting.directory)
        assert drafting.key not in ran.out + ran.err, verb


def test_the_engine_log_is_private(drafting: Server) -> None:
    assert (drafting.directory / ".dflash/engine.log").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/completions"])
def test_without_the_key_there_is_no_answer(drafting: Server, path: str) -> None:
    with drafting.connect() as endpoint:
        url = endpoint.url
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"bearer-{drafting.key}"}):
        assert httpx.post(f"{url}{path}", json={}, headers=headers).status_code == 401


def test_a_wrong_key_is_told_from_a_dead_engine(drafting: Server) -> None:
    with drafting.connect() as endpoint:
        endpoint_url, model = endpoint.url, endpoint.model
    with Endpoint(endpoint_url, Secret("wrong"), model) as stranger, pytest.raises(EndpointError) as refusal:
        stranger.models()
    assert refusal.value.status == 401


def test_the_answers_of_the_corpus_are_right(drafting: Server, prompts: list[Prompt]) -> None:
    asked = [prompt for prompt in prompts if prompt.kind == "chat"]
    with drafting.connect() as endpoint:
        right = [prompt for prompt in asked if prompt.answer in endpoint.complete(prompt.body(endpoint.model)).text]
    assert len(right) >= 0.95 * len(asked), {prompt.id for prompt in asked} - {prompt.id for prompt in right}


def test_the_colour_of_every_image_is_named(drafting: Server, prompts: list[Prompt]) -> None:
    wrong = []
    with drafting.connect() as endpoint:
        for prompt in prompts:
            if prompt.image is None:
                continue
            text = endpoint.complete(prompt.body(endpoint.model)).text
            if prompt.image.colour not in text.lower():
                wrong.append((prompt.id, text))
    assert not wrong


def test_acceptance_on_its_own_chat_prompts_is_at_least_5(drafting: Server, prompts: list[Prompt]) -> None:
    with drafting.connect() as endpoint:
        before = endpoint.counters()
        for prompt in prompts:
            if prompt.kind in {"chat", "long"}:
                endpoint.complete(prompt.body(endpoint.model))
        counted = endpoint.counters() - before
    print(f"acceptance length {counted.acceptance_length:.2f}, by position {counted.acceptance_by_position}")
    assert counted.acceptance_length is not None
    assert counted.acceptance_length >= 5.0
    assert len(counted.acceptance_by_position) == 7


def test_another_up_is_refused_the_port(drafting: Server, tmp_path: Path) -> None:
    port = Deployment(drafting.directory).values["DFLASH_PORT"]
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", port, at=tmp_path).succeeded()
    ran = dflash("up", at=tmp_path)
    assert ran.code is ExitCode.PREFLIGHT
    assert port in ran.err


def test_an_engine_that_dies_at_start_is_explained(tmp_path: Path) -> None:
    port = str(free_port())
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", port, at=tmp_path).succeeded()
    edit_env(tmp_path, EXTRA_ARGS="--seed=none")
    ran = dflash("up", at=tmp_path)
    assert ran.code is ExitCode.NOT_READY
    assert "argument --seed: invalid int value: 'none'" in ran.err
    assert "ended with code 2" in ran.err
    # nothing of it is left running
    assert dflash("status", "--json", at=tmp_path).document["data"]["state"] == "exited"
