"""Faults of a native llama.cpp: each is named, nothing keeps running, and the same command works after the fix."""

import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from dflash_deploy.assets import asset
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.errors import ExitCode
from dflash_deploy.serve.engines.installed import WHEEL_SERVER, llama_server_of_wheel
from dflash_deploy.serve.engines.llamacpp import ARCHITECTURES, OF_BUILD
from tests.support import gguf
from tests.support.cli import dflash, edit_env
from tests.support.commands import HANGS, wait_until
from tests.support.faults import Fault, Patient, recovered, shows
from tests.support.llamacpp_native import init, processes, server_of

CUT = 100_000  # bytes that a truncated file lacks


def refused(name: str, cure: str, code: ExitCode, *says: str) -> Fault:
    """A fault that keeps `up` from starting llama.cpp, or ends it while it loads."""
    return Fault(f"llama.cpp: {name}", "the real engine", "up --json", 30, says, code, cure)


def seen_by_status(name: str, cure: str, *says: str) -> Fault:
    """A fault of a running llama.cpp."""
    return Fault(f"llama.cpp: {name}", "the real engine", "status", 30, says, ExitCode.DONE, cure)


PORT = refused("another process listens on the port", "stop it", ExitCode.PREFLIGHT, "is already in use", "ss -ltnp")
TINY_FILE = refused(
    "a GGUF of three bytes",
    "the whole file",
    ExitCode.PREFLIGHT,
    "target.gguf is not a GGUF file",
    "which comes with dflash-deploy",
)
DAMAGED = refused("a truncated GGUF", "the whole file", ExitCode.PREFLIGHT, "target.gguf is truncated")
ARCHITECTURE = refused(
    "a GGUF of an unknown architecture",
    "the right file, or a newer release",
    ExitCode.PREFLIGHT,
    "the target's architecture is qwen99",
)
PROJECTOR = refused("a truncated projector", "the whole file", ExitCode.PREFLIGHT, "mmproj.gguf is truncated")
NO_PROJECTOR = refused("a missing projector", "the file", ExitCode.PREFLIGHT, "mmproj.gguf is missing")
DIALECT = refused(
    "a drafter for the buun fork",
    "its own drafter",
    ExitCode.USAGE,
    "does not know drafters with the architecture dflash-draft",
)
TARGET_AS_DRAFTER = refused(
    "a target as the drafter", "a drafter", ExitCode.PREFLIGHT, "the drafter's architecture is qwen35"
)
OTHER_TARGET = refused(
    "a drafter of another target",
    "its own drafter",
    ExitCode.PREFLIGHT,
    "made for a hidden size of 2048, the target has 128",
)
DRAFTER_DAMAGED = refused("a truncated drafter", "the whole file", ExitCode.PREFLIGHT, "drafter.gguf is truncated")
KILLED = seen_by_status("the server is killed", "`up`", "exited", "killed (signal 9)", "dmesg", "with exit code 137")
HUNG = seen_by_status(
    "the server hangs",
    "remove the cause, or `restart`",
    "unresponsive",
    "GET /health got no answer",
    "dflash-deploy restart",
)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Path]:
    """A deployment with weights of its own, to damage them."""
    init(tmp_path)
    place = tmp_path / "weights"
    shutil.copytree(asset("models/tiny/gguf"), place)
    edit_env(tmp_path, MODEL_HOST_PATH=str(place), DFLASH_DRAFTER=str(place), DRAFTER_HOST_PATH=str(place))
    yield tmp_path
    dflash("down", at=tmp_path)
    assert not processes(tmp_path)


@contextmanager
def changed(file: Path, content: bytes) -> Iterator[None]:
    """Another content for as long as the block runs."""
    old = file.read_bytes()
    file.write_bytes(content)
    yield
    file.write_bytes(old)


