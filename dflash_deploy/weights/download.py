"""Downloads one file over several connections, from where an earlier run stopped.

Since 1.18, the Hugging Face Hub's client starts an interrupted file from byte 0; this resumes after the last byte. A
response is accepted only if it has the requested range of the same file: Content-Range and ETag are checked, and
If-Range is sent. A connection that is too slow is not kept.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx

from dflash_deploy.deployment.files import PUBLIC, write_atomically
from dflash_deploy.errors import (
    DeployError,
    DownloadFailed,
    FileRefused,
    Interrupted,
)
from dflash_deploy.intake.answers import open_stream
from dflash_deploy.intake.documents import PartRecord, parse_document
from dflash_deploy.intake.files import read_bytes
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.weights.hub import (
    FORBIDDEN,
    MISSING,
    TRANSIENT,
    Source,
    authorization,
    is_final,
    is_page,
    pause,
    refusal,
    retry_after,
    unreachable,
)
from dflash_deploy.weights.lock import LockedFile, LockedModel

SPLIT_ABOVE = 64 * 2**20
"""Bytes above which one file is downloaded over several connections."""

CONNECTIONS = 4


@dataclass
class Span:
    """Bytes `start` to `end` (exclusive) of a file, of which those before `done` are on disk."""

    start: int
    done: int
    end: int

    @property
    def left(self) -> int:
        """Bytes that are missing."""
        return self.end - self.done


@dataclass
class FileProgress:
    """The state of one part file. `etag` is the ETag of the response that its bytes came from."""

    size: int
    identity: str
    spans: list[Span]
    etag: str = ""
    path: Path = field(default_factory=Path)

    @property
    def done(self) -> int:
        """Bytes on disk."""
        return sum(span.done - span.start for span in self.spans)

    def reset(self) -> None:
        """Discard all bytes on disk."""
        self.etag = ""
        for span in self.spans:
            span.done = span.start

    def save(self) -> None:
        """Save the progress. Bytes are written before it, so that it never claims missing bytes."""
        spans = [[span.start, span.done, span.end] for span in self.spans]
        document = {"size": self.size, "identity": self.identity, "etag": self.etag, "spans": spans}
        write_atomically(self.path, json.dumps(document), mode=PUBLIC)


def identity_of(file: LockedFile) -> str:
    """Return the digest of the file's content; empty if the lock has none."""
    return file.sha256 or file.blob or ""


def open_progress(path: Path, part: Path, file: LockedFile) -> FileProgress:
    """Return the progress of an earlier run if it belongs to this file and its bytes exist, else a new one."""
    fresh = FileProgress(file.size, identity_of(file), list(_split(file.size)), path=path)
    try:
        record = parse_document(read_bytes(path, links=False), PartRecord)
        there = part.stat(follow_symlinks=False).st_size
    except (FileRefused, Invalid, OSError):
        return fresh
    spans = [Span(start, done, end) for start, done, end in record.spans]
    same = record.size == file.size and record.identity == fresh.identity
    if same and _cover(spans, file.size) and all(_is_sound(span, there) for span in spans):
        return FileProgress(file.size, fresh.identity, spans, record.etag, path)
    return fresh


def _cover(spans: list[Span], size: int) -> bool:
    """Return whether the spans cover byte 0 to `size` without gap and overlap."""
    expected = 0
    for span in spans:
        if span.start != expected:
            return False
        expected = span.end
    return expected == size


def _is_sound(span: Span, there: int) -> bool:
    """Return whether a span's done bytes are inside the span and inside a part file of `there` bytes."""
    return span.start <= span.done <= span.end and span.done <= max(there, span.start)


