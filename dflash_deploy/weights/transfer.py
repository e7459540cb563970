"""Fetching the bytes of one span, and again, until they are there.

The hub's client starts a broken file from zero since its 1.18; this goes on where the bytes end. A body counts only if
it is the range that was asked for, of the file that was begun: Content-Range and ETag say so, and If-Range asks for it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx

from dflash_deploy.errors import DeployError, DownloadFailed, Interrupted
from dflash_deploy.weights.hub import FORBIDDEN, MISSING, TRANSIENT, Source, pause, refusal, retry_after
from dflash_deploy.weights.lockfile import LockedFile
from dflash_deploy.weights.spans import Progress, Span

WRITE = 1 << 20
"""Bytes that are written at once."""

SAVE_EVERY = 16 * 2**20
"""Bytes after which progress is written down: what a kill costs at the most, for each connection."""

PATIENCE = 30.0
"""Seconds without a byte after which a connection is given up."""

FRUITLESS = 8
"""Attempts in a row that brought nothing, after which a file is given up."""

RESETS = 3
"""Times that a file may turn out to be another one while it is fetched."""

WHOLE, PART, OUT_OF_RANGE = 200, 206, 416
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class TryAgain(Exception):
    """Raised within an attempt that may be repeated; `after` are the seconds that the server asks to wait."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after


class Throttle:
    """Keeps all connections together below so many bytes a second; 0 is no limit."""

    def __init__(self, rate: float = 0.0) -> None:
        self._rate = rate
        self._free = time.monotonic()
        self._guard = threading.Lock()

    def take(self, count: int) -> None:
        """Wait until so many bytes may be counted as fetched."""
        if not self._rate:
            return
        with self._guard:
            self._free = max(self._free, time.monotonic()) + count / self._rate
            wait = self._free - time.monotonic()
        if wait > 0:
            time.sleep(wait)


@dataclass
class Fetching:
    """One file on its way: where from, where to, and what of it is there. Shared by the connections that fetch it."""

    source: Source
    repo: str
    commit: str
    file: LockedFile
    descriptor: int
    progress: Progress
    client: httpx.Client
    throttle: Throttle
    stopped: threading.Event
    count: Callable[[int], None]
    guard: threading.Lock = field(default_factory=threading.Lock)
    resets: int = 0

    def run(self, span: Span, until: int | None = None) -> None:
        """Fetch a span to its end, or to the byte `until`. Raises DownloadFailed, or the hub's refusal."""
        end = span.end if until is None else min(span.end, until)
        fruitless = 0
        while span.done < end:
            before = span.done
            try:
                self._attempt(span, end)
            except (TryAgain, httpx.TransportError) as problem:
                fruitless = 0 if span.done > before else fruitless + 1
                if fruitless >= FRUITLESS:
                    raise DownloadFailed(
                        f"{self.repo}: {self.file.path} stays at {self.progress.done} of {self.file.size} bytes: "
                        f"{problem}",
                        hint="run `dflash-deploy pull` again: it goes on from there",
                    ) from None
                self._rest(pause(fruitless, getattr(problem, "after", None)))
        with self.guard:
            self.progress.save()

    def _rest(self, seconds: float) -> None:
        if self.stopped.wait(seconds):
            raise Interrupted

    def _attempt(self, span: Span, end: int) -> None:
        begun = self.resets
        headers = {"Range": f"bytes={span.done}-{end - 1}", "Accept-Encoding": "identity"}
        token = self.source.token.reveal()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if self.progress.etag:
            headers["If-Range"] = self.progress.etag
        url = self.source.file(self.repo, self.commit, self.file.path)
        # httpx drops the token where a redirect leaves the hub
        with self.client.stream("GET", url, headers=headers, follow_redirects=True) as answer:
            skip = self._check(answer, span)
            for pieces in self._gathered(self._body(answer, skip)):
                self._keep(span, pieces, begun)
                if span.done >= end:
                    return
        if span.done < end:
            raise TryAgain("the connection ended early")

    def _check(self, answer: httpx.Response, span: Span) -> int:
        """Whether the answer is what was asked for; returns how many of its bytes come before the span's next one."""
        status = answer.status_code
        away = (
            answer.url.host != httpx.URL(self.source.endpoint).host
            or answer.url.port != httpx.URL(self.source.endpoint).port
        )
        if status in TRANSIENT or status == OUT_OF_RANGE or (status == FORBIDDEN and away):
            # a signed address that has expired is asked for anew
            raise TryAgain(f"the server answers {status}", retry_after(answer.headers.get("retry-after")))
        if status not in {WHOLE, PART}:
            raise self._refused(answer)
        kind = answer.headers.get("content-type", "")
        if kind.startswith("text/html") or answer.headers.get("content-encoding", "identity") not in {"", "identity"}:
            raise TryAgain(f"something in between answers with {kind or 'another encoding'}")
        self._same_file(answer)
        if status == WHOLE:
            return span.done
        found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if found is None or int(found[1]) != span.done or found[3] not in {"*", str(self.file.size)}:
            raise TryAgain("the server sends another range than it was asked for")
        return 0

    def _refused(self, answer: httpx.Response) -> DeployError:
        code = answer.headers.get("x-error-code", "")
        if answer.status_code == MISSING:
            return DownloadFailed(
                f"{self.repo} at {self.commit[:10]} has no {self.file.path} any more",
                hint="`dflash-deploy pull --update` resolves anew",
            )
        return refusal(answer.status_code, code, self.source, self.repo)

    def _same_file(self, answer: httpx.Response) -> None:
        """Bytes of two bodies are never mixed: another ETag starts the file anew."""
        etag = answer.headers.get("etag", "")
        with self.guard:
            if not self.progress.etag:
                self.progress.etag = etag
            elif etag != self.progress.etag:
                self.resets += 1
                self.count(-self.progress.done)
                self.progress.reset()
                if self.resets > RESETS:
                    raise DownloadFailed(
                        f"{self.repo}: {self.file.path} is another file at every request",
                        hint="try again later, or another mirror in HF_ENDPOINT",
                    )
                raise TryAgain("the file has changed while it was fetched")

    def _body(self, answer: httpx.Response, skip: int) -> Iterator[bytes]:
        # as they come: pieces of one size would be lost where a connection breaks in the middle of one
        for chunk in answer.iter_raw():
            if self.stopped.is_set():
                raise Interrupted
            self.throttle.take(len(chunk))
            if skip >= len(chunk):
                skip -= len(chunk)
                continue
            yield chunk[skip:]
            skip = 0

    def _gathered(self, body: Iterator[bytes]) -> Iterator[bytes]:
        """Pieces worth writing. What had come when a connection breaks is one too."""
        pieces: list[bytes] = []
        size = 0
        try:
            for piece in body:
                pieces.append(piece)
                size += len(piece)
                if size >= WRITE:
                    yield b"".join(pieces)
                    pieces, size = [], 0
        except httpx.TransportError:
            yield b"".join(pieces)
            raise
        yield b"".join(pieces)

    def _keep(self, span: Span, chunk: bytes, begun: int) -> None:
        with self.guard:
            if self.resets != begun:
                # another connection found that this is no longer the file
                raise TryAgain("the file has changed while it was fetched")
            chunk = chunk[: span.left]
            os.pwrite(self.descriptor, chunk, span.done)
            before = self.progress.done
            span.done += len(chunk)
            if (before + len(chunk)) // SAVE_EVERY > before // SAVE_EVERY:
                self.progress.save()
        self.count(len(chunk))
