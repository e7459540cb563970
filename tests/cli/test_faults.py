"""Faults that are seen before anything is started: each is named, nothing is touched, and the cure is one.

One deployment goes through all of them, its port held by the test: after a cure `up` comes to its last look, which is
at the port, and starts no engine. tests/engine and tests/docker have those that take one.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.errors import ExitCode
from dflash_deploy.serve.settings import Settings
from tests.support.cli import Ran, dflash, edit_env, initialise
from tests.support.faults import Fault, Patient, holds, shows, untouched
from tests.support.openai_server import KEY, MODEL, Engine, serving
from tests.support.ports import free_port
from tests.support.proxies import AnswersEverything, CutsStreams, Garbles, NotAStream, Proxy, before

Cure = Callable[[], object]
Break = Callable[[Path], Cure]  # brings a deployment directory into a state, and returns what brings it out of it


def refusal(name: str, cure: str, *says: str, code: ExitCode = ExitCode.PREFLIGHT) -> Fault:
    """What `up` refuses before it starts anything."""
    return Fault(name, "the command alone", "up", 10, says, code, cure, "to the port")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tiny pair in directories of its own, and something else at its port."""
    directory = tmp_path_factory.mktemp("faults")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        initialise("--profile", "cpu", "--runtime", "native", "--port", port, at=directory)
        for role in ("target", "drafter"):
            shutil.copytree(asset(f"models/tiny/{role}"), directory / role)
        target, drafter = str(directory / "target"), str(directory / "drafter")
        edit_env(directory, MODEL_HOST_PATH=target, DFLASH_DRAFTER=drafter, DRAFTER_HOST_PATH=drafter)
        yield directory


def changed(place: Path, content: bytes) -> Cure:
    """Write a file; the cure writes what was there."""
    old = place.read_bytes() if place.exists() else None
    place.write_bytes(content)
    return lambda: place.unlink() if old is None else place.write_bytes(old)


def moved(place: Path) -> Cure:
    """Take a file or a directory away."""
    aside = place.with_name(f".{place.name}-aside")
    place.rename(aside)
    return lambda: aside.rename(place)


def setting(**values: str) -> Break:
    """Lines of `.env`."""

    def edit(directory: Path) -> Cure:
        old = (directory / ".env").read_bytes()
        edit_env(directory, **values)
        return lambda: (directory / ".env").write_bytes(old)

    return edit


def a_typo(directory: Path) -> Cure:
    return changed(directory / ".env", (directory / ".env").read_bytes() + b"MAX_MODEL_LENGTH=4096\n")


def no_text(directory: Path) -> Cure:
    return changed(directory / ".env", b"MAX_NUM_SEQS=\xff\n")


def readable_by_others(directory: Path) -> Cure:
    (directory / ".env").chmod(0o644)
    return lambda: (directory / ".env").chmod(0o600)


def weights(directory: Path) -> Path:
    return directory / "target" / "model.safetensors"


def no_target(directory: Path) -> Cure:
    return moved(directory / "target")


def a_shard_missing(directory: Path) -> Cure:
    shards = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = json.dumps({"weight_map": shards}).encode()
    return changed(directory / "target" / "model.safetensors.index.json", index)


def a_link_to_nowhere(directory: Path) -> Cure:
    bring_back = moved(weights(directory))
    weights(directory).symlink_to("../../blobs/abc")
    # renaming onto the link replaces it
    return bring_back