def one_line(patient: Patient, fault: Fault) -> None:
    """The command names the fault in one line, and leaves nothing running."""
    ran = patient.notices(fault)
    (said,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert ran.document["error"]["message"] == said.removeprefix("error: ")
    assert not processes(patient.directory)


def with_number(header: bytes, name: bytes, value: int) -> bytes:
    """A GGUF with another 32-bit number under that name."""
    place = header.index(name) + len(name) + 4
    return header[:place] + struct.pack("<I", value) + header[place + 4 :]


REFUSED = (
    *(PORT, TINY_FILE, DAMAGED, ARCHITECTURE, PROJECTOR, NO_PROJECTOR),
    *(DIALECT, TARGET_AS_DRAFTER, OTHER_TARGET, DRAFTER_DAMAGED),
)


@shows(*REFUSED)
def test_what_keeps_llama_cpp_from_starting_is_named_in_one_line(deployment: Path) -> None:
    """One start at the end shows every fix."""
    patient, place = Patient(deployment), deployment / "weights"
    with socket.create_server(("127.0.0.1", int(Deployment(deployment).values["DFLASH_PORT"]))):
        one_line(patient, PORT)
    target, drafter = (place / "target.gguf").read_bytes(), (place / "drafter.gguf").read_bytes()
    for_the_fork = drafter.replace(b"\x06\0\0\0\0\0\0\0dflash", b"\x0c\0\0\0\0\0\0\0dflash-draft", 1)
    for fault, name, content in (
        (TINY_FILE, "target.gguf", b"GGU"),
        (DAMAGED, "target.gguf", target[:-CUT]),
        (ARCHITECTURE, "target.gguf", target.replace(b"qwen35", b"qwen99", 1)),
        (DIALECT, "drafter.gguf", for_the_fork),
        (TARGET_AS_DRAFTER, "drafter.gguf", target),
        (OTHER_TARGET, "drafter.gguf", with_number(drafter, b"dflash.embedding_length", 2048)),
        (DRAFTER_DAMAGED, "drafter.gguf", drafter[: -CUT // 2]),
    ):
        with changed(place / name, content):
            one_line(patient, fault)
    projector = (place / "mmproj.gguf").read_bytes()
    with changed(place / "mmproj.gguf", projector[:-CUT]):
        one_line(patient, PROJECTOR)
    with changed(place / "mmproj.gguf", projector):
        (place / "mmproj.gguf").unlink()
        one_line(patient, NO_PROJECTOR)
    ran = patient.run(PORT)
    for fault in REFUSED:
        recovered(fault, ran)


def test_a_drafter_without_training_is_named_and_changes_no_answer(deployment: Path) -> None:
    gguf.shuffle(deployment / "weights" / "drafter.gguf")
    dflash("up", at=deployment).succeeded()
    ran = dflash("test", "--only", "text,whole,lossless,drafts", "--json", at=deployment)
    assert ran.code is ExitCode.SMOKE_TEST
    checks = {check["name"]: check for check in ran.document["data"]["checks"]}
    # the target has the last word: what is broken costs speed and no answer
    assert {checks[name]["status"] for name in ("text", "whole", "lossless")} == {"passed"}
    print(checks["drafts"]["got"])
    assert checks["drafts"]["got"].startswith("broken")
    assert "mask_token_id" in checks["drafts"]["hint"]


# A server that fails when its log has a thousand lines that the log's thread still has to write.
FULL_LOG = f"""
import ctypes, sys
from pathlib import Path
import xllamacpp
from {WHEEL_SERVER.rpartition(".")[0]} import llamacpp_wheel

(library,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
library = ctypes.CDLL(str(library))
log_of, add = library["_Z15common_log_mainv"], library["_Z14common_log_addP10common_log14ggml_log_levelPKcz"]
log_of.restype, add.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)

def fails(parameters):
    for number in range(1000):
        add(log_of(), 4, b"line %d of the log\\n" % number)
    raise RuntimeError("the model cannot be loaded")

xllamacpp.Server = fails
sys.exit(llamacpp_wheel.main(["--port", "1"]))
"""


def test_a_server_that_fails_ends_after_its_log_is_written() -> None:
    """llama.cpp's log is written by a thread, and the cause of a failure is among its last lines."""
    done = subprocess.run([sys.executable, "-c", FULL_LOG], stderr=subprocess.PIPE, text=True, check=False)
    *log, last = done.stderr.splitlines()
    assert log == [f"line {number} of the log" for number in range(1000)]
    assert (done.returncode, last) == (1, "llama-server: the model cannot be loaded")


def test_the_architectures_are_those_of_the_installed_release() -> None:
    wheel = llama_server_of_wheel()
    assert wheel is not None
    assert wheel.version == OF_BUILD
    (library,) = Path(str(import_module("xllamacpp").__file__)).parent.glob("xllamacpp*.so")
    name_of = ctypes.CDLL(str(library))["_Z13llm_arch_name8llm_arch"]
    name_of.restype = ctypes.c_char_p
    names = [name_of(number).decode() for number in range(len(ARCHITECTURES) + 3)]
    # llama.cpp does not load a projector as a model; after the last architecture come the names of none
    assert {*names} == {*ARCHITECTURES, "clip", "(unknown)", "unknown"}


@shows(KILLED, HUNG)
def test_a_server_that_hangs_or_is_killed_is_seen_by_status(deployment: Path) -> None:
    patient = Patient(deployment)
    dflash("up", at=deployment).succeeded()
    os.kill(server_of(deployment), signal.SIGSTOP)
    patient.notices(HUNG)
    os.kill(server_of(deployment), signal.SIGCONT)
    patient.recovers(HUNG)
    os.kill(server_of(deployment), signal.SIGKILL)
    # the gateway and the supervisor end with it
    assert wait_until(lambda: not processes(deployment), HANGS)
    patient.notices(KILLED)
    dflash("up", at=deployment).succeeded()
    patient.recovers(KILLED)
