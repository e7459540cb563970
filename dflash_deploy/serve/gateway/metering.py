"""Counts what each key uses, from the engine's own answers, and refuses requests above its limits.

The gateway requests from the engine the tokens of a stream: in each chunk if that is cheap, so that cut streams are
counted too. Counts begin with the engine's start."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dflash_deploy.serve.gateway.asgi import LARGER, App, ErrorAnswer, Message, Receive, Scope
from dflash_deploy.serve.gateway.body import Request, read, read_for_proxy, replayed, unread
from dflash_deploy.serve.gateway.contract import CHATS, COMPLETIONS, MODELS, Contract
from dflash_deploy.serve.gateway.keys import METRICS, Accepted
from dflash_deploy.serve.gateway.limits import KeyLimits
from dflash_deploy.serve.gateway.media import Media
from dflash_deploy.serve.gateway.progress import Silence
from dflash_deploy.serve.gateway.reply import Reply
from dflash_deploy.serve.gateway.streams import Strips
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.started import start_time


class KeyCounters:
    """Requests, tokens and requests in flight by the names of keys."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()
        self._prompt: Counter[str] = Counter()
        self._generated: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._refused = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    @contextmanager
    def at_work(self, name: str) -> Iterator[None]:
        """Count a request as in flight."""
        self._in_flight[name] += 1
        try:
            yield
        finally:
            self._in_flight[name] -= 1

    def count_request(self, name: str, status: str) -> None:
        """Count a request that has ended. `status` is that of HTTP, or `cancelled` if the client left."""
        self._requests[name, status] += 1

    def count_refused(self) -> None:
        """Count a request without a valid key."""
        self._refused += 1

    def count_tokens(self, name: str, prompt: int, generated: int) -> None:
        """Count the tokens of a request, as its answer states them."""
        self._prompt[name] += prompt
        self._generated[name] += generated

    def exposition(self) -> bytes:
        """All counters in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The counters, for the registry."""
        requests = CounterMetricFamily("dflash_key_requests", "Requests by name of the key.", labels=["name", "status"])
        for (name, status), count in sorted(self._requests.items()):
            requests.add_metric([name, status], count)
        yield requests
        for kind, said, counts in (
            ("prompt", "Tokens read, by name of the key.", self._prompt),
            ("generation", "Tokens generated, by name of the key.", self._generated),
        ):
            tokens = CounterMetricFamily(f"dflash_key_{kind}_tokens", said, labels=["name"])
            for name, count in sorted(counts.items()):
                tokens.add_metric([name], count)
            yield tokens
        flying = GaugeMetricFamily("dflash_key_requests_in_flight", "Requests in flight.", labels=["name"])
        for name, count in sorted(self._in_flight.items()):
            flying.add_metric([name], count)
        yield flying
        yield CounterMetricFamily("dflash_refused_requests", "Requests without a valid key.", value=self._refused)
        if (started := start_time(os.environ)) is not None:
            yield GaugeMetricFamily("dflash_start_time_seconds", "When the engine was started.", value=started)


STREAMING = frozenset({CHATS, COMPLETIONS})  # routes whose streams state their tokens as the request asks for it

# Where the options begin. In the text of a string its quotes are escaped.
_OPTIONS = re.compile(rb'"stream_options"\s*:\s*\{')

# The words that pydantic takes for true in a field of the type `bool`.
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})

# The body to send instead, if it is another one, and what to take out of the answer.
Changed = tuple[bytes | None, Strips]


class Asks(Enum):
    """The field of a request with which an engine is asked."""

    USAGE_AT_END = "include_usage"
    """Of vLLM with a reasoning parser, for chats: to state usage in each chunk, it counts all reasoning tokens of the
    answer again for each chunk (0.32 and 0.33, entrypoints/openai/chat_completion/serving.py)."""
    USAGE_IN_EACH_CHUNK = "continuous_usage_stats"
    """Of vLLM and SGLang."""
    TIMINGS = "timings_per_token"
    """Of llama.cpp, whose streams state their tokens at the end anyway."""


def asks_of_vllm(environment: Mapping[str, str]) -> Asks:
    """How vLLM with these settings is asked. Raises Refused for a setting that is not valid."""
    return Asks.USAGE_AT_END if Settings.reasoning_parser.read(environment) else Asks.USAGE_IN_EACH_CHUNK


def asked(asks: Asks, path: str, request: Request) -> Strips:
    """Ask for the tokens of the stream, if the request is one; returns what its client did not ask for."""
    if path not in STREAMING or not isinstance(request.said, dict) or not _is_true(request.said.get("stream")):
        return Strips.NOTHING
    if asks is Asks.USAGE_AT_END and path != CHATS:
        asks = Asks.USAGE_IN_EACH_CHUNK
    changed, strips = _with_timings(request) if asks is Asks.TIMINGS else _with_usage(asks, request)
    request.body = changed or request.body
    return strips


def _is_true(value: object) -> bool:
    """Whether pydantic takes the value for true: vLLM and SGLang accept more than JSON's `true`."""
    return value.lower() in _TRUE if isinstance(value, str) else value == 1


def _with_usage(asks: Asks, whole: Request) -> Changed:
    body, request = whole.body, whole.said
    name, usage, each = "stream_options", Asks.USAGE_AT_END.value, Asks.USAGE_IN_EACH_CHUNK.value
    options = request.get(name)
    # the second field has an effect only with the first
    wanted = {usage: True} if asks is Asks.USAGE_AT_END else {usage: True, each: True}
    if options is None and name not in request:
        return _begun_with(body, name, wanted), Strips.USAGE
    if options is not None and not isinstance(options, dict):
        return None, Strips.NOTHING
    known = options or {}
    if all(_is_true(known.get(field)) for field in wanted):
        return None, Strips.NOTHING
    if not _is_true(known.get(usage)):
        return json.dumps({**request, name: {**known, each: False, **wanted}}).encode(), Strips.USAGE
    changed, count = _OPTIONS.subn(rb'\g<0>"%b":true,' % each.encode(), body)
    if count != 1 or each in known or b"\\u" in body:
        changed = json.dumps({**request, name: {**known, **wanted}}).encode()
    return changed, Strips.CHUNKS


