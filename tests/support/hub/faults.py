"""What may go wrong with one answer. Pure values; `_handler.py` and `_wire.py` carry them out.

    * Fault
      + Before    instead of the answer: Answer, Page, Redirects
      + Heading   in its head: WholeBody, Unsatisfiable, Republished, Shifted, NoLength, Gzipped
      + Body      in its body: Cut, Reset, Stall, Halt, Drip, Flip

Offsets of `Cut`, `Reset`, `Stall` and `Halt` count from the first byte of the answer's body, that of `Flip` from the
first of the file.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong with one answer."""


@dataclass(frozen=True)
class Answer(Fault):
    """Another status, with its own headers and text, in place of the file."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Page(Fault):
    """200 and a page for people, as the sign-in page of a hotel or a proxy gives it."""

    text: str = "<!DOCTYPE html><html><body>Please sign in to the network.</body></html>"


@dataclass(frozen=True)
class Redirects(Fault):
    """A chain of so many redirects before the file. Clients of the hub give up at 20."""

    hops: int = 3


@dataclass(frozen=True)
class WholeBody(Fault):
    """200 and the whole file, whatever range was asked for."""


@dataclass(frozen=True)
class Unsatisfiable(Fault):
    """416, whatever range was asked for."""


@dataclass(frozen=True)
class Republished(Fault):
    """Another ETag and other bytes of the same length: the file was replaced under its address."""

    etag: str = "0" * 64


@dataclass(frozen=True)
class Shifted(Fault):
    """206 for a range that begins so many bytes after the one asked for, and says so in Content-Range."""

    by: int = 1


@dataclass(frozen=True)
class NoLength(Fault):
    """No Content-Length: the body comes in chunks."""


@dataclass(frozen=True)
class Gzipped(Fault):
    """A proxy that compresses: 200, Content-Encoding gzip, another Content-Length than the file's, no ranges."""


@dataclass(frozen=True)
class Cut(Fault):
    """The connection is closed after so many bytes of the body."""

    after: int


@dataclass(frozen=True)
class Reset(Fault):
    """The connection is reset after so many bytes of the body; what the client had not read yet is lost."""

    after: int


@dataclass(frozen=True)
class Stall(Fault):
    """So many bytes of the body, then nothing for some seconds, then the rest."""

    after: int
    seconds: float


@dataclass(frozen=True)
class Halt(Fault):
    """So many bytes of the body, then nothing until the hub is healed, then the rest."""

    after: int


@dataclass(frozen=True)
class Drip(Fault):
    """The body at so many bytes a second."""

    rate: float


@dataclass(frozen=True)
class Flip(Fault):
    """The byte at this offset of the file is inverted; length and headers are right."""

    at: int = 0


def broken(status: int = 503) -> Answer:
    """A server error, as a gateway in front of the hub says it."""
    return Answer(status, {"Content-Type": "text/html"}, f"<html><body><h1>{status}</h1></body></html>")


def too_many(seconds: int, *, as_date: bool = False) -> Answer:
    """429 with Retry-After, in seconds or as the date that lies so far ahead."""
    after = formatdate(time.time() + seconds, usegmt=True) if as_date else str(seconds)
    return Answer(429, {"Retry-After": after}, "Too Many Requests")


def rate_limited(seconds: int, *, bucket: str = "resolvers", quota: int = 3000) -> Answer:
    """429 as the hub itself says it: no Retry-After, but RateLimit and its policy.

    https://huggingface.co/docs/hub/rate-limits: `r` requests are left in the window, which ends in `t` seconds.
    """
    headers = {
        "RateLimit": f'"{bucket}";r=0;t={seconds}',
        "RateLimit-Policy": f'"fixed window";"{bucket}";q={quota};w=300',
    }
    return Answer(429, headers, "We had to rate limit your IP")


def expired_link() -> Answer:
    """403 as the CDN says it when a signed address is too old."""
    text = '<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>'
    return Answer(403, {"Content-Type": "application/xml"}, text)
