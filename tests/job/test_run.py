"""A deployment in the foreground, and one whose engine sleeps, with the real llama.cpp."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.runtime.process import members_of_group
from tests.support.cli import HANGS, dflash, edit_env
from tests.support.commands import wait_until
from tests.support.documents import ROOT
from tests.support.llamacpp_native import connect, init, processes, server_of, started


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    init(tmp_path)
    return tmp_path


def until(found: Callable[[str], bool], lines: Iterable[str]) -> Iterator[str]:
    """The lines up to the one that is searched for, or all."""
    for line in lines:
        yield line
        if found(line):
            return


PAGE = (ROOT / "docs" / "how-to" / "run-unattended.md").read_text(encoding="utf-8")


def entry_of(name: str, directory: Path) -> str:
    """The configuration of llama-swap on the page, with the name and directory of a deployment."""
    text: str = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    port = Deployment(directory).values["DFLASH_PORT"]
    return text.replace("coder:", f"{name}:").replace("/srv/coder", str(directory)).replace("8001", port)


def command_of(model: dict[str, str]) -> list[str]:
    """The command of a model in the configuration, with this Python."""
    words = shlex.split(model["cmd"])
    return [sys.executable, "-m", "dflash_deploy", *words[words.index("run") :]]


@contextmanager
def running(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command that llama-swap is given, once its endpoint answers, with the URL that llama-swap is given."""
    model = yaml.safe_load(entry_of("tiny", directory))["models"]["tiny"]
    with subprocess.Popen(command_of(model), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = list(until(lambda line: "its log follows" in line, process.stdout))
        assert process.poll() is None, said
        assert httpx.get(model["proxy"] + model["checkEndpoint"]).status_code == 200
        yield process, model["proxy"]


@pytest.mark.slow
def test_sigterm_stops_it_after_the_request_in_progress(directory: Path) -> None:
    key = Deployment(directory).key.reveal()
    asked = {"model": "tiny", "prompt": "One", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with running(directory) as (process, url), httpx.Client(headers={"x-api-key": key}, timeout=HANGS) as client:
        with client.stream("POST", f"{url}/v1/completions", json=asked) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        said = process.communicate(timeout=HANGS)[0]
    assert process.returncode == ExitCode.DONE, said
    assert "waiting for requests in progress" in said
    assert processes(directory) == {}


@pytest.mark.slow
def test_an_engine_that_ends_by_itself_ends_it_with_a_code(directory: Path) -> None:
    with running(directory) as (process, _):
        with connect(directory) as endpoint:
            endpoint.chat("What is the capital of France?", max_tokens=8)
        os.kill(server_of(directory), signal.SIGKILL)
        said = process.communicate(timeout=HANGS)[0]
    assert process.returncode == ExitCode.NOT_READY
    # of the engine's log, up to its end
    assert "launch_slot_" in said
    assert "error: the engine ended with exit code" in said
    assert processes(directory) == {}
    dflash("down", at=directory).succeeded()


def test_a_start_that_is_refused_runs_nothing(directory: Path) -> None:
    edit_env(directory, EXTRA_ARGS="--no-such-option")
    assert dflash("run", at=directory).code is ExitCode.PREFLIGHT
    assert processes(directory) == {}


PREVENTED = re.findall(r"^RestartPreventExitStatus=(.*)$", PAGE, re.MULTILINE)[0].split()


def retried(code: ExitCode) -> bool:
    """Whether systemd starts the unit of the page again after this code."""
    assert "\nRestart=on-failure\n" in PAGE
    return code is not ExitCode.DONE and str(int(code)) not in PREVENTED


def test_a_port_that_is_still_held_is_retried(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", int(Deployment(directory).values["DFLASH_PORT"]))):
        assert retried(dflash("run", at=directory).code)


def test_a_disk_that_is_mounted_later_is_retried(directory: Path) -> None:
    edit_env(directory, MODEL_HOST_PATH=str(directory / "not-mounted"))
    assert retried(dflash("run", at=directory).code)
    empty = directory / "mount-point"
    empty.mkdir()
    for place in (empty, directory / "absent"):
        ran = dflash("run", "--dir", str(place), at=directory)
        assert retried(ran.code)
        assert f"`RequiresMountsFor={place}`" in ran.err


def test_a_docker_that_starts_later_is_retried(directory: Path) -> None:
    edit_env(directory, DFLASH_RUNTIME="compose")
    assert retried(dflash("run", at=directory, environment={"DOCKER_HOST": f"unix://{directory}/none.sock"}).code)


def test_a_mistake_is_not_retried(directory: Path) -> None:
    (directory / "folder").mkdir()
    assert not retried(dflash("run", "--dir", str(directory.parent), at=directory).code)
    edit_env(directory, MAX_MODEL_LEN="many")
    assert not retried(dflash("run", at=directory).code)


def test_the_unit_of_the_page_is_valid(tmp_path: Path) -> None:
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    assert "ExecStart=/home/alice/.local/bin/dflash-deploy run --dir /srv/vision\n" in unit
    if shutil.which("systemd-analyze"):
        own = str(Path(sys.executable).with_name("dflash-deploy"))
        unit = unit.replace("/home/alice/.local/bin/dflash-deploy", own).replace("alice", "root")
        (tmp_path / "dflash.service").write_text(unit)
        subprocess.run(["systemd-analyze", "verify", str(tmp_path / "dflash.service")], check=True)


class LlamaSwap:
    """A double of llama-swap, a program in Go: it does with its configuration what that does.

    One model at a time: it stops the other one with SIGTERM after its requests, runs `cmd` until `checkEndpoint`
    answers, and sends the request to `proxy`.
    """

    def __init__(self, entries: Iterable[str], client: httpx.Client) -> None:
        read = [yaml.safe_load(text) for text in entries]
        whole = read[0] | {"models": {name: model for one in read for name, model in one["models"].items()}}
        self._models, self._patience, self._client = whole["models"], whole["healthCheckTimeout"], client
        self._changed = threading.Condition()
        self._loaded, self._busy = "", 0
        self._process: subprocess.Popen[bytes] | None = None
        self.switches, self.longest_wait = 0, 0.0

    def ask(self, model: str, body: dict[str, object]) -> httpx.Response:
        """The answer of a model, which is loaded first."""
        began = time.monotonic()
        with self._changed:
            while self._loaded != model:
                if self._busy:
                    self._changed.wait()
                else:
                    self.stop()
                    self._start(model)
            self._busy += 1
            self.longest_wait = max(self.longest_wait, time.monotonic() - began)
        try:
            return self._client.post(self._models[model]["proxy"] + "/v1/completions", json={"model": model, **body})
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _start(self, name: str) -> None:
        model = self._models[name]
        self._process = subprocess.Popen(command_of(model), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(lambda: self._answers(model["proxy"] + model["checkEndpoint"]), self._patience)
        self._loaded, self.switches = name, self.switches + 1

    def _answers(self, url: str) -> bool:
        try:
            return self._client.get(url).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """End the model that is loaded, if one is."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(self._models[self._loaded]["unloadTimeout"]) == 0
        self._process, self._loaded = None, ""


def engines(directory: Path) -> int:
    return sum("llamacpp_wheel" in line and "serve.door" not in line for line in processes(directory).values())


TURNS = 2  # how often the clients change to the other model


@pytest.mark.slow
def test_two_deployments_take_turns_and_never_run_at_once(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    init(other)
    key, names = Deployment(directory).key.reveal(), ("tiny", "small")
    edit_env(other, SERVED_MODEL_NAME="small", VLLM_API_KEY=key)
    most = 0
    with httpx.Client(headers={"x-api-key": key}, timeout=HANGS) as http, ThreadPoolExecutor(8) as pool:
        swap = LlamaSwap([entry_of("tiny", directory), entry_of("small", other)], http)

        def client(number: int) -> list[int]:
            """Status codes of 25 requests to both models in turns; half of the clients begin with the other one."""
            order = [names[(number + sent * TURNS // 25) % 2] for sent in range(25)]
            body = {"prompt": "One"}
            return [swap.ask(name, {**body, "max_tokens": 1 + sent % 4}).status_code for sent, name in enumerate(order)]

        clients = [pool.submit(client, number) for number in range(8)]
        while not all(one.done() for one in clients):
            most = max(most, engines(directory) + engines(other))
            time.sleep(0.2)
    swap.stop()
    print(f"{swap.switches} switches, longest wait {swap.longest_wait:.1f} s")
    assert [status for one in clients for status in one.result()] == [200] * 200
    assert most == 1
    assert TURNS < swap.switches < 2 * TURNS
    assert engines(directory) + engines(other) == 0


def says_asleep(url: str) -> bool:
    """What probes see: `status` would ask the engine that is awake, and keep it so."""
    return bool(httpx.get(f"{url}/health").json() == {"status": "asleep"})


@pytest.mark.slow
def test_an_idle_engine_frees_its_memory_and_the_next_requests_wake_it(tmp_path: Path) -> None:
    def answers(endpoint: Endpoint) -> str:
        return endpoint.chat("What is the capital of France?", max_tokens=32).text

    with started(tmp_path):
        edit_env(tmp_path, IDLE_MINUTES="0.05")
        dflash("up", at=tmp_path).succeeded()
        supervisor = os.getsid(server_of(tmp_path))
        assert len(members_of_group(supervisor)) == 3
        url = f"http://127.0.0.1:{Deployment(tmp_path).values['DFLASH_PORT']}"
        assert wait_until(lambda: says_asleep(url), HANGS)
        # its supervisor and the door
        assert wait_until(lambda: len(members_of_group(supervisor)) == 2, HANGS)
        assert "the next request starts it" in dflash("status", at=tmp_path).succeeded().out
        with connect(tmp_path) as endpoint, ThreadPoolExecutor(20) as pool:
            said = list(pool.map(lambda _: answers(endpoint), range(20)))
        assert set(said) == {"The capital of France is Paris."}
        assert not says_asleep(url)
