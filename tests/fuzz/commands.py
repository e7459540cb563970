"""The real commands, in one process, on hostile files and against a server with hostile answers.

python -m tests.fuzz.commands --seed 1 --inputs 300
"""

import argparse
import io
import json
import os
import re
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dflash_deploy.catalog import load
from dflash_deploy.cli.app import app
from dflash_deploy.errors import ExitCode
from tests.fuzz.hostile import SECRET
from tests.fuzz.judge import Count, Finding, Hang, guarded
from tests.fuzz.kinds import all_kinds
from tests.fuzz.of_deployment import ENV
from tests.fuzz.places import place, reply
from tests.fuzz.worker import show
from tests.support.schemas import output_problems

READING: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("status", "--json"),
    ("plan",),
    ("plan", "--json"),
    ("logs",),
    ("logs", "--bundle", "bundle.tar.gz"),
    ("keys", "show"),
    ("connect", "curl"),
    ("pull", "--offline"),
)
CHANGING: tuple[tuple[str, ...], ...] = (
    ("down",),
    ("keys", "rotate"),
    ("render",),
    ("down", "--json"),
    ("keys", "rotate", "--json"),
)

_STATE = {
    "run.json": ".dflash/run.json",
    "exit.json": ".dflash/exit.json",
    "last-start.json": ".dflash/last-start.json",
}
_STATE |= {
    "bench.json": ".dflash/bench.json",
    "last-good.env": ".dflash/last-good.env",
    "runs-last-good": ".dflash/runs-last-good",
}
# Where the document of a kind is in a deployment.
FILES: Mapping[str, str] = {
    ".env": ".env",
    "dflash.lock": "dflash.lock",
    "engine log": ".dflash/engine.log",
    **_STATE,
} | {
    name: f"weights/{file}"
    for name, file in (
        ("config.json", "config.json"),
        ("tokenizer_config.json", "tokenizer_config.json"),
        ("safetensors header", "model.safetensors"),
        ("safetensors index", "model.safetensors.index.json"),
        ("verified stamps", ".dflash-verified.json"),
    )
}

CATALOGS: Mapping[str, str] = {
    "catalog profile": "profiles/mine.yaml",
    "catalog family": "families/mine.yaml",
    "catalog engine": "engines/mine.yaml",
    "catalog failures": "failures.yaml",
    "failure pattern": "failures.yaml",
}
ANSWERS = ("chat answer", "model list", "API description", "event stream", "metrics")

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

LONGEST_LINE = 5000  # characters of a line on standard error


@dataclass(frozen=True)
class Case:
    """A kind of document, its content, and the command that meets it."""

    kind: str
    content: bytes
    args: tuple[str, ...]


def cases() -> st.SearchStrategy[Case]:
    """Every kind that a command reads, with commands that read it."""

    def of(names: tuple[str, ...], commands: tuple[tuple[str, ...], ...]) -> st.SearchStrategy[Case]:
        kinds = all_kinds()
        return st.sampled_from(names).flatmap(
            lambda name: st.builds(Case, st.just(name), kinds[name].inputs, st.sampled_from(commands))
        )

    files = of(tuple(FILES), READING + CHANGING)
    url = (("test", "--url"), ("connect", "curl", "--url"), ("bench", "--requests", "1", "--url"))
    own = of(tuple(CATALOGS), (("plan",), ("profiles", "list"), ("models", "list"), ("status",), ("logs",)))
    prompts = of(("prompts file",), (("bench", "--url", "http://127.0.0.1:1", "--prompts"),))
    chosen = (*[files] * 12, *[own] * 4, *[of(ANSWERS, url)] * 3, prompts)
    return st.integers(0, len(chosen) - 1).flatmap(lambda number: chosen[number])


class Box:
    """A sound deployment, made again before each case, and a server that gives one answer to everything."""

    def __init__(self, url: str, server: dict[str, bytes]) -> None:
        self._url = url
        self._server = server
        self.directory = place() / "commands"

    def made(self, case: Case) -> list[str]:
        """Make the deployment, put the document into it, and return the arguments of the command."""
        shutil.rmtree(self.directory, ignore_errors=True)
        (self.directory / ".dflash").mkdir(parents=True, mode=0o700)
        (self.directory / "weights").mkdir()
        env = ENV + "MODEL_HOST_PATH=weights\n" if FILES.get(case.kind, "").startswith("weights") else ENV
        self._put(".env", env.encode())
        self._put("weights/config.json", b'{"architectures": ["A"]}')
        load._load.cache_clear()
        os.environ.pop("DFLASH_CATALOG", None)
        at = ["--dir", str(self.directory)]
        if case.kind in ANSWERS:
            self._server["answer"] = case.content
            self._put("key", SECRET.encode())
            return [*case.args, self._url, "--key-file", str(self.directory / "key")]
        if case.kind == "prompts file":
            return [*case.args, str(self._put("prompts.jsonl", case.content))]
        if case.kind in CATALOGS:
            content = case.content
            if case.kind == "failure pattern":
                failure = {
                    "id": "mine",
                    "pattern": content.decode(),
                    "cause": "it did not start",
                    "do": "start it again",
                    "source": "x",
                }
                content = json.dumps({"failures": [failure]}).encode()
            self._put(f"catalog/{CATALOGS[case.kind]}", content)
            os.environ["DFLASH_CATALOG"] = str(self.directory / "catalog")
            return [*case.args, *([] if case.args[0] in {"profiles", "models"} else at)]
        self._put(FILES[case.kind], case.content)
        args = [str(self.directory / one) if one == "bundle.tar.gz" else one for one in case.args]
        return [*args, *at]

    def _put(self, name: str, content: bytes) -> Path:
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file


