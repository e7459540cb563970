"""HTTP answers of endpoints and hubs, read within a size limit and one time limit for the whole answer.

httpx's own timeouts limit the pause between two bytes only, and its `text` uses whatever codec the Content-Type names.
"""

from __future__ import annotations

import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from dflash_deploy.errors import SettingsRefused
from dflash_deploy.intake.files import MIB
from dflash_deploy.intake.parse import Invalid, parse_json, place_of

T = TypeVar("T", bound=BaseModel)
V = TypeVar("V")

MOST_BYTES = 16 * MIB  # bytes of an answer
MOST_OF_LINE = MIB  # bytes of one line of a stream
MOST_OF_STREAM = 256 * MIB

_WINDOW = 32 + zlib.MAX_WBITS  # zlib and gzip, recognized by their header


class ForeignDocument(BaseModel):
    """A document of another program, read strictly. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer. `content` is its body without a content encoding."""

    status: int
    url: httpx.URL
    headers: httpx.Headers
    content: bytes

    @property
    def succeeded(self) -> bool:
        """Whether the status is 2xx."""
        return is_success(self.status)

    @property
    def text(self) -> str:
        """The body as UTF-8, whatever charset the Content-Type names; other bytes are replaced."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the value of a JSON body. Raises Invalid if it is not valid JSON or exceeds a limit."""
        return parse_json(self.content)

    def document(self, kind: type[T]) -> T:
        """Return the document in a JSON body. Raises Invalid with the first key that does not match."""
        return read_document(self.content, kind)


def is_success(status: int) -> bool:
    """Return whether a status is 2xx. A redirect is not an answer."""
    return 200 <= status < 300


def new_client(**options: Any) -> httpx.Client:
    """Return an httpx client that requests bodies without an encoding; `options` are those of httpx.Client.

    Raises SettingsRefused if the environment names a proxy or certificates that cannot be used, or the URL is invalid.
    """
    try:
        client = httpx.Client(**options)
    except ImportError:
        raise SettingsRefused(
            "a SOCKS proxy is not supported", hint="set HTTPS_PROXY, HTTP_PROXY and ALL_PROXY to http:// proxies"
        ) from None
    except OSError as problem:
        raise SettingsRefused(
            f"the certificates in SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {problem.strerror or problem}",
            hint="correct or unset SSL_CERT_FILE and SSL_CERT_DIR",
        ) from None
    except (httpx.InvalidURL, ValueError):
        # the message of httpx may contain the proxy's password
        raise SettingsRefused(
            "the URL, its API key or a proxy of the environment is not valid",
            hint="check the URL, that the key is ASCII, and HTTPS_PROXY, HTTP_PROXY and ALL_PROXY (http://HOST:PORT)",
        ) from None
    client.headers["Accept-Encoding"] = "identity"
    return client


def trusting(root: Path) -> ssl.SSLContext:
    """Return a context that trusts this certificate and no other. Raises SettingsRefused if it cannot be read."""
    try:
        return ssl.create_default_context(cafile=str(root))
    except OSError as problem:
        raise SettingsRefused(
            f"the root certificate {root} cannot be read: {problem.strerror or problem}",
            hint="check that the file is a certificate in PEM format; `dflash-deploy up` writes Caddy's own one",
        ) from None


