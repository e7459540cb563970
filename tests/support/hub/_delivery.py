"""From a reply to what goes over the wire: the range that was asked for, and what faults make of the head."""

import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

from tests.support.hub._content import Content, Flipped, Generated, Held, read
from tests.support.hub._reply import Reply, redirect
from tests.support.hub.faults import (
    Answer,
    Fault,
    Flip,
    Gzipped,
    NoLength,
    Page,
    Redirects,
    Republished,
    Shifted,
    Unsatisfiable,
    WholeBody,
)

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Delivery:
    """A status, a head, and the bytes from `start` to `stop` of a content."""

    status: int
    headers: Mapping[str, str]
    content: Content
    start: int
    stop: int
    chunked: bool = False


def replaced(reply: Reply, faults: Sequence[Fault], target: str) -> Reply:
    """The reply, or what a fault puts in its place. `target` is the path and query that were asked for."""
    for fault in faults:
        match fault:
            case Answer():
                headers = {"Content-Type": "text/plain; charset=utf-8", **fault.headers}
                reply = replace(
                    reply, status=fault.status, headers=headers, content=Held(fault.text.encode()), ranged=False
                )
            case Page():
                head = {"Content-Type": "text/html; charset=utf-8"}
                reply = replace(reply, status=200, headers=head, content=Held(fault.text.encode()), ranged=False)
            case Redirects():
                reply = _through(reply, fault.hops, target)
            case Republished():
                changed = {**reply.headers, "ETag": f'"{fault.etag}"'}
                reply = replace(reply, headers=changed, content=Generated(reply.content.size, seed=-1))
            case Gzipped():
                packed = {**reply.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
                content = Held(gzip.compress(read(reply.content)))
                reply = replace(reply, headers=packed, content=content, ranged=False)
            case Flip():
                reply = replace(reply, content=Flipped(reply.content, fault.at))
    return reply


def _through(reply: Reply, hops: int, target: str) -> Reply:
    """The reply behind a chain of redirects, on the host that it would be at."""
    to = reply.headers.get("Location", target)
    parts = urlsplit(to)
    host = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
    kept = {name.replace("-", "_"): value for name, value in reply.headers.items() if name.startswith("X-")}
    return redirect(reply.stage, 302, f"{host}/hop/{hops}?to={quote(to, safe='')}", file=reply.file, **kept)


def deliver(reply: Reply, asked: str | None, if_range: str | None, faults: Sequence[Fault]) -> Delivery:
    """What is sent for a reply, given the Range and If-Range headers of the request."""
    size = reply.content.size
    whole = Delivery(
        reply.status, reply.headers, reply.content, 0, size, any(isinstance(fault, NoLength) for fault in faults)
    )
    if any(isinstance(fault, Unsatisfiable) for fault in faults):
        return _unsatisfiable(size)
    if not reply.ranged or asked is None or any(isinstance(fault, WholeBody) for fault in faults):
        return whole
    if if_range is not None and if_range != reply.headers.get("ETag"):
        return whole
    span = _span(asked, size)
    if span is None:
        return whole
    start, stop = span
    start += sum(fault.by for fault in faults if isinstance(fault, Shifted))
    if start >= stop:
        return _unsatisfiable(size)
    headers = {**reply.headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    return replace(whole, status=206, headers=headers, start=start, stop=stop)


def _span(asked: str, size: int) -> tuple[int, int] | None:
    """The bytes that a Range header means; None for a form that servers ignore. Empty where it cannot be satisfied."""
    found = _RANGE.fullmatch(asked.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return max(size - int(found[2]), 0), size
    start = int(found[1])
    return start, min(int(found[2]) + 1, size) if found[2] else size


def _unsatisfiable(size: int) -> Delivery:
    return Delivery(416, {"Content-Range": f"bytes */{size}"}, Held(b""), 0, 0)