def cut_short(directory: Path) -> Cure:
    whole = weights(directory).read_bytes()
    return changed(weights(directory), whole[: len(whole) // 2])


def a_pointer(directory: Path) -> Cure:
    return changed(weights(directory), b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def a_web_page(directory: Path) -> Cure:
    return changed(weights(directory), b"<!DOCTYPE html><html>please sign in</html>")


def half_a_config(directory: Path) -> Cure:
    config = directory / "target" / "config.json"
    return changed(config, config.read_bytes()[:100])


def no_tokenizer(directory: Path) -> Cure:
    return moved(directory / "target" / "tokenizer.json")


def another_targets_drafter(directory: Path) -> Cure:
    file = directory / "drafter" / "config.json"
    config = json.loads(file.read_text()) | {"hidden_size": 5120}
    return changed(file, json.dumps(config).encode())


def unreadable(directory: Path) -> Cure:
    (directory / "target").chmod(0)
    return lambda: (directory / "target").chmod(0o755)


def somebody_elses_state(directory: Path) -> Cure:
    state = directory / ".dflash"
    state.chmod(0)
    return lambda: state.chmod(0o700)


def held(directory: Path) -> Cure:
    holder = command_lock(Deployment(directory), "up")
    holder.__enter__()
    return lambda: holder.__exit__(None, None, None)


BREAKS: dict[Fault, Break] = {
    refusal(
        "an unknown setting in .env", "correct it", f"did you mean {Settings.max_model_len}?", code=ExitCode.USAGE
    ): a_typo,
    refusal("a value of the wrong kind in .env", "correct it", "MAX_NUM_SEQS=many", code=ExitCode.USAGE): setting(
        MAX_NUM_SEQS="many"
    ),
    refusal("an .env that is not a text file", "save it as UTF-8", "not UTF-8", code=ExitCode.USAGE): no_text,
    refusal(
        "an API key that is too short", "a longer one", "must have at least 16 characters", code=ExitCode.USAGE
    ): setting(VLLM_API_KEY="short"),
    refusal(
        "an .env that other users can read", "chmod 600", "other users can read it", "chmod 600"
    ): readable_by_others,
    refusal("no weights", "download them", "the target's directory", "does not exist", "MODEL_HOST_PATH"): no_target,
    refusal("a weight file is missing", "add it", "model-00002-of-00002.safetensors is missing"): a_shard_missing,
    refusal("a weight file is a link into a deleted cache", "a real file", "a broken symlink"): a_link_to_nowhere,
    refusal("a weight file is truncated", "the whole file", "is truncated: "): cut_short,
    refusal("a weight file is a Git LFS pointer", "the file itself", "is a Git LFS pointer"): a_pointer,
    refusal("a weight file is a web page", "the file itself", "is an HTML page, not the weights"): a_web_page,
    refusal("a config.json that is truncated", "the whole file", "config.json is damaged"): half_a_config,
    refusal("a target without tokenizer", "add it", "the target has no tokenizer"): no_tokenizer,
    refusal("weights that this user cannot read", "chmod", "cannot be read by this user", "chmod -R a+rX"): unreadable,
    refusal(
        "a drafter of another target", "its own drafter", "made for a hidden size of 5120, the target has"
    ): another_targets_drafter,
    refusal(
        "prefix caching on the CPU engine",
        "ENABLE_PREFIX_CACHING=off",
        "crashes the CPU engine",
        "set ENABLE_PREFIX_CACHING=off",
    ): setting(ENABLE_PREFIX_CACHING="on"),
    refusal(
        "an address that is not on this machine", "an address of this machine", "is not an address of this machine"
    ): setting(DFLASH_BIND="192.0.2.7"),
    refusal(
        "another command uses the deployment", "wait until it ends", "is in use by another command", "up, process"
    ): held,
    refusal(
        "a state directory that this user cannot write", "its mode", ".dflash cannot be written: Permission denied"
    ): somebody_elses_state,
}

# Root gives up what lets it read and write everywhere.
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@shows(*BREAKS)
@pytest.mark.parametrize("fault", BREAKS, ids=lambda fault: fault.name)
def test_it_is_named_and_the_same_command_goes_on_after_the_cure(deployment: Path, fault: Fault) -> None:
    by_rights = BREAKS[fault] in {unreadable, somebody_elses_state} and os.geteuid() == 0
    patient = Patient(deployment, prefix=WITHOUT_RIGHTS if by_rights else ())
    cure = BREAKS[fault](deployment)
    try:
        ran = patient.notices(fault)
    finally:
        cure()
    # one line with the cause, one with the next step
    error, hint = ran.err.strip().splitlines()[-2:]
    assert (error[:7], hint[:8]) == ("error: ", "  hint: ")
    patient.recovers(fault)


NO_VLLM = refusal(
    "no vLLM is installed", "install it", "vLLM is not installed in the environment", "dflash-deploy[cpu]"
)


@shows(NO_VLLM)
def test_without_an_engine_it_is_said_what_to_install(deployment: Path, tmp_path: Path) -> None:
    # this interpreter's packages, all but vLLM
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith("vllm"):
            (tmp_path / entry.name).symlink_to(entry)
    started = time.monotonic()
    with untouched(deployment):
        done = subprocess.run(
            [sys.executable, "-S", "-m", "dflash_deploy", "up"],
            cwd=deployment,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
            capture_output=True,
            text=True,
            check=False,
        )
    holds(NO_VLLM, Ran(("up",), ExitCode(done.returncode), done.stdout, done.stderr, time.monotonic() - started))
    Patient(deployment).recovers(NO_VLLM)


KILLED = Fault(
    "a command was killed while it used the deployment",
    "the command alone",
    "down",
    10,
    ("nothing was running",),
    ExitCode.DONE,
    "not needed: the system releases the lock",
)

HOLDER = """
import sys, time
from pathlib import Path
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock
with command_lock(Deployment(Path(sys.argv[1])), "up"):
    print("held", flush=True)
    time.sleep(60)
"""


@shows(KILLED)
def test_what_a_killed_command_held_is_free(deployment: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, deployment], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert dflash("down", at=deployment).code is ExitCode.PREFLIGHT
        holder.send_signal(signal.SIGKILL)
    Patient(deployment).notices(KILLED)
    Patient(deployment).recovers(KILLED)


def behind(name: str, check: str, *says: str) -> Fault:
    """What an endpoint answers that no engine is known to answer: `test` asks it."""
    return Fault(
        name, "a script", f"test --only {check}", 20, says, ExitCode.SMOKE_TEST, "start the right server there"
    )


PROXIES: dict[Fault, type[Proxy]] = {
    behind("a server that answers 200 to every request", "live", "accepts every path"): AnswersEverything,
    behind("a stream with text that is not an event", "stream", "unexpected answer"): Garbles,
    behind("a stream that ends too early", "stream", "cut off before its end"): CutsStreams,
    behind("a JSON document instead of a stream", "stream", "expected text/event-stream"): NotAStream,
}


@shows(*PROXIES)
@pytest.mark.parametrize("fault", PROXIES, ids=lambda fault: fault.name)
def test_what_answers_wrongly_is_named(fault: Fault, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    port, patient = free_port(), Patient(tmp_path)
    told = ("--url", f"http://127.0.0.1:{port}", "--key-file", str(tmp_path / "key"), "--model", MODEL)
    with serving(Engine()) as url:
        with before(url, PROXIES[fault], port=port):
            patient.notices(fault, *told)
        with before(url, Proxy, port=port):
            patient.recovers(fault, *told)
