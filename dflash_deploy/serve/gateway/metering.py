"""Counts what each key uses, from the engine's own answers, and refuses requests above its limits.

The gateway requests from the engine the tokens of a stream: in each chunk if that is cheap, so that cut streams are
counted too. Counts begin with the engine's start.

The limits of a key hold over all gateways of a deployment on one machine. A deployment has several gateways if its
engine has several API server processes, or if it has several engines. They share a directory, and no process of them
waits for another:

`NAME.in_flight`
    A request in flight locks one byte of it. The kernel unlocks the byte when the process ends, however it ends.
`NAME.BOOT.MINUTE`
    The tokens of one minute: records that each gateway appends. BOOT is the kernel's boot, because times are from
    its monotonic clock, which all processes of a machine share.

Only keys with limits have files.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dflash_deploy.serve.gateway.asgi import App, ErrorAnswer, Message, Receive, Scope, Send, header_values
from dflash_deploy.serve.gateway.body import Request, read, read_for_proxy, replayed
from dflash_deploy.serve.gateway.contract import CHATS, COMPLETIONS, Contract
from dflash_deploy.serve.gateway.keys import LIMITED, METRICS, REPEATED, UNREPEATED, Accepted
from dflash_deploy.serve.gateway.media import Media
from dflash_deploy.serve.gateway.shapes import Shapes
from dflash_deploy.serve.gateway.streams import ANSWER_LIMIT, Stream, Strips, Tokens, tokens_of
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


STREAMING = frozenset({CHATS, COMPLETIONS})
"""Routes whose streams state their tokens as the request asks for it."""

_OPTIONS = re.compile(rb'"stream_options"\s*:\s*\{')
"""Where the options begin. In the text of a string its quotes are escaped."""

_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
"""The words that pydantic takes for true in a field of the type `bool`."""

Changed = tuple[bytes | None, Strips]
"""The body to send instead, if it is another one, and what to take out of the answer."""


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


MINUTE = 60.0
"""Seconds."""

_FLOCK = struct.Struct("@hhqqi0q")
"""`struct flock` of fcntl(2) on 64-bit Linux: type, whence, first byte, number of bytes, process."""
_RECORD = struct.Struct("@dq")
"""When tokens were reserved, given back (less than 0) or used, in seconds of the monotonic clock; and how many."""
_MOST_TOKENS = 10**9
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Admission(NamedTuple):
    """Either the seconds to wait, or a place among the requests in flight if the key has a limit of them."""

    wait: int | None = None
    place: int | None = None


class KeyLimits:
    """What keys with limits use. Times are seconds of the monotonic clock."""

    def __init__(self, directory: Path | None = None) -> None:
        """`directory` is shared with the other gateways; `None` if there are none."""
        self._directory = directory
        self._held: dict[str, set[int]] = {}
        self._last: dict[str, int] = {}
        self._places: dict[str, _Places] = {}
        self._recent: dict[str, _Recent] = {}
        self._spent: dict[str, _Minutes] = {}

    def admit(self, key: Accepted, now: float) -> Admission:
        """Whether the key may begin a request. `leave` ends it."""
        wait = self.wait(key, now)
        if wait is not None or key.in_flight is None:
            return Admission(wait)
        place = self._free(key.name, key.in_flight)
        if place is None:
            return Admission(wait=1)
        self._held.setdefault(key.name, set()).add(place)
        self._last[key.name] = place
        return Admission(place=place)

    def leave(self, key: Accepted, place: int | None) -> None:
        """End a request that was admitted with this place."""
        if place is None:
            return
        self._held[key.name].discard(place)
        if key.name in self._places:
            self._places[key.name].unlock(place)

    def wait(self, key: Accepted, now: float) -> int | None:
        """The seconds until the tokens of the last minute allow a request; `None` if they allow it now."""
        if key.tokens_per_minute is None:
            return None
        recent = self._recent.setdefault(key.name, _Recent())
        if (shared := self._minutes(key.name)) is not None:
            for then, tokens in shared.read(now):
                recent.add(then, tokens)
        free = recent.allows(key.tokens_per_minute, now)
        return None if free is None else max(1, math.ceil(free - now))

    def reserve(self, key: Accepted, tokens: int, now: float) -> int | None:
        """Count tokens that a request is about to use; or the seconds until it may. `settle` corrects the number.

        A request is let in while fewer than the limit are used or reserved. So a minute has at most the limit and one
        request more, as far as requests use no more than was reserved, and their gateways do not decide at one moment.
        """
        wait = self.wait(key, now)
        if wait is None:
            self._spend(key, tokens, now)
        return wait

    def settle(self, key: Accepted, reserved: int, begun: float, used: int, now: float) -> None:
        """Replace the tokens that were reserved at `begun` by those that were used."""
        if reserved and now - begun < MINUTE:
            self._spend(key, -reserved, begun)
        self._spend(key, used, now)

    def _spend(self, key: Accepted, tokens: int, now: float) -> None:
        if key.tokens_per_minute is None:
            return
        shared = self._minutes(key.name)
        if shared is None or not shared.append(now, tokens):
            # `wait` removes them again
            self._recent.setdefault(key.name, _Recent()).add(now, tokens)

    def _free(self, name: str, most: int) -> int | None:
        held = self._held.get(name, set())
        shared = self._shared_places(name)
        lowered = any(place >= most for place in held) or (shared is not None and shared.any_locked_from(most))
        # from the place of the request before: it is free again more often than the first ones
        first = self._last.get(name, 0) % most
        order = chain(range(first, most), range(first))
        free = (place for place in order if place not in held and (shared is None or shared.lock(place)))
        place = next(free, None)
        if place is not None and lowered and len(held) + 1 + (shared.locked() if shared is not None else 0) > most:
            if shared is not None:
                shared.unlock(place)
            return None
        return place

    def _shared_places(self, name: str) -> _Places | None:
        if self._directory is not None and name not in self._places:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._places[name] = _Places(self._directory / f"{name}.in_flight")
            except OSError as problem:
                self._alone(problem)
        return self._places.get(name)

    def _minutes(self, name: str) -> _Minutes | None:
        if self._directory is not None and name not in self._spent:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._spent[name] = _Minutes(self._directory, name)
            except OSError as problem:
                self._alone(problem)
        return self._spent.get(name)

    def _alone(self, problem: OSError) -> None:
        said = f"{self._directory} cannot be used ({problem.strerror})"
        print(f"dflash: {said}; each gateway has the limits of {Settings.dflash_api_keys} for itself", file=sys.stderr)
        self._directory = None


class _Recent:
    """The tokens of the last minute, by the time when they were reserved or used."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, then: float, tokens: int) -> None:
        """Add a record. Those of other gateways come late."""
        place = len(self._entries)
        while place and self._entries[place - 1][0] > then:
            place -= 1
        self._entries.insert(place, (then, tokens))
        self._total += tokens

    def allows(self, most: int, now: float) -> float | None:
        """When fewer than `most` tokens are in the last minute; `None` if they are now."""
        while self._entries and now - self._entries[0][0] >= MINUTE:
            self._total -= self._entries.popleft()[1]
        over = self._total - most
        free: float | None = None
        for then, tokens in self._entries:
            if over < 0:
                break
            over -= tokens
            free = then + MINUTE
        return free


