"""Download the bytes of one span, with retries, until it is complete.

Since 1.18, the Hugging Face Hub's client starts an interrupted file from byte 0; this resumes after the last
byte. A response is accepted only if it has the requested range of the same file: Content-Range and ETag are checked,
and If-Range is sent.
"""

from __future__ import annotations

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

from dflash_deploy.errors import DeployError, DownloadFailed, Interrupted
from dflash_deploy.intake.answers import open_stream
from dflash_deploy.weights.hub import authorization, pause, retry_after
from dflash_deploy.weights.hub_errors import FORBIDDEN, MISSING, TRANSIENT, is_final, is_page, refusal, unreachable
from dflash_deploy.weights.lockfile import LockedFile, LockedModel
from dflash_deploy.weights.pace import Throttle, TooSlow, TryAgain, fast_enough
from dflash_deploy.weights.source import Source
from dflash_deploy.weights.spans import FileProgress, Span

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
    """How to download: at most `max_bandwidth` bytes per second (0: no limit). `count` gets the size of each chunk.

    Set `stopped` to end the run from another thread.
    """

    max_bandwidth: float = 0.0
    count: Callable[[int], None] = lambda count: None
    stopped: threading.Event = field(default_factory=threading.Event)


class Transfer:
    """What the downloads of one model share: source, model, HTTP client, bandwidth limit."""

    def __init__(self, source: Source, model: LockedModel, client: httpx.Client, options: DownloadOptions) -> None:
        self.source = source
        self.model = model
        self.client = client
        self.options = options
        self.throttle = Throttle(options.max_bandwidth)


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
            self._transfer.throttle.take(len(chunk))
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
