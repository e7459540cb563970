"""Answers of other programs: the Hugging Face Hub, the data set viewer, endpoints with streams and counters."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any, cast
from unittest.mock import patch

import httpx
from hypothesis import strategies as st

from dflash_deploy.bench import workload
from dflash_deploy.client import endpoint as connection
from dflash_deploy.client.answers import EndpointError, expected_shape, read_events
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.stream import streaming_body, time_completion
from dflash_deploy.intake.answers import read_lines
from dflash_deploy.redact import Redactor, Secret
from dflash_deploy.weights import hub
from dflash_deploy.weights.hub import Source
from tests.fuzz.hostile import BYTES, SECRET, TEXTS, changed, damaged, json_documents, written
from tests.fuzz.judge import Shown
from tests.fuzz.kind import Kind
from tests.fuzz.places import answer, answering, reply

MODEL = {
    "id": "owner/name",
    "sha": "c" * 40,
    "siblings": [
        {"rfilename": "config.json", "size": 700, "blobId": "b" * 40},
        {"rfilename": "model.safetensors", "size": 9, "blobId": "b" * 40, "lfs": {"sha256": "a" * 64, "size": 9}},
    ],
}
ROWS = {"rows": [{"row_idx": 0, "row": {"question": "How many?", "answer": "3"}}]}
CHAT = {
    "id": "x",
    "choices": [
        {
            "message": {
                "content": "hi",
                "reasoning": None,
                "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
            },
            "finish_reason": "stop",
            "logprobs": {"content": [{"token": "hi", "logprob": -0.5}]},
        }
    ],
    "usage": {"completion_tokens": 1, "prompt_tokens": 4},
    "timings": {"draft_n": 10, "draft_n_accepted": 7, "predicted_n": 12},
}
MODELS = {"data": [{"id": "m", "root": "/weights", "max_model_len": 2048}]}
PATHS: dict[str, Any] = {"paths": {"/v1/models": {"get": {}}, "/health": {}, "//host/x": {}}}
CHUNKS = (
    {"id": "x", "choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {"id": "x", "choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"completion_tokens": 1, "prompt_tokens": 4}},
)
METRICS = """\
# HELP vllm:generation_tokens_total tokens
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="m"} 120.0
vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:kv_cache_usage_perc{model_name="m"} 0.5
vllm:spec_decode_num_drafts_total{model_name="m"} 24
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 168
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 95
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 20
"""

STATUSES = st.sampled_from((200, 200, 200, 200, 200, 200, 201, 204, 301, 400, 401, 403, 404, 429, 500, 503))
HEADERS = st.dictionaries(
    st.sampled_from(
        ("Content-Type", "Content-Encoding", "Content-Length", "X-Error-Code", "Retry-After", "Location", "Link")
    ),
    st.sampled_from(
        (
            "gzip",
            "deflate",
            "br",
            "identity",
            "text/event-stream",
            "application/json; charset=zlib",
            "GatedRepo",
            "RepoNotFound",
            "1",
            "-1",
            "9" * 30,
            "Thu, 99 Foo 2026",
            "http://[",
            "//x",
            "x" * 3000,
            "\x1b[31m",
        )
    ),
    max_size=2,
)


def answers(bodies: st.SearchStrategy[bytes], kind: str = "application/json") -> st.SearchStrategy[bytes]:
    """Answers with these bodies; most have the right status and headers."""
    plain = bodies.map(lambda body: answer(body, headers={"Content-Type": kind}))
    odd = st.tuples(bodies, STATUSES, HEADERS).map(lambda parts: answer(*parts))
    echo = STATUSES.map(lambda status: answer(f"the key Bearer {SECRET} is wrong".encode(), status))
    return st.one_of(plain, plain, plain, odd, echo)


def of_endpoint(ask: Callable[[Endpoint], object]) -> Callable[[bytes], object]:
    """A reader of one route of an endpoint."""

    def read(content: bytes) -> object:
        with (
            patch.object(connection, "new_client", answering(content)),
            Endpoint("http://127.0.0.1:1", Secret(SECRET), "m", timeout=20) as endpoint,
        ):
            try:
                return repr(ask(endpoint)), endpoint.alive(), endpoint.status("GET", "/v1/models")
            except EndpointError as problem:
                # as each command does with the key that it knows
                raise EndpointError(Redactor([Secret(SECRET)])(str(problem))) from None

    return read


def read_stream(content: bytes) -> object:
    """Read a stream as `test` does, after it as `bench` does under load."""
    timed = asyncio.run(time_completion(cast(Any, _Session(content)), streaming_body({"model": "m"})))
    if len(timed.problem) > 500:
        raise AssertionError(f"a problem of {len(timed.problem)} characters")
    assert timed.tpot is None or timed.tpot >= 0
    return of_endpoint(lambda endpoint: endpoint.stream("hi", max_tokens=1))(content)


def parse_events(content: bytes) -> object:
    """Only read the lines of a stream and their events."""
    response = httpx.Response(200, stream=reply(b"200\n\n" + content).stream, request=httpx.Request("POST", "http://x"))
    with expected_shape("the stream"):
        return list(read_events(read_lines(response, pause=60, seconds=60)))


class _Session:
    """As much of an aiohttp session as a stream under load needs."""

    def __init__(self, content: bytes) -> None:
        self._response = reply(content)

    async def post(self, path: str, **options: object) -> "_Session":
        return self

    @property
    def status(self) -> int:
        return self._response.status_code

    @property
    def content(self) -> "_Session":
        return self

    async def read(self, most: int) -> bytes:
        return b"".join(cast(httpx.SyncByteStream, self._response.stream))[:most]

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in cast(httpx.SyncByteStream, self._response.stream):
            yield piece

    async def __aenter__(self) -> "_Session":
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


def read_hub(content: bytes) -> object:
    """Resolve a repository whose hub gives this answer; the address of the hub has a password."""
    source = Source.of(Secret("hf_abcdefghijklmnop"), f"http://user:{SECRET}@127.0.0.1:1")
    with patch.object(hub, "new_client", answering(content)), patch.object(hub, "pause", lambda *known: 0.0):
        model = hub.resolve(source, "owner/name", None)
    if SECRET in repr(model):
        raise Shown(repr(model)[:300])
    return model, model.size


def read_rows(content: bytes) -> object:
    """Read the rows of a data set."""
    with patch.object(workload, "new_client", answering(content)):
        return workload.fetch_questions("gsm8k")


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Server-sent events: sound ones, hostile ones, and lines that are none."""
    event = st.one_of(
        st.sampled_from(CHUNKS).map(written),
        st.sampled_from(CHUNKS).flatmap(changed).map(written),
        st.sampled_from((b"[DONE]", b"{}", b"null", b'{"error": "\x1b[31m"}', b'{"choices": null}', b"")),
        st.sampled_from(BYTES),
    )
    begin = st.sampled_from(
        (b"data: ", b"data: ", b"data: ", b"data:", b": ", b"event: x\ndata: ", b"DATA: ", b"", b"id: 1\n")
    )
    end = st.sampled_from((b"\n\n", b"\n\n", b"\r\n\r\n", b"\r", b"\n", b"", b"\0"))
    return b"".join(b"".join(draw(st.tuples(begin, event, end))) for _ in range(draw(st.integers(0, 5))))