def _split(size: int) -> Iterator[Span]:
    count = CONNECTIONS if size > SPLIT_ABOVE else 1
    step = -(-size // count) if size else 0
    for number in range(count):
        start, end = min(number * step, size), min((number + 1) * step, size)
        yield Span(start, start, end)


SLOWEST = 1000
"""Bytes a second below which a connection counts as stalled."""

WINDOW = 60.0
"""Seconds of waiting for the network over which the speed is measured."""


class TryAgain(Exception):
    """Raised when an attempt fails and can be repeated; `after` is the server's Retry-After in seconds.

    `hint` is the next step of a person if no attempt succeeds.
    """

    def __init__(self, why: str, after: float | None = None, hint: str = "") -> None:
        super().__init__(why)
        self.after = after
        self.hint = hint


class TooSlow(TryAgain):
    """Raised when a connection delivers less than SLOWEST bytes a second over a WINDOW."""


def fast_enough(body: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a body. Raises TooSlow if they drip: a timeout limits only the pause between two of them.

    Only the time spent on waiting for a chunk counts, not that of the disk.
    """
    waited, size, asked = 0.0, 0, time.monotonic()
    for chunk in body:
        waited, size = waited + time.monotonic() - asked, size + len(chunk)
        yield chunk
        if waited >= WINDOW:
            if size < SLOWEST * waited:
                raise TooSlow(f"{size / waited:.0f} bytes/s over {waited:.0f} s")
            waited, size = 0.0, 0
        asked = time.monotonic()


WRITE = 1 << 20
"""Bytes that are written at once."""

GATHERS = 1.0
"""Seconds after which fewer bytes are written: those of a slow connection."""

SAVE_EVERY = 16 * 2**20
"""Bytes after which progress is saved: the most that a kill loses per connection."""

PATIENCE = 30.0
"""Seconds without a byte after which a connection times out."""

HEADERS_TIMEOUT = 60.0
"""Seconds without the headers of an answer, redirects included."""

LONGEST_ETAG = 1000
"""Characters of an ETag, which the next request repeats."""


FRUITLESS = 8
"""Attempts in a row that stalled or added no new byte, after which a download fails."""

RESETS = 3
"""How often the file may change on the server during its download."""

WHOLE, PART, OUT_OF_RANGE = 200, 206, 416
_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


@dataclass(frozen=True)
class DownloadOptions:
    """How to download. `count` gets the size of each chunk. Set `stopped` to end the run from another thread."""

    count: Callable[[int], None] = lambda count: None
    stopped: threading.Event = field(default_factory=threading.Event)


class Transfer:
    """What the downloads of one model share: source, model and HTTP client."""

    def __init__(self, source: Source, model: LockedModel, client: httpx.Client, options: DownloadOptions) -> None:
        self.source = source
        self.model = model
        self.client = client
        self.options = options


class Download:
    """The download of one file. It owns the part file, which is open until `close` or the end of the with block.

    All connections that download its spans share it.
    """

    def __init__(self, transfer: Transfer, file: LockedFile, part: Path, progress: FileProgress) -> None:
        self.file = file
        self.part = part
        self.progress = progress
        self._transfer = transfer
        self._source = transfer.source
        self._guard = threading.Lock()
        self._resets = 0
        if part.is_symlink():
            part.unlink()
        self._descriptor: int | None = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the part file. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    @property
    def descriptor(self) -> int:
        """The open part file; raises ValueError once it is closed."""
        if self._descriptor is None:
            raise ValueError(f"{self.part} is closed")
        return self._descriptor

    def begin_again(self) -> None:
        """Discard all bytes and start the file again."""
        self._transfer.options.count(-self.progress.done)
        self.progress.reset()

    def run(self, span: Span, until: int | None = None) -> None:
        """Fetch a span to its end, or to the byte `until`. Raises DownloadFailed, or the error of a refused request."""
        end = span.end if until is None else min(span.end, until)
        fruitless = 0
        while span.done < end:
            before = span.done
            try:
                self._attempt(span, end)
            except (TryAgain, httpx.HTTPError) as problem:
                moved = span.done > before and not isinstance(problem, TooSlow)
                fruitless = 0 if moved else fruitless + 1
                if fruitless >= FRUITLESS or (isinstance(problem, httpx.HTTPError) and is_final(problem)):
                    raise self._stalled(problem) from None
                self._rest(pause(fruitless, getattr(problem, "after", None)))
        with self._guard:
            self.progress.save()

    @property
    def name(self) -> str:
        """Repository and path, for messages."""
        return f"{self._transfer.model.repo}: {self.file.path}"

    def _stalled(self, problem: TryAgain | httpx.HTTPError) -> DownloadFailed:
        """The error of a last attempt. A host that cannot be reached is named: large files are at another one."""
        said, hint = str(problem), problem.hint if isinstance(problem, TryAgain) else ""
        if isinstance(problem, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            found = unreachable(problem, self._source)
            said, hint = found.message, found.hint
        return DownloadFailed(
            f"{self.name}: download stalled at {self.progress.done} of {self.file.size} bytes: {said}",
            hint=f"{hint}{'; then ' if hint else ''}run `dflash-deploy pull` again to resume",
        )

    def _rest(self, seconds: float) -> None:
        if self._transfer.options.stopped.wait(seconds):
            raise Interrupted

    def _attempt(self, span: Span, end: int) -> None:
        begun = self._resets
        headers = {"Range": f"bytes={span.done}-{end - 1}", **authorization(self._source.token)}
        if self.progress.etag:
            headers["If-Range"] = self.progress.etag
        model = self._transfer.model
        url = self._source.file(model.repo, model.commit, self.file.path)
        # httpx drops the token when a redirect leaves the Hub's host
        client = self._transfer.client
        request = client.build_request("GET", url, headers=headers)
        with closing(open_stream(client, request, seconds=HEADERS_TIMEOUT, redirects=True)) as answer:
            skip = self._check(answer, span)
            for chunk in self._gathered(self._body(answer, skip)):
                self._keep(span, chunk, begun)
                if span.done >= end:
                    return
        if span.done < end:
            raise TryAgain("the connection ended early")

    def _check(self, answer: httpx.Response, span: Span) -> int:
        """Check a response; return the number of its bytes to skip before the next byte of the span."""
        status = answer.status_code
        away = (
            answer.url.host != httpx.URL(self._source.endpoint).host
            or answer.url.port != httpx.URL(self._source.endpoint).port
        )
        blocked = status == FORBIDDEN and away
        if is_page(answer.headers) and (blocked or status in {WHOLE, PART}):
            # a sign-in page ends when someone signs in
            page = self._refused(answer)
            raise TryAgain(page.message, hint=page.hint)
        if status in TRANSIENT or status == OUT_OF_RANGE or blocked:
            # a signed address expires: the next attempt asks for a new one
            raise TryAgain(f"the server returned {status}", retry_after(answer.headers.get("retry-after")))
        if status not in {WHOLE, PART}:
            raise self._refused(answer)
        if answer.headers.get("content-encoding", "identity") not in {"", "identity"}:
            raise TryAgain("a proxy returned another content encoding")
        self._same_file(answer)
        if status == WHOLE:
            return span.done
        found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if found is None or int(found[1]) != span.done or found[3] not in {"*", str(self.file.size)}:
            raise TryAgain("the server returned another range than requested")
        return 0

    def _refused(self, answer: httpx.Response) -> DeployError:
        model = self._transfer.model
        if answer.status_code == MISSING:
            return DownloadFailed(
                f"{model.repo} at {model.commit[:10]} no longer has {self.file.path}",
                hint="update to the newest commit with `dflash-deploy pull --update`",
            )
        return refusal(answer.status_code, answer.headers, answer.url, self._source, model.repo)

    def _same_file(self, answer: httpx.Response) -> None:
        """Restart the file from byte 0 if its ETag has changed, so that bytes of two versions are never mixed."""
        etag = answer.headers.get("etag", "")
        etag = etag if etag.isascii() and len(etag) <= LONGEST_ETAG else ""
        with self._guard:
            if not self.progress.etag:
                self.progress.etag = etag
            elif etag != self.progress.etag:
                self._resets += 1
                self.begin_again()
                if self._resets > RESETS:
                    raise DownloadFailed(
                        f"{self.name}: the server returns another ETag for every request",
                        hint="try again later, or set another mirror in HF_ENDPOINT",
                    )
                raise TryAgain("the file changed during the download")

    def _body(self, answer: httpx.Response, skip: int) -> Iterator[bytes]:
        # as they arrive: a chunk of fixed size would be lost if the connection broke in the middle of it
        for chunk in fast_enough(answer.iter_raw()):
            if skip < len(chunk):
                yield chunk[skip:]
            skip = max(skip - len(chunk), 0)
            if self._transfer.options.stopped.is_set():
                raise Interrupted

    def _gathered(self, body: Iterator[bytes]) -> Iterator[bytes]:
        """Yield chunks large enough to write, and the bytes that arrived before a connection broke or the run ended."""
        chunks: list[bytes] = []
        size, since = 0, time.monotonic()
        try:
            for chunk in body:
                chunks.append(chunk)
                size += len(chunk)
                if size >= WRITE or time.monotonic() - since > GATHERS:
                    yield b"".join(chunks)
                    chunks, size, since = [], 0, time.monotonic()
        except (httpx.TransportError, TooSlow, Interrupted):
            yield b"".join(chunks)
            raise
        yield b"".join(chunks)

    def _keep(self, span: Span, chunk: bytes, begun: int) -> None:
        with self._guard:
            if self._resets != begun:
                # another connection noticed that the file changed
                raise TryAgain("the file changed during the download")
            chunk = chunk[: span.left]
            os.pwrite(self.descriptor, chunk, span.done)
            before = self.progress.done
            span.done += len(chunk)
            if (before + len(chunk)) // SAVE_EVERY > before // SAVE_EVERY:
                self.progress.save()
        self._transfer.options.count(len(chunk))
