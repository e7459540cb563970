"""One command on one deployment: killed, examined, run again, examined again."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.lock import command_lock
from dflash_deploy.redact import Secret
from dflash_deploy.runtime.native_process import SUPERVISOR
from tests.support.procfs import Process, family_of, kill
from tests.support.schemas import problems
from tools.kills.nursery import End, Order

# Files whose content is another one in each run.
CHANGING = re.compile(
    r"deployment/\.dflash/(lock|engine\.log(\.\d|\.next)?|(run|exit|project|last-start)\.json|journal\.jsonl(\.1)?)"
    r"|(.*/)?\.pull/lock|hf/.*|models/\w+/\.dflash-verified\.json"
)

# What a killed command may leave, and the next one removes or continues.
UNFINISHED = re.compile(r"(.*/)?(\..+\.[0-9a-f]{8}|\.pull/.+)|deployment/\.dflash/build\.\d.*")

BUILD = "deployment/.dflash/build/"
_KEY = re.compile(r"(?<![\w-])[\w-]{43}(?![\w-])")
_LABEL = re.compile(r"(secrets-hash: ).*")

STARTING = frozenset({"up", "rollback"})  # commands after which an engine runs
Files = Mapping[str, str]


class Nursery:
    """A process that runs commands in forks of itself."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.kills.nursery"],
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "ready\n"

    def carry_out(self, order: Order) -> End:
        """Run a command to its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        return End(**json.loads(self._read()))

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        """End the process; a command that still runs is not waited for."""
        self._process.terminate()
        self._process.communicate()


@dataclass
class Trial:
    """A command and the place where it runs: `root` with `deployment/`, and `models/` if it fetches weights.

    `before` are the files before the command, `after` those of a run that nothing disturbs; keys are left out of both.
    """

    nursery: Nursery
    root: Path
    args: tuple[str, ...]
    repeated: frozenset[int] = frozenset({0})
    """Exit codes of the command after one that was killed."""

    before: Files = field(default_factory=dict)
    after: Files = field(default_factory=dict)
    effects: list[str] = field(default_factory=list)
    seconds: float = 0.0
    hit: bool = False
    """Whether the last kill came before the command's end."""

    turned: bool = False
    """Whether there was another key after the last kill."""

    @property
    def directory(self) -> Path:
        """The deployment."""
        return self.root / "deployment"

    @property
    def _kept(self) -> Path:
        return self.root.with_name(f"{self.root.name}-before")

    def learn(self) -> None:
        """Keep what is there now, and see what the command makes of it."""
        shutil.copytree(self.root, self._kept, symlinks=True)
        self.before = files_of(self.root)
        end = self.run()
        assert end.code == 0, self.said
        self.after, self.effects, self.seconds = files_of(self.root), end.effects, end.seconds
        self.reset()

    def reset(self) -> None:
        """Restore everything to what it was; engines end."""
        self.end_engines()
        shutil.rmtree(self.root)
        shutil.copytree(self._kept, self.root, symlinks=True)

    def run(
        self, *options: str, args: tuple[str, ...] = (), at_effect: int | None = None, after: float | None = None
    ) -> End:
        """Run the command, or another one, and kill it at that effect, or after these seconds."""
        output = self.root.with_name(f"{self.root.name}-output")
        words = [*(args or self.args), *options]
        order = Order(words, str(self.directory), str(output), str(self.root), at_effect, after)
        return self.nursery.carry_out(order)

    @property
    def said(self) -> str:
        """What the last command printed."""
        return self.root.with_name(f"{self.root.name}-output").read_text()

    @property
    def key(self) -> str:
        """The key in `.env`; empty if there is none."""
        deployment = Deployment(self.directory)
        return deployment.key.reveal() if deployment.exists() else ""

    def killed(self, *, at_effect: int | None = None, after: float | None = None, power: bool = False) -> list[str]:
        """Kill the command, examine the files, run it again, and examine them again: what is wrong.

        `power`: what was not written to disk by then is lost.
        """
        key, self.hit = self.key, False
        times = {file: file.stat().st_mtime_ns for file in self.root.rglob("*") if file.is_file()}
        end = self.run(at_effect=at_effect, after=after)
        self.hit = end.code is None
        self.turned = self.key != key
        if power:
            self.end_engines()
            lose(self.root, times, end.synced)
        wrong = [] if power else [f"after the kill: {one}" for one in self._half()]
        between = self.key
        if "rotate" not in self.args and key and between != key:
            wrong.append("after the kill: another key")
        again = self.run("--json")
        if again.code not in self.repeated:
            wrong.append(f"the command again: code {again.code}: {self.said}")
        wrong += [f"the command again: {one}" for one in problems(self._document())]
        wrong += self._left(between, again.code)
        if again.code:
            # the deployment is there already: the next command is another one
            self.run(args=("render",))
        wrong += [f"after the second run: {one}" for one in self._unlike_after()]
        return wrong

    def _document(self) -> dict[str, Any]:
        """The JSON document among what the last command printed on both streams."""
        document: dict[str, Any]
        document, _ = json.JSONDecoder().raw_decode(self.said, self.said.index("{"))
        return document

    def _half(self) -> Iterator[str]:
        """Files that are neither as before nor as after the command."""
        now = files_of(self.root)
        for name in {*now, *self.before, *self.after}:
            if name.startswith(BUILD) or CHANGING.fullmatch(name) or UNFINISHED.fullmatch(name):
                continue
            if now.get(name) not in {self.before.get(name), self.after.get(name)}:
                yield f"{name} is neither old nor new"
        built = {name for name in now if name.startswith(BUILD)}
        if built and not any(
            now.items() >= {name: text for name, text in known.items() if name.startswith(BUILD)}.items()
            for known in (self.before, self.after)
            if any(name.startswith(BUILD) for name in known)
        ):
            yield f"{BUILD} is incomplete: {len(built)} files"

    def _unlike_after(self) -> Iterator[str]:
        """Files that differ from those of a run that nothing disturbs."""
        now = files_of(self.root)
        for name in {*now, *self.after}:
            if CHANGING.fullmatch(name):
                continue
            if now.get(name) != self.after.get(name):
                yield f"{name} is {'missing' if name not in now else 'left' if name not in self.after else 'another'}"

    def _left(self, between: str, code: int | None) -> Iterator[str]:
        """What is wrong with the lock, the mode and the key. `between` is the key after the kill.

        A command that was refused, such as a second `init`, does not take the lock.
        """
        lock = self.directory / ".dflash" / "lock"
        if code == 0 and lock.read_bytes():
            yield "the lock names a command"
        with command_lock(Deployment(self.directory), "a test"):
            pass
        env = self.directory / ".env"
        if env.stat().st_mode & 0o077:
            yield "others can read .env"
        processes = [one.name for one in self.engines()]
        if len(processes) != (2 if self.args[0] in STARTING else 0):
            yield f"{len(processes)} processes instead of a supervisor and its engine, or none"
        if "rotate" in self.args:
            data: dict[str, Any] = self._document()["data"]
            told = (data["old_fingerprint"], data["fingerprint"])
            if told != (Secret(between).fingerprint, Secret(self.key).fingerprint):
                yield "the keys are not the ones that it tells"
            if any(between in file.read_text() for file in (env, self.directory / "compose.yaml")):
                yield "the old key is still there"

    def engines(self) -> list[Process]:
        """The supervisors of this deployment and their engines."""
        state = str(self.directory / ".dflash")
        return family_of(lambda one: SUPERVISOR in one.arguments and state in one.arguments)

    def end_engines(self) -> None:
        """Kill them all at once, as a power cut does."""
        kill(self.engines(), 10)


def files_of(root: Path) -> Files:
    """The content of every file below a directory, keys and their labels left out."""
    found = {}
    for file in root.rglob("*"):
        if file.is_file():
            text = file.read_bytes().decode("latin-1")
            if len(text) < 100_000:
                text = _LABEL.sub(r"\1", _KEY.sub("(key)", text))
            found[str(file.relative_to(root))] = text
    return found


def lose(root: Path, times: Mapping[Path, int], synced: list[int]) -> None:
    """Empty the files that were written and not synced: what a power cut may do to them.

    The supervisor of an engine writes run.json, and syncs it itself.
    """
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.name != "run.json":
            status = file.stat()
            if times.get(file) != status.st_mtime_ns and status.st_ino not in synced:
                file.write_bytes(b"")
