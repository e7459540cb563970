"""The files of a deployment: `.env`, the state files in `.dflash/`, and `dflash.lock`."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from hypothesis import strategies as st
from pydantic import BaseModel

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.directory import Deployment, changes, restored_since
from dflash_deploy.deployment.dotenv import secrets_in
from dflash_deploy.errors import DeployError, SettingsRefused
from dflash_deploy.intake.documents import BenchFigures, EngineEnd, LastStart, read_state
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.result import Choice
from dflash_deploy.planning import UNREAD, plan_to_stop
from dflash_deploy.redact import Redactor
from dflash_deploy.rules.table import plan_deployment
from dflash_deploy.runtime.native_process import recorded
from dflash_deploy.startup.progress import usual_seconds
from dflash_deploy.weights.lock import Lock, parse_lock, read_lock, write_lock
from tests.fuzz.hostile import BYTES, SECRET, TEXTS, damaged, json_documents
from tests.fuzz.judge import LONGEST, Lost, Shown
from tests.fuzz.kind import Kind
from tests.fuzz.places import is_kept, place, put

T = TypeVar("T", bound=BaseModel)

ENV = f"""\
# written by init
DFLASH_PROFILE=cpu
DFLASH_RUNTIME=native
DFLASH_PAIR=tiny
DFLASH_BIND=127.0.0.1
DFLASH_PORT=8000
MAX_MODEL_LEN=2048
VLLM_API_KEY={SECRET}
DFLASH_API_KEYS=
EXTRA_ARGS='--seed 1'
"""

SAMPLES = (
    ENV.encode(),
    ENV.replace("\n", "\r\n").encode(),
    ENV.replace(SECRET, f'"{SECRET}"').encode(),
    ENV.replace("VLLM", "export VLLM").encode(),
    ENV.replace("VLLM_API_KEY=", "VLLM_API_KEY: ").encode(),
    ENV.replace("VLLM_API_KEY", "vllm_api_key").encode(),
)


@st.composite
def lines_of_env(draw: st.DrawFn) -> bytes:
    """A `.env` with other lines: known, mistyped and foreign names, with values of every kind."""
    name = st.one_of(
        st.sampled_from(sorted(all_setting_names())),
        st.sampled_from(sorted(all_setting_names())).map(lambda name: name[:-1]),
        st.sampled_from(("HF_TOKEN", "VLLM_X", "NCCL_DEBUG", "PATH", "a b", "1", "é", "", "#x", "A-B", "x" * 3000)),
    )
    value = st.sampled_from(TEXTS) | st.text(max_size=12) | st.integers().map(str) | st.floats().map(str)
    line = st.tuples(
        st.sampled_from(("", "", "", "export ", "  ", "#", "\t")),
        name,
        st.sampled_from(("=", "=", "=", " = ", ": ", "", "==", "='", '="')),
        value,
        st.sampled_from(("\n", "\n", "\n", "\r\n", "\r", "'\n", '"\n', " # x\n", "\x0b", "\x85", "\u2028")),
    ).map("".join)
    key = draw(st.sampled_from(("=", " = ", "='", ": ", "  ="))) + SECRET
    parts = draw(st.lists(line, max_size=6))
    parts.insert(draw(st.integers(0, len(parts))), f"VLLM_API_KEY{key}\n")
    return "".join(parts).encode("utf-8", "surrogatepass")


def deployment(name: str = "box") -> Deployment:
    """A sound deployment in a directory of this process."""
    put(f"{name}/.env", ENV.encode())
    return Deployment(place() / name)


def read_env(content: bytes) -> object:
    """Check that no reader of `.env` shows the key or loses a line, and plan what it says."""
    file = put("env/.env", content)
    box = Deployment(file.parent)
    redact = Redactor(box.known_secrets)
    try:
        found = Deployment.existing(file.parent)
        made = plan_deployment(UNREAD, Choice(edited=found.values), load_catalog())
        said = [repr(found.values), repr(made.settings), *(finding.message for finding in made.findings)]
        said += [plan_to_stop(Deployment.existing(file.parent, check=False)).runtime]
        if SECRET in dotenv.shareable(content.decode("utf-8")):
            raise Shown("the settings for a bundle")
        _rotate(box, content)
    except DeployError as refusal:
        for text in (refusal.message, refusal.hint):
            if SECRET in redact(text):
                raise Shown(text[:300]) from None
        refusal.args = (redact(str(refusal)),)
        refusal.hint = redact(refusal.hint)
        raise
    finally:
        if not file.is_file():
            raise Lost(".env is gone")
    return said


def parse_env(content: bytes) -> object:
    """Only parse a `.env`, and find its secrets."""
    text = content.decode("utf-8", "replace")
    found = tuple(secrets_in(text))
    try:
        dotenv.check_keys(dotenv.parse(text))
        return dotenv.shareable(text), dotenv.replace_value(text, "VLLM_API_KEY", "x"), found
    except SettingsRefused as refusal:
        # a command shows it through its redactor
        return refusal


def _rotate(box: Deployment, content: bytes) -> None:
    """Replace the key and check that everything else in the file stays."""
    old, before = box.key.reveal(), dict(box.values)
    after = box.with_new_key()
    if after.key.reveal() == old or (
        old == SECRET and re.search(rf"(?<![\w-]){old}(?![\w-])", after.env_file.read_text())
    ):
        raise Lost("the old key is still in .env")
    kept = {name: value for name, value in before.items() if old not in value or not old}
    if {name: after.values.get(name) for name in kept} != kept:
        raise Lost(f"settings changed with the key: {dict(after.values)}")
    if len(after.env_file.read_bytes()) < len(content) - len(old.encode()) - 2:
        raise Lost("lines of .env are gone")


def state(name: str, read: Callable[[Path, Callable[[str], None]], object]) -> Callable[[bytes], object]:
    """A reader of a state file, which must keep the file or set it aside, and report that in one line."""

    def check(content: bytes) -> object:
        file, said = put(f"box/.dflash/{name}", content), list[str]()
        value = read(file, said.append)
        is_kept(file, content)
        if any(len(line) > LONGEST or len(line.splitlines()) != 1 for line in said):
            raise AssertionError(f"the report of a damaged file: {said}")
        return value

    return check


def _document(kind: type[T]) -> Callable[[Path, Callable[[str], None]], T | None]:
    return lambda file, report: read_state(file, kind, report=report)


def _changes(file: Path, report: Callable[[str], None]) -> object:
    return [str(change) for change in changes(deployment())]


def read_lock_file(content: bytes) -> object:
    """Read a lock, and write it again with the same content."""
    file = put("lock/dflash.lock", content)
    lock = read_lock(file)
    if lock is not None:
        write_lock(file, lock)
        again = read_lock(file)
        if again != lock:
            raise Lost("the lock changed when it was written again")
    return lock


def parse_lock_text(content: bytes) -> object:
    """Only parse a lock."""
    try:
        return parse_lock(content).text()
    except Invalid as problem:
        return problem


LOCK = {
    "schema": 1,
    "models": {
        "target": {
            "repo": "owner/name",
            "commit": "c" * 40,
            "files": [
                {"path": "config.json", "size": 700, "sha256": None, "blob": "b" * 40},
                {"path": "sub/model.safetensors", "size": 4 * 10**9, "sha256": "a" * 64, "blob": None},
            ],
        },
        "drafter": {"repo": "owner/drafter", "commit": "d" * 40, "files": []},
    },
}
RUN = {"pid": 4_194_305, "started": 123456, "config": "f" * 16, "address": "127.0.0.1:1"}
BENCH = {
    "command": "bench",
    "data": {
        "measured": {
            "profile": "cpu",
            "pair": "tiny",
            "engine": "vllm 0.32.0",
            "at": "2026-11-22 12:00 UTC",
            "settings": {"MAX_NUM_SEQS": "4"},
        },
        "rows": [
            {
                "workload": "own",
                "concurrency": 2,
                "drafter": True,
                "mtp": False,
                "requests": 8,
                "duration_s": 2.5,
                "input_tokens": 320,
                "output_tokens": 900,
                "ttft_ms": {"mean": 11.5},
                "tpot_ms": {"mean": 2.25},
                "acceptance_length": 6.5,
            }
        ],
    },
}


@cache
def kinds() -> tuple[Kind, ...]:
    """The kinds of this module."""
    lock = Lock({})
    return (
        Kind(".env", SAMPLES, lines_of_env() | lines_of_env() | damaged(SAMPLES), read_env, parse_env),
        Kind("run.json", (), json_documents(RUN), state("run.json", recorded)),
        Kind(
            "exit.json", (), json_documents({"exit_code": -9, "asked": False}), state("exit.json", _document(EngineEnd))
        ),
        Kind(
            "last-start.json",
            (),
            json_documents({"loading": 12.5, "compiling": 60.0}),
            state(
                "last-start.json",
                lambda file, report: (read_state(file, LastStart, report=report), usual_seconds(deployment())),
            ),
        ),
        Kind("bench.json", (), json_documents(BENCH), state("bench.json", _document(BenchFigures))),
        Kind("last-good.env", SAMPLES, lines_of_env() | damaged(SAMPLES), state("last-good.env", _changes)),
        Kind(
            "runs-last-good",
            (),
            damaged([b"2026-01-01 00:00:00 UTC: the new settings did not answer\n"]) | st.sampled_from(BYTES),
            state("runs-last-good", lambda file, report: restored_since(deployment())),
        ),
        Kind("dflash.lock", (lock.text().encode(),), json_documents(LOCK), read_lock_file, parse_lock_text),
    )
