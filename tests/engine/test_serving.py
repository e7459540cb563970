"""The main job on the real engine: `init`, `up`, `test`, and what they say."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest

from dflash_deploy.bench import Prompt
from dflash_deploy.client import Endpoint, EndpointError
from dflash_deploy.errors import ExitCode
from dflash_deploy.project import Deployment
from dflash_deploy.redact import Secret
from dflash_deploy.smoke.run import CHECKS, ON_REQUEST
from tests.support.cli import dflash, edit_env
from tests.support.commands import wait_until
from tests.support.faults import Fault, Patient, shows
from tests.support.ports import free_port
from tests.support.procfs import family_of
from tests.support.server import Server
from tests.support.streams import WHOLE, Crowd

NOT_FOR_THE_TINY_PAIR = {"digit", "shape", "tools", "reasoning", "json"}


def test_all_checks_pass(drafting: Server, tmp_path: Path) -> None:
    junit = tmp_path / "report.xml"
    data = dflash("test", "--json", "--junit", str(junit), at=drafting.directory).succeeded().document["data"]
    assert {check["name"] for check in data["checks"]} == CHECKS.keys() - ON_REQUEST
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
    }
    cases = ElementTree.parse(junit).getroot().findall("testcase")
    assert [case.get("name") for case in cases] == [check["name"] for check in data["checks"]]


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


def test_the_key_is_in_env_and_nowhere_else(drafting: Server) -> None:
    files = [path for path in drafting.directory.rglob("*") if path.is_file()]
    holders = [path for path in files if drafting.key in path.read_text(errors="replace")]
    assert holders == [drafting.directory / ".env"]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        if process.exists():
            assert drafting.key not in process.read_text(errors="replace")
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
    edit_env(tmp_path, EXTRA_ARGS="--no-such-flag")
    ran = dflash("up", at=tmp_path)
    assert ran.code is ExitCode.NOT_READY
    assert "unrecognized arguments: --no-such-flag" in ran.err
    assert "ended with code 2" in ran.err
    # nothing of it is left running
    assert dflash("status", "--json", at=tmp_path).document["data"]["state"] == "exited"


def test_an_interrupted_up_goes_on_when_repeated(drafting: Server) -> None:
    server = drafting
    # together with its supervisor, as when the machine goes down: nobody writes down how it ended
    os.killpg(json.loads((server.directory / ".dflash/run.json").read_text())["pid"], signal.SIGKILL)
    assert dflash("status", "--json", at=server.directory).document["data"]["state"] == "exited"
    dflash("down", at=server.directory).succeeded()
    up = [sys.executable, "-m", "dflash_deploy", "up"]
    first = subprocess.Popen(up, cwd=server.directory, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (server.directory / ".dflash/run.json").exists():
        assert first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=30)
    assert first.returncode == ExitCode.INTERRUPTED
    assert "the same command goes on" in said
    data = dflash("up", "--json", at=server.directory).succeeded().document["data"]
    assert data["state"] == "ready"


CORE_KILLED = Fault(
    "the engine's core is killed while it answers 32 clients",
    "the real engine",
    "status",
    20,
    ("exited", "the engine's core ended without a word while it served", "dmesg"),
    ExitCode.DONE,
    "`up`",
)
NOTHING_LISTENS = Fault(
    "nothing listens at the endpoint any more",
    "the real engine",
    "test --only live,text",
    20,
    ("2 of 2 checks failed", "dflash-deploy status"),
    ExitCode.SMOKE_TEST,
    "`up`",
)


@shows(CORE_KILLED, NOTHING_LISTENS)
def test_an_engine_killed_while_serving_is_seen(drafting: Server) -> None:
    patient, run = Patient(drafting.directory), Deployment(drafting.directory).state / "run.json"
    supervisor = json.loads(run.read_text())["pid"]
    (core,) = [one for one in family_of(lambda one: one.pid == supervisor) if one.name.startswith("VLLM::EngineCore")]
    with drafting.connect() as endpoint, Crowd(endpoint, drafting.key, 32) as clients:
        core.signal(signal.SIGKILL)
        ended = clients.ended(within=60)
    print(f"{clients.whole} whole answers, then: {dict(ended)}")
    assert WHOLE not in ended
    assert wait_until(lambda: not Path(f"/proc/{supervisor}").exists(), 60)
    patient.notices(CORE_KILLED)
    patient.notices(NOTHING_LISTENS)
    dflash("up", at=drafting.directory).succeeded()
    patient.recovers(CORE_KILLED)
    patient.recovers(NOTHING_LISTENS)