def run(case: Case, box: Box, count: Count) -> None:
    """Run one case, and count what came of it."""
    args = box.made(case)
    whole = b"\0".join([" ".join(case.args).encode(), case.kind.encode(), case.content])
    if whole in count.seen:
        return
    count.seen.add(whole)
    before = time.process_time()
    try:
        with guarded():
            ran = CliRunner().invoke(app, args)
    except Hang:
        count.findings.append(Finding(case.kind, "hang", " ".join(args), case.content))
        return
    count.slowest = max(count.slowest, time.process_time() - before)
    count.refused += ran.exit_code != 0
    for problem, said in problems(case, box.directory, ran.exit_code, ran.stdout, ran.stderr, ran.exception):
        count.findings.append(Finding(case.kind, problem, f"{' '.join(case.args)}: {said}", case.content))


def problems(
    case: Case, directory: Path, code: int, out: str, err: str, error: BaseException | None
) -> Iterator[tuple[str, str]]:
    """What is not allowed about the end of a command."""
    if error is not None and not isinstance(error, SystemExit):
        yield "unexpected", repr(error)
    if code not in set(ExitCode) - {ExitCode.UNEXPECTED} or "unexpected: " in out + err:
        yield "unexpected", f"code {code}: {(err or out)[-600:]}"
    for text in (out, err, *_members(directory / "bundle.tar.gz")):
        if SECRET in text:
            yield "secret", text[max(0, text.find(SECRET) - 200) :][:300]
    if found := _CONTROL.search(out + err):
        yield "message", f"a control character: {(out + err)[max(0, found.start() - 50) :][:100]!r}"
    if max(map(len, err.splitlines()), default=0) > LONGEST_LINE:
        yield "message", f"a line of {max(map(len, err.splitlines()))} characters"
    yield from (("message", said) for said in output_problems(case.args, code, out))
    yield from _lost(case, directory)


def _lost(case: Case, directory: Path) -> Iterator[tuple[str, str]]:
    """Files of the deployment that are gone or changed."""
    env = (directory / ".env").read_bytes() if (directory / ".env").is_file() else b""
    sent = case.content if case.kind == ".env" else b""
    if not env and sent:
        yield "lost", ".env is gone"
    if sent and case.args[0] not in {"keys"} and env != sent:
        yield "lost", ".env was changed"
    if case.kind == "dflash.lock" and (directory / "dflash.lock").read_bytes() != case.content:
        yield "lost", "dflash.lock was changed"


def _members(bundle: Path) -> Iterator[str]:
    """The texts in a bundle, if one was made."""
    with suppress(OSError), tarfile.open(bundle) as archive:
        for member in archive:
            file = archive.extractfile(member) or io.BytesIO()
            yield file.read().decode("utf-8", "replace")


@contextmanager
def serving() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A server on this machine that gives the answer in a dictionary to every request."""
    answer: dict[str, bytes] = {"answer": b"200\n\n"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(OSError, ValueError):
                self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 2**20))
                given = reply(answer["answer"])
                self.send_response_only(given.status_code, "x")
                for name, value in given.headers.raw:
                    self._headers_buffer.append(name + b": " + value + b"\r\n")  # type: ignore[attr-defined]
                self.end_headers()
                for piece in given.stream:  # type: ignore[union-attr]
                    self.wfile.write(piece)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, *ignored: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", answer
    finally:
        server.shutdown()
        server.server_close()


def sample(number: int, examples: int, until: Callable[[], bool] = lambda: False) -> Count:
    """Run a sample of commands, which `number` decides."""
    count = Count("commands")
    with serving() as (url, server), patch.dict(os.environ, {"COLUMNS": "200", "NO_COLOR": "1"}):
        box = Box(url, server)

        @seed(number)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases())
        def one(case: Case) -> None:
            if not until():
                run(case, box, count)

        one()
    return count


def main() -> None:
    """Parse the arguments, run the sample, and print the count and the findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0.0)
    asked = parser.parse_args()
    ends, began = time.monotonic() + asked.seconds, time.process_time()
    count, number = sample(asked.seed, asked.inputs), asked.seed
    while asked.seconds and time.monotonic() < ends:
        number += 1
        more = sample(number, asked.inputs, lambda: time.monotonic() > ends)
        count = replace(
            count,
            seen=count.seen | more.seen,
            refused=count.refused + more.refused,
            slowest=max(count.slowest, more.slowest),
            findings=count.findings + more.findings,
        )
    show(count)
    print(f"{time.process_time() - began:.1f} s of CPU", file=sys.stderr)
    shutil.rmtree(place(), ignore_errors=True)


if __name__ == "__main__":
    main()
