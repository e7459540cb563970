"""The receiver of the engine's OpenTelemetry traces: whether it accepts any from this machine."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import httpx

from dflash_deploy.doctor.check import Check, DoctorContext
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.traces import TracesEndpoint

TIMEOUT = 5.0
"""Seconds for the receiver to respond."""

_FRAME = 9
"""Bytes of the header of an HTTP/2 frame; the fourth is its type."""
_SETTINGS = 4
"""The type of the frame that a server sends first (RFC 9113, section 3.4)."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
"""What a client sends first: the connection preface with empty settings."""


def traces(subject: DoctorContext, plan: Plan) -> Iterator[Check]:
    """Whether the receiver accepts traces. Without OTLP_TRACES_ENDPOINT there is nothing to check."""
    receiver = plan.settings.otlp_traces_endpoint
    if receiver is None or not plan.engine.kind.knows(Settings.otlp_traces_endpoint):
        return
    yield judge_traces(receiver, problem_over_http(receiver) if receiver.path else problem_over_grpc(receiver))


def judge_traces(receiver: TracesEndpoint, problem: str) -> Check:
    """The result for what a receiver answered; an empty `problem` means that it accepts traces.

    Requests are answered without it too, so it is never an obstacle to a start.
    """
    if not problem:
        return Check("traces", "ok", f"{receiver} accepts traces ({receiver.protocol})")
    fix = f"start the receiver, correct {Settings.otlp_traces_endpoint} in .env, or leave it empty"
    return Check("traces", "warning", f"{receiver} accepts no traces: {problem}", fix)


def problem_over_http(receiver: TracesEndpoint) -> str:
    """What is wrong with the answer to an empty request, which the protocol allows; empty if it is accepted."""
    try:
        with new_client(timeout=TIMEOUT) as client:
            request = client.build_request(
                "POST", str(receiver), content=b"", headers={"content-type": "application/x-protobuf"}
            )
            answer = fetch_answer(client, request, seconds=2 * TIMEOUT)
    except SettingsRefused as problem:
        return f"{problem.message}; {problem.hint}"
    except (httpx.HTTPError, httpx.InvalidURL, Invalid, ValueError) as problem:
        return str(problem)[:300] or type(problem).__name__
    return "" if answer.succeeded else f"it answers {answer.status}"


def problem_over_grpc(receiver: TracesEndpoint) -> str:
    """What is wrong with the first frame of an HTTP/2 connection, which carries gRPC; empty if it is a valid one."""
    try:
        with socket.create_connection((receiver.host, receiver.port), TIMEOUT) as plain:
            if receiver.scheme == "http":
                return _problem_of_frame(_first_frame(plain))
            trust = ssl.create_default_context()
            trust.set_alpn_protocols(["h2"])
            with trust.wrap_socket(plain, server_hostname=receiver.host) as secure:
                return _problem_of_frame(_first_frame(secure))
    except OSError as problem:
        return str(problem)[:300] or type(problem).__name__


def _first_frame(connection: socket.socket) -> bytes:
    connection.settimeout(TIMEOUT)
    connection.sendall(_PREFACE)
    frame = b""
    while len(frame) < _FRAME:
        received = connection.recv(_FRAME - len(frame))
        if not received:
            break
        frame += received
    return frame


def _problem_of_frame(frame: bytes) -> str:
    if len(frame) == _FRAME and frame[3] == _SETTINGS:
        return ""
    return "it does not speak gRPC; if it takes OTLP over HTTP, add the path /v1/traces"