def _with_timings(whole: Request) -> Changed:
    body, request = whole.body, whole.said
    name = Asks.TIMINGS.value
    if request.get(name) is True:
        return None, Strips.NOTHING
    if name in request:
        return json.dumps({**request, name: True}).encode(), Strips.TIMINGS
    return _begun_with(body, name, True), Strips.TIMINGS


def _begun_with(body: bytes, name: str, value: object) -> bytes:
    """A JSON object with one more field; everything else stays as the client wrote it."""
    before, brace, after = body.partition(b"{")
    return before + brace + json.dumps({name: value}, separators=(",", ":")).encode()[1:-1] + b"," + after


MOST_SEQUENCES = 256  # of one request: more than an engine serves at the same time (vLLM's max_num_seqs)


class Metered:
    """Serves the requests of a key: counts them, holds them to the limits of the key and to the contract.

    `asks`: how the tokens of a stream are asked for if the client did not. They are taken out of the stream again.
    `most`: the most bytes of a body.
    """

    def __init__(
        self,
        app: App,
        silence: Silence,
        usage: KeyCounters,
        contract: Contract,
        media: Media,
        asks: Asks,
        most: int,
    ) -> None:
        self._app = app
        self._silence = silence
        self._contract = contract
        self._media = media
        self._usage = usage
        self._limits = KeyLimits()
        self._asks = asks
        self._most = most

    async def serve(self, key: Accepted, scope: Scope, receive: Receive, answer: Reply) -> None:
        """Serve one HTTP request that came with `key`."""
        try:
            if scope["path"] == METRICS and scope["method"] == "GET":
                await self._with_usage(scope, receive, answer)
                return
            with self._usage.at_work(key.name):
                if scope["method"] == "POST":
                    await self._generate(key, scope, receive, answer)
                elif not await self._contract.answers(scope, answer.say):
                    await self._app(scope, unread(receive), answer.send)
        except ErrorAnswer as refusal:
            await answer.refuse(refusal)
        finally:
            # the list of models is asked for to see whether a key works, as `keys add` does
            if scope["path"] != MODELS:
                self._usage.count_request(key.name, answer.status)

    async def _generate(self, key: Accepted, scope: Scope, receive: Receive, answer: Reply) -> None:
        """Serve a request whose tokens count. Raises ErrorAnswer for one above a limit."""
        if (wait := self._limits.admit(key, time.monotonic())) is not None:
            await read_for_proxy(scope, receive, self._most * LARGER)
            raise _limited(key, wait)
        counted = 1
        try:
            request = await read(scope, receive, self._most)
            if request is not None:
                await self._contract.check(scope, request)
                await self._media.check(request)
                counted += self._further(key, request.sequences)
                await self._counted(key, request, scope, receive, answer)
        finally:
            self._limits.leave(key, counted)

    def _further(self, key: Accepted, sequences: int) -> int:
        """Count the sequences of a request beyond its first: they cost what requests cost. Raises ErrorAnswer."""
        most = min(key.in_flight or MOST_SEQUENCES, MOST_SEQUENCES)
        if sequences > most:
            said = f"the request asks for {sequences} answers at the same time (`n` x prompts), and may for {most}"
            raise ErrorAnswer(400, said, "too_many_sequences")
        if not self._limits.widen(key, sequences - 1):
            raise _limited(key, 1)
        return sequences - 1

    async def _counted(self, key: Accepted, request: Request, scope: Scope, receive: Receive, answer: Reply) -> None:
        begun, most = time.monotonic(), key.tokens_per_minute or 0
        # more than the limit would keep others out no longer, and a client may state any number
        reserved = min(request.tokens(most), most)
        if (wait := self._limits.reserve(key, reserved, begun)) is not None:
            raise _limited(key, wait)
        answer.explains = partial(self._contract.explained, scope, request)
        answer.strips = asked(self._asks, scope["path"], request)
        try:
            with answer.awaited(self._silence):
                await self._app(*replayed(scope, request, receive), answer.send)
        finally:
            used = answer.tokens()
            self._limits.settle(key, reserved, begun, sum(used or ()), time.monotonic())
            if used:
                self._usage.count_tokens(key.name, used.prompt, used.generated)

    async def _with_usage(self, scope: Scope, receive: Receive, answer: Reply) -> None:
        """The engine's metrics with those of the keys after them, as plain text."""
        kept = [pair for pair in scope["headers"] if pair[0] not in {b"accept", b"accept-encoding"}]
        status = 500

        async def pass_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [pair for pair in message["headers"] if pair[0].lower() != b"content-length"]
                message = {**message, "headers": headers}
            elif status == 200 and not message.get("more_body", False):
                text = message.get("body", b"")
                end = b"\n" if text and not text.endswith(b"\n") else b""
                message = {**message, "body": text + end + self._usage.exposition()}
            await answer.send(message)

        await self._app({**scope, "headers": kept}, unread(receive), pass_on)


def _limited(key: Accepted, wait: int) -> ErrorAnswer:
    said = f"the limit of the key `{key.name}` is reached: try again in {wait} s"
    again = [(b"retry-after", str(wait).encode())]
    return ErrorAnswer(429, said, "rate_limit_exceeded", again)