class _Places:
    """The requests in flight of one key, as locked bytes of a file (F_OFD_SETLK of fcntl(2))."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # raises OSError here, and not with each request, if the file system has no locks
        self._fcntl(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, 0, 0)
        self._known = 0

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def lock(self, place: int) -> bool:
        """Lock a byte; return whether it was free."""
        if place >= self._known:
            # the length of the file says how far bytes were ever locked
            with suppress(OSError):
                os.pwrite(self._file, b"\0", place)
            self._known = place + 1
        try:
            self._fcntl(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, place, 1)
        except OSError:
            return False
        return True

    def unlock(self, place: int) -> None:
        self._fcntl(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, place, 1)

    def any_locked_from(self, first: int) -> bool:
        """Whether another process has locked `first` or a byte after it: the limit was lowered since."""
        return self._is_locked(first, 0)

    def locked(self) -> int:
        """How many bytes other processes have locked."""
        return sum(self._is_locked(place, 1) for place in range(os.fstat(self._file).st_size))

    def _is_locked(self, first: int, count: int) -> bool:
        """Whether another process has locked one of `count` bytes; 0: of all bytes to the end."""
        kind, *_ = _FLOCK.unpack(self._fcntl(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, first, count))
        return bool(kind != fcntl.F_UNLCK)

    def _fcntl(self, command: int, kind: int, first: int, count: int) -> bytes:
        return fcntl.fcntl(self._file, command, _FLOCK.pack(kind, os.SEEK_SET, first, count, 0))


class _Minutes:
    """The tokens of one key, as records in one file for each minute."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._boot = _boot()
        self._open: dict[int, tuple[int, int]] = {}

    def __del__(self) -> None:
        for file, _ in getattr(self, "_open", {}).values():
            os.close(file)

    def append(self, now: float, tokens: int) -> bool:
        """Add the tokens of a request; return whether they are in the file."""
        try:
            file, _ = self._of(int(now // MINUTE))
            return os.write(file, _RECORD.pack(now, tokens)) == _RECORD.size
        except OSError:
            return False

    def read(self, now: float) -> Iterator[tuple[float, int]]:
        """The records of the last minute that were not read yet, also those of other gateways."""
        this = int(now // MINUTE)
        for minute in (this - 1, this):
            try:
                file, place = self._of(minute)
                size = (os.fstat(file).st_size - place) // _RECORD.size * _RECORD.size
                text = os.pread(file, size, place) if size else b""
            except OSError:
                continue
            self._open[minute] = file, place + len(text)
            for then, tokens in _RECORD.iter_unpack(text[: len(text) // _RECORD.size * _RECORD.size]):
                # a full disk may have cut a record
                if now - MINUTE < then <= now + MINUTE and abs(tokens) <= _MOST_TOKENS:
                    yield then, tokens

    def _of(self, minute: int) -> tuple[int, int]:
        """The file of a minute, and how far it was read. Raises OSError if it cannot be opened."""
        if minute not in self._open:
            path = self._directory / f"{self._name}.{self._boot}.{minute}"
            self._open[minute] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), 0
            for old in [known for known in self._open if known < minute - 1]:
                os.close(self._open.pop(old)[0])
            self._remove_old(minute)
        return self._open[minute]

    def _remove_old(self, minute: int) -> None:
        for path in self._directory.glob(f"{self._name}.*.*"):
            _, boot, number = path.name.rsplit(".", 2)
            if boot != self._boot or (number.isdecimal() and int(number) < minute - 2):
                with suppress(OSError):
                    path.unlink()


def _boot() -> str:
    """The kernel's boot; all containers of a machine have the same."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip().replace("-", "")[:12] or "0"
    except OSError:
        return "0"


MOST_READ = 1 << 40
"""Bytes of a body above any limit: `BodyLimit` counts them before."""


class Metered:
    """An ASGI application that counts the requests of a key, and passes them to `app`.

    `asks`: how the tokens of a stream are asked for if the client did not. They are taken out of the stream again.
    `shapes`: where requests are recorded; `None` if they are not.
    """

    def __init__(
        self,
        app: App,
        usage: KeyCounters,
        limits: KeyLimits,
        contract: Contract,
        media: Media,
        asks: Asks,
        shapes: Shapes | None,
    ) -> None:
        self._app = app
        self._contract = contract
        self._media = media
        self._usage = usage
        self._limits = limits
        self._asks = asks
        self._shapes = shapes

    async def serve(self, key: Accepted, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request that came with `key`."""
        if scope["path"] == METRICS and scope["method"] == "GET":
            await self._with_usage(key, scope, receive, send)
            return
        answer = _Answer(self._contract.corrected(scope, send))
        try:
            with self._usage.at_work(key.name):
                if scope["method"] == "POST":
                    await self._generate(key, scope, receive, answer)
                elif not await self._contract.answers(scope, answer.send):
                    await self._app(scope, receive, answer.send)
        except ErrorAnswer as refusal:
            answer.counts_as = "429" if refusal.status == UNREPEATED else ""
            await refusal.answer(scope, answer.send)
        finally:
            self._usage.count_request(key.name, answer.status)

    async def _generate(self, key: Accepted, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Serve a request whose tokens count. Raises ErrorAnswer for one above a limit."""
        admission = self._limits.admit(key, time.monotonic())
        if admission.wait is not None:
            await read_for_proxy(scope, receive, MOST_READ)
            raise _limited(key, admission.wait, scope)
        try:
            request = await read(scope, receive)
            if request is not None:
                await self._contract.check(scope, request)
                await self._media.check(request)
                await self._counted(key, request, scope, receive, answer)
        finally:
            self._limits.leave(key, admission.place)

    async def _counted(self, key: Accepted, request: Request, scope: Scope, receive: Receive, answer: _Answer) -> None:
        begun, most = time.monotonic(), key.tokens_per_minute or 0
        # more than the limit would keep others out no longer, and a client may state any number
        reserved = min(request.tokens(most), most)
        if (wait := self._limits.reserve(key, reserved, begun)) is not None:
            raise _limited(key, wait, scope)
        answer.strips = asked(self._asks, scope["path"], request)
        at = self._shapes.milliseconds(begun) if self._shapes else 0
        try:
            await self._app(*replayed(scope, request, receive), answer.send)
        finally:
            used = answer.tokens()
            self._limits.settle(key, reserved, begun, sum(used or ()), time.monotonic())
            if used:
                self._usage.count_tokens(key.name, used.prompt, used.generated)
                if self._shapes:
                    self._shapes.record(at, request.said, used.prompt, used.generated)

    async def _with_usage(self, key: Accepted, scope: Scope, receive: Receive, send: Send) -> None:
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
                message = {**message, "body": _ended(message.get("body", b"")) + self._usage.exposition()}
            await send(message)

        try:
            await self._app({**scope, "headers": kept}, receive, pass_on)
        finally:
            self._usage.count_request(key.name, str(status))


def _limited(key: Accepted, wait: int, scope: Scope) -> ErrorAnswer:
    said = f"the limit of the key `{key.name}` is reached: try again in {wait} s"
    again = [(b"retry-after", str(wait).encode())]
    if header_values(scope, REPEATED.lower().encode()):
        return ErrorAnswer(UNREPEATED, said, "rate_limit_exceeded", [*again, (LIMITED.lower().encode(), b"429")])
    return ErrorAnswer(429, said, "rate_limit_exceeded", again)


class _Answer:
    """Passes an answer on and reads the tokens that it states, also if its client leaves before the end."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 0
        self._done = False
        self._stream: Stream | None = None
        self._body = bytearray()
        self._reads = False
        self.strips = Strips.NOTHING
        self.counts_as = ""

    @property
    def status(self) -> str:
        """The status of HTTP; `cancelled` if the answer was cut short."""
        return (self.counts_as or str(self._status)) if self._done else "cancelled"

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            if kinds and kinds[0].startswith(b"text/event-stream"):
                self._stream = Stream(self.strips)
            self._reads = bool(kinds) and kinds[0].startswith(b"application/json")
        elif message["type"] == "http.response.body":
            message = self._noted(message)
        return self._send(message)

    def _noted(self, message: Message) -> Message:
        more = message.get("more_body", False)
        self._done = not more
        body = message.get("body", b"")
        if self._stream is not None:
            return {**message, "body": self._stream.take(body, more=more)}
        if self._reads and len(self._body) <= ANSWER_LIMIT:
            self._body += body
        return message

    def tokens(self) -> Tokens | None:
        """What the answer says it used; `None` if it says nothing."""
        if self._stream is not None:
            return self._stream.tokens
        return tokens_of(self._body)


def _ended(text: bytes) -> bytes:
    return text if not text or text.endswith(b"\n") else text + b"\n"
