"""Documents of dflash-deploy on a host: read as those of a stranger."""

import json
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from dflash_deploy.errors import (
    DeployError,
    DownloadFailed,
    EngineNotReady,
    HostUnfit,
    HostUnprepared,
    PreflightRefused,
)
from dflash_deploy.features.fleet.file import Fleet, FleetHost
from dflash_deploy.features.fleet.ssh import (
    LONGEST,
    Calls,
    OnLine,
    Output,
    RemoteDocument,
    RemoteProgress,
    Session,
    call,
    error_of,
)

HOST = FleetHost(name="a", address="x")


class Scripted(Session):
    """A host that prints these lines."""

    def __init__(self, *lines: str, code: int = 0, err: str = "") -> None:
        super().__init__(Fleet(hosts=(HOST,)), HOST, Calls())
        self._lines, self._ended = lines, Output(code, "", err)

    def run(
        self, words: object, *, seconds: float | None = 0, stdin: object = None, on_line: OnLine | None = None
    ) -> Output:
        for line in self._lines:
            (on_line or (lambda _: None))(line.encode())
        return self._ended


def document(**data: object) -> str:
    return json.dumps({"schema": 1, "command": "up", "status": "ok", "data": data, "findings": [], "error": None})


def failed(code: int, message: str) -> RemoteDocument:
    error = {"code": code, "message": message, "hint": "do it"}
    return RemoteDocument.model_validate({"schema": 1, "status": "failed", "data": {}, "error": error})


def test_progress_is_passed_on_and_the_document_returned() -> None:
    seen: list[RemoteProgress] = []
    progress = json.dumps({"event": "progress", "phase": "loading", "elapsed": 2.0, "unknown": [1]})
    found = call(Scripted(progress, document(state="ready")), "env", "up", on_progress=seen.append)
    assert [one.phase for one in seen] == ["loading"]
    assert found.data.state == "ready"


def test_a_document_over_several_lines() -> None:
    lines = json.dumps(json.loads(document(endpoint="http://x/v1")), indent=2).splitlines()
    assert call(Scripted(*lines), "env", "status").data.endpoint == "http://x/v1"


@pytest.mark.parametrize(
    "lines",
    [
        ("[]",),
        ("{}",),
        ('{"schema": 2, "status": "ok", "data": {}}',),
        ('{"schema": 1, "status": "ok", "data": {"seconds": -1}}',),
        ('{"schema": 1, "status": "ok", "data": {"tokens_per_second": 1e999}}',),
        ("[" * 10_000,),
        ("\x1b[2J", document()),
    ],
)
def test_what_is_not_a_document_is_named(lines: tuple[str, ...]) -> None:
    with pytest.raises(HostUnfit) as raised:
        call(Scripted(*lines), "env", "up")
    assert raised.value.message.startswith("a: the output of `up`")


def test_a_program_without_a_document_is_named_by_its_exit_code() -> None:
    with pytest.raises(HostUnprepared):
        call(Scripted(code=90), "env", "up")


def test_long_texts_are_cut() -> None:
    found = call(Scripted(document(cause="x" * 100_000)), "env", "status")
    assert found.data.cause is not None
    assert len(found.data.cause) == LONGEST


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (3, "no engine", PreflightRefused),
        (4, "the Hub does not respond", DownloadFailed),
        (4, "write failed: No space left on device", HostUnfit),
        (5, "it died", EngineNotReady),
        (2, "no deployment found in /root/x", HostUnprepared),
        (99, "what", DeployError),
    ],
)
def test_an_error_has_its_class_and_the_name_of_its_host(code: int, message: str, kind: type[DeployError]) -> None:
    found = error_of(HOST, failed(code, message))
    assert type(found) is kind
    assert found.message.startswith("a: ")


def test_a_document_without_an_error_has_none() -> None:
    assert error_of(HOST, RemoteDocument.model_validate({"schema": 1, "status": "ok"})) is None


@pytest.mark.parametrize("make", [lambda: failed(0, "x"), lambda: failed(3000, "x")])
def test_exit_codes_are_those_of_a_process(make: Callable[[], RemoteDocument]) -> None:
    with pytest.raises(ValidationError):
        make()
