"""Hosts of a fleet without SSH: a function answers each command, and what was asked is kept."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dflash_deploy.errors import DeployError
from dflash_deploy.fleet import each, scripts
from dflash_deploy.fleet.session import Input, OnLine, Output, Session

Answer = dict[str, Any] | str | DeployError
"""The `data` of a document, the output of a script, or the error in the document of a command."""

Respond = Callable[[str, tuple[str, ...]], Answer]
"""Answers a command of dflash-deploy, or a script by its name and arguments. Raise an error for a host out of reach."""

NAMES = {
    scripts.examine()[2]: "examine",
    scripts.receive("x", "")[2]: "receive",
    scripts.interrupt("x")[2]: "interrupt",
    scripts.mark_settings("x", "")[2]: "settings",
}
"""The name of each script."""


class ScriptedHosts:
    """What all hosts were asked, in order: name of the host and the command as one text."""

    def __init__(self, respond: Respond) -> None:
        self.asked: list[tuple[str, str]] = []
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
                stdin: Input | None = None,
                on_line: OnLine | None = None,
            ) -> Output:
                return hosts.run(self.host.name, tuple(words))

        monkeypatch.setattr(each, "Session", Scripted)
        return self

    def run(self, name: str, words: tuple[str, ...]) -> Output:
        """Answer one command."""
        script, args = words[2], words[4:]
        command = (NAMES[script], *args) if script in NAMES else args[2:]
        with self._guard:
            self.asked.append((name, " ".join(command)))
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