def trusting_none() -> ssl.SSLContext:
    """Return a context that trusts no certificate, for clients of http:// URLs.

    httpx's own loads the certificates of all public authorities, which takes as long as the rest of a short command.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def fetch_answer(
    client: httpx.Client, request: httpx.Request, *, seconds: float, limit: int = MOST_BYTES, redirects: bool = False
) -> Answer:
    """Send a request and return the whole answer.

    Raises httpx.HTTPError, among them ReadTimeout after `seconds`, and Invalid if the body has more than `limit` bytes
    or an unknown content encoding.
    """

    def read(abandoned: Callable[[], bool]) -> Answer:
        response = _sent(client, request, redirects=redirects)
        try:
            raw = bytearray()
            for chunk in response.iter_raw():
                raw += chunk
                if len(raw) > limit:
                    raise Invalid(f"is too large: more than {limit} bytes")
                if abandoned():
                    break
        finally:
            response.close()
        content = _decoded(bytes(raw), response.headers.get("content-encoding", ""), limit)
        return Answer(response.status_code, response.url, response.headers, content)

    return within(seconds, read)


def open_stream(
    client: httpx.Client, request: httpx.Request, *, seconds: float, redirects: bool = False
) -> httpx.Response:
    """Send a request and return the response with an unread body; close it. Raises httpx.HTTPError."""

    def send(abandoned: Callable[[], bool]) -> httpx.Response:
        response = _sent(client, request, redirects=redirects)
        if abandoned():
            response.close()
        return response

    return within(seconds, send)


def read_lines(response: httpx.Response, *, pause: float, seconds: float) -> Iterator[str]:
    """Yield the lines of a stream as they arrive.

    Raises httpx.ReadTimeout after `pause` without a whole line or `seconds` in all, and Invalid if a line has more
    than 1 MiB, the stream more than 256 MiB, or a content encoding.
    """
    if encoding := _encoding(response.headers.get("content-encoding", "")):
        raise Invalid(f"has the content encoding `{encoding[:40]}`, which was not requested")
    rest, total, last = b"", 0, time.monotonic()
    ends = last + seconds
    for chunk in response.iter_raw():
        now, total = time.monotonic(), total + len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        last = now if lines else last
        if len(rest) > MOST_OF_LINE or any(len(line) > MOST_OF_LINE for line in lines):
            raise Invalid(f"has a line of more than {MOST_OF_LINE} bytes")
        if total > MOST_OF_STREAM:
            raise Invalid(f"is too large: more than {MOST_OF_STREAM} bytes")
        yield from (line.decode("utf-8", "replace").rstrip("\r") for line in lines)
        if now > ends or now - last > pause:
            raise httpx.ReadTimeout("timed out: no end of the stream, or of an event", request=response.request)
    if rest:
        yield rest.decode("utf-8", "replace").rstrip("\r")


def read_document(content: bytes | str, kind: type[T], *, limit: int = MOST_BYTES) -> T:
    """Return the document in a JSON text. Raises Invalid with the first key that does not match."""
    value = parse_json(content, limit=limit)
    try:
        return kind.model_validate(value)
    except ValidationError as problem:
        error = problem.errors(include_url=False, include_input=False)[0]
        place = place_of(error["loc"])
        # pydantic's own words name the class of this program
        said = "Input should be an object" if error["type"] == "model_type" else error["msg"]
        raise Invalid(f"has an unexpected value: {f'{place}: ' if place else ''}{said}") from None


def within(seconds: float, call: Callable[[Callable[[], bool]], V]) -> V:
    """Return the result of `call`, which runs in a thread of its own.

    After `seconds` it is abandoned, and httpx.ReadTimeout is raised; the function that `call` gets returns whether it
    was. A server that sends informational responses (1xx) or single bytes forever resets every other timeout.
    """
    outcome: Future[V] = Future()
    abandoned = False

    def run() -> None:
        try:
            outcome.set_result(call(lambda: abandoned))
        except BaseException as problem:
            outcome.set_exception(problem)

    Thread(target=run, daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():
            return outcome.result()
        raise httpx.ReadTimeout(f"timed out: no whole answer within {seconds:g} s") from None
    finally:
        abandoned = True


def _sent(client: httpx.Client, request: httpx.Request, *, redirects: bool) -> httpx.Response:
    try:
        return client.send(request, stream=True, follow_redirects=redirects)
    except (httpx.InvalidURL, UnicodeError, OverflowError):
        # a redirect, or a proxy with a port above 65535
        raise httpx.UnsupportedProtocol("the address, a redirect or the proxy is not valid", request=request) from None


def _encoding(header: str) -> str:
    return "" if header.strip().lower() in {"", "identity"} else header.strip().lower()


def _decoded(raw: bytes, header: str, limit: int) -> bytes:
    """Return a body without its content encoding, which some proxies add although it was not requested."""
    encoding = _encoding(header)
    if not encoding or not raw:
        return raw
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise Invalid(f"has the content encoding `{encoding[:40]}`, which was not requested")
    try:
        content = zlib.decompressobj(_WINDOW).decompress(raw, limit + 1)
    except zlib.error as problem:
        raise Invalid(f"is not valid {encoding}: {problem}") from None
    if len(content) > limit:
        raise Invalid(f"is too large: more than {limit} bytes")
    return content
