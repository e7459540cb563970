"""Hosts of a fleet without SSH: a function answers each command, and what was asked is kept."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dflash_deploy.errors import DeployError, HostUnreachable
from dflash_deploy.features.fleet import scripts, settings
from dflash_deploy.features.fleet.settings import FleetResult
from dflash_deploy.features.fleet.ssh import OnLine, Output, Session

Answer = dict[str, Any] | str | DeployError
"""The `data` of a document, the output of a script, or the error in the document of a command."""

Respond = Callable[[str, tuple[str, ...]], Answer]
"""Answers a command of dflash-deploy, or a script by its name and arguments. Raise an error for a host out of reach."""

Change = Callable[[str, tuple[str, ...]], Answer | None]
"""Answers some commands in another way; `None` for the others. It may raise the error of a host."""

NAMES = {
    scripts.examine()[2]: "examine",
    scripts.receive("x", "")[2]: "receive",
    scripts.interrupt("x")[2]: "interrupt",
    scripts.mark_settings("x", "")[2]: "settings",
    scripts.deployed("x")[2]: "deployed",
}
"""The name of each script."""


class ScriptedHosts:
    """What all hosts were asked, in order: name of the host and the command as one text.

    `read` has what hosts got on standard input, with the name of the host and the command.
    """

    def __init__(self, respond: Respond) -> None:
        self.asked: list[tuple[str, str]] = []
        self.read: list[tuple[str, str, bytes]] = []
        self.respond = respond
        self._guard = threading.Lock()

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> "ScriptedHosts":
        """Use them in place of SSH."""
        hosts = self

        class Scripted(Session):
            def run(
                self,
                words: Sequence[str],
                *,
                seconds: float | None = 0,
                stdin: bytes | None = None,
                on_line: OnLine | None = None,
            ) -> Output:
                return hosts.run(self.host.name, tuple(words), stdin or b"")

        monkeypatch.setattr(settings, "Session", Scripted)
        return self

    def run(self, name: str, words: tuple[str, ...], stdin: bytes = b"") -> Output:
        """Answer one command."""
        script, args = words[2], words[4:]
        command = (NAMES[script], *args) if script in NAMES else args[2:]
        with self._guard:
            self.asked.append((name, " ".join(command)))
            if stdin:
                self.read.append((name, " ".join(command), stdin))
        answer = self.respond(name, command)
        if isinstance(answer, str):
            return Output(0, answer, "")
        document: dict[str, Any] = {"schema": 1, "status": "ok", "data": {}}
        if isinstance(answer, DeployError):
            error = {"code": int(answer.exit_code), "message": answer.message, "hint": answer.hint}
            document |= {"status": "failed", "error": error}
        else:
            document |= {"data": answer}
        return Output(0, json.dumps(document), "")

    def commands(self, words: str) -> list[str]:
        """The hosts that got a command which contains these words, in order."""
        return [name for name, command in self.asked if words in command]


class ScriptedFleet:
    """Hosts that are fit, with an engine each. `marks`: `same` if it runs with the settings of its host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str, change: Change, *, mark: str) -> None:
        self.names, self.change = names, change
        self.marks = dict.fromkeys(names, mark)
        self.hosts = ScriptedHosts(self.respond).put_in(monkeypatch)

    def respond(self, name: str, command: tuple[str, ...]) -> Answer:
        """Answer as `change` does, else as a host that is fit, else as `answer`."""
        changed = self.change(name, command)
        if changed is not None:
            return changed
        match command:
            case ("examine", *_):
                return f"home /h\nclock {time.time():.0f}\nsystem Linux x86_64\nfree 999999999\n"
            case ("receive", *_):
                return "same\n"
            case ("interrupt", *_):
                return ""
            case ("deployed", *_):
                return "no\n"
            case ("settings", _, "compare", _, _):
                return f"{self.marks[name]}\n"
            case ("settings", _, "mark", release, _):
                self.marks[name] = "same" if release else "other"
                return ""
            case _:
                return self.answer(name, command)

    def answer(self, name: str, command: tuple[str, ...]) -> Answer:
        """Answer a command of dflash-deploy."""
        raise NotImplementedError


def nothing_else(name: str, command: tuple[str, ...]) -> Answer | None:
    """A `Change` that changes nothing."""
    return None


def link(address: str, interface: str = "fab0") -> dict[str, object]:
    """An interface of a host, as `fleet facts` describes it."""
    return {"interface": interface, "address": address, "prefix": 24, "up": True, "mtu": 9000}


def lost(name: str) -> HostUnreachable:
    """The error of a host that is out of reach."""
    return HostUnreachable(f"{name}: lost", hint="x")


def errors(done: FleetResult) -> dict[str, str]:
    """The errors of a command, by host."""
    return {one.host.name: one.error.message for one in done.hosts if one.error}