@st.composite
def expositions(draw: st.DrawFn) -> bytes:
    """Texts of /metrics with other names, labels and values."""
    names = sorted({line.split("{")[0] for line in METRICS.splitlines() if not line.startswith("#")})
    name = st.sampled_from(
        (*names, "sglang:gen_throughput", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total", "x")
    )
    number = st.one_of(
        st.sampled_from(
            ("NaN", "+Inf", "-Inf", "-1", "1e308", "1e999", "9" * 400, "0x1p3", "1_0", "", "x", "1 2 3", "²")
        ),
        st.floats().map(str),
        st.integers().map(str),
    )
    label = st.sampled_from(("position", "model_name", "", "é")).flatmap(
        lambda name: st.sampled_from(TEXTS).map(lambda value: f'{name}="{value}"')
    )
    line = st.tuples(name, st.lists(label, max_size=2), number).map(
        lambda parts: f"{parts[0]}{{{','.join(parts[1])}}} {parts[2]}"
    )
    other = st.sampled_from(("# TYPE x histogram", "# EOF", "#", "{", 'x{a="', "# HELP", "x" * 20_000, "vllm:", ":"))
    return "\n".join(draw(st.lists(line | line | other, max_size=5))).encode("utf-8", "surrogatepass")


@cache
def kinds() -> tuple[Kind, ...]:
    """The kinds of this module."""
    stream = b"".join(b"data: " + written(chunk) + b"\n\n" for chunk in CHUNKS) + b"data: [DONE]\n\n"
    metrics, event = METRICS.encode(), "text/event-stream"
    sound = [answer(stream, headers={"Content-Type": event})]
    return (
        Kind("hub answer", [answer(json.dumps(MODEL).encode())], answers(json_documents(MODEL)), read_hub),
        Kind("data set rows", (), answers(json_documents(ROWS)), read_rows),
        Kind("chat answer", (), answers(json_documents(CHAT)), of_endpoint(lambda one: one.chat("hi", max_tokens=1))),
        Kind("model list", (), answers(json_documents(MODELS)), of_endpoint(lambda one: one.served())),
        Kind("API description", (), answers(json_documents(PATHS)), of_endpoint(lambda one: one.paths())),
        Kind("event stream", sound, answers(streams() | damaged([stream]), event), read_stream, parse_events),
        Kind(
            "metrics",
            [answer(metrics)],
            answers(expositions() | damaged([metrics]), "text/plain"),
            of_endpoint(lambda one: one.metrics()),
        ),
    )
