"""Downloads one file over one connection, from where an earlier run stopped.

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

from dflash_deploy.deployment.files import PUBLIC, sync_directory, write_atomically
from dflash_deploy.errors import DeployError, DownloadFailed, FileRefused, Interrupted
from dflash_deploy.intake.answers import open_stream
from dflash_deploy.intake.documents import PartRecord, parse_document
from dflash_deploy.intake.files import read_bytes
from dflash_deploy.intake.parse import Invalid
from dflash_deploy.weights.check import is_right
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


def part_files(staging: Path, file: LockedFile) -> tuple[Path, Path]:
    """Return the paths of a file's record and of its part file, which has its first bytes."""
    name = file.path.replace("/", "%")
    return staging / f"{name}.json", staging / f"{name}.part"


def resumed(staging: Path, file: LockedFile) -> tuple[int, str]:
    """Return the bytes of an earlier run, and the ETag of the response that they came from.

    0 if their record is of another file.
    """
    record, part = part_files(staging, file)
    try:
        known = parse_document(read_bytes(record, links=False), PartRecord)
        there = part.stat(follow_symlinks=False).st_size
    except (FileRefused, Invalid, OSError):
        return 0, ""
    is_same = (known.size, known.identity) == (file.size, _identity(file)) and there <= file.size
    return (there, known.etag) if is_same else (0, "")


def _identity(file: LockedFile) -> str:
    """Return the digest of the file's content; empty if the lock has none."""
    return file.sha256 or file.blob or ""


SLOWEST = 1000  # bytes a second below which a connection counts as stalled
WINDOW = 60.0  # seconds of waiting for the network over which the speed is measured


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


PATIENCE = 30.0  # seconds without a byte after which a connection times out
HEADERS_TIMEOUT = 60.0  # seconds without the headers of an answer, redirects included
LONGEST_ETAG = 1000  # characters of an ETag, which the next request repeats


FRUITLESS = 8  # attempts in a row that stalled or added no new byte, after which a download fails
RESETS = 3  # how often the file may change on the server during its download
WHOLE, PART, OUT_OF_RANGE = 200, 206, 416
_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


@dataclass(frozen=True)
class DownloadOptions:
    """How to download. `count` gets the size of each chunk. Set `stopped` to end the run from another thread."""

    count: Callable[[int], None] = lambda count: None
    stopped: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Transfer:
    """What the downloads of one model share: source, model and HTTP client."""

    source: Source
    model: LockedModel
    client: httpx.Client
    options: DownloadOptions


class Download:
    """The download of one file. It owns the part file, which is open until the end of the with block."""

    def __init__(self, transfer: Transfer, file: LockedFile, staging: Path) -> None:
        self.file = file
        self._transfer = transfer
        self._record, self._part = part_files(staging, file)
        self._done, self._etag = resumed(staging, file)
        self._resets = 0
        self._recorded = self._done > 0
        if self._part.is_symlink():
            self._part.unlink()
        self.descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        os.ftruncate(self.descriptor, self._done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self.descriptor)

    def begin_again(self) -> None:
        """Discard all bytes and start the file again."""
        self._transfer.options.count(-self._done)
        os.ftruncate(self.descriptor, 0)
        self._done, self._etag, self._recorded = 0, "", False

    def finish(self, place: Path) -> None:
        """Fetch the file, verify it and rename it to `place`. Raises DownloadFailed if it is wrong twice."""
        self.run(self.file.size)
        if not is_right(self._part, self.file):
            self.begin_again()
            self.run(self.file.size)
            if not is_right(self._part, self.file):
                self.begin_again()
                raise DownloadFailed(
                    f"{self.name}: the checksum differs from that of the Hugging Face Hub after two downloads",
                    hint="a proxy or mirror changes the file: set another mirror in HF_ENDPOINT, or use no proxy",
                )
        os.fsync(self.descriptor)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._part.replace(place)
        sync_directory(place.parent)
        self._record.unlink(missing_ok=True)

    def run(self, end: int) -> None:
        """Fetch the bytes before `end`. Raises DownloadFailed, or the error of a refused request."""
        fruitless = 0
        while self._done < end:
            before = self._done
            try:
                self._attempt(end)
            except (TryAgain, httpx.HTTPError) as problem:
                moved = self._done > before and not isinstance(problem, TooSlow)
                fruitless = 0 if moved else fruitless + 1
                if fruitless >= FRUITLESS or (isinstance(problem, httpx.HTTPError) and is_final(problem)):
                    raise self._stalled(problem) from None
                if self._transfer.options.stopped.wait(pause(fruitless, getattr(problem, "after", None))):
                    raise Interrupted from None

    @property
    def name(self) -> str:
        """Repository and path, for messages."""
        return f"{self._transfer.model.repo}: {self.file.path}"

    def _stalled(self, problem: TryAgain | httpx.HTTPError) -> DownloadFailed:
        """The error of a last attempt. A host that cannot be reached is named: large files are at another one."""
        said, hint = str(problem), problem.hint if isinstance(problem, TryAgain) else ""
        if isinstance(problem, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            found = unreachable(problem, self._transfer.source)
            said, hint = found.message, found.hint
        return DownloadFailed(
            f"{self.name}: download stalled at {self._done} of {self.file.size} bytes: {said}",
            hint=f"{hint}{'; then ' if hint else ''}run `dflash-deploy pull` again to resume",
        )

    def _attempt(self, end: int) -> None:
        model, source = self._transfer.model, self._transfer.source
        headers = {"Range": f"bytes={self._done}-{end - 1}", **authorization(source.token)}
        if self._etag:
            headers["If-Range"] = self._etag
        # httpx drops the token when a redirect leaves the Hub's host
        client = self._transfer.client
        request = client.build_request("GET", source.file(model.repo, model.commit, self.file.path), headers=headers)
        with closing(open_stream(client, request, seconds=HEADERS_TIMEOUT, redirects=True)) as answer:
            skip = self._check(answer)
            # as they arrive: a chunk of fixed size would be lost if the connection broke in the middle of it
            for chunk in fast_enough(answer.iter_raw()):
                self._keep(chunk[skip : skip + end - self._done])
                skip = max(skip - len(chunk), 0)
                if self._transfer.options.stopped.is_set():
                    raise Interrupted
                if self._done >= end:
                    return
        raise TryAgain("the connection ended early")

    def _check(self, answer: httpx.Response) -> int:
        """Check a response; return the number of its bytes to skip before the next byte of the file."""
        status, hub = answer.status_code, httpx.URL(self._transfer.source.endpoint)
        away = (answer.url.host, answer.url.port) != (hub.host, hub.port)
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
            return self._done
        found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if found is None or int(found[1]) != self._done or found[3] not in {"*", str(self.file.size)}:
            raise TryAgain("the server returned another range than requested")
        return 0

    def _refused(self, answer: httpx.Response) -> DeployError:
        model = self._transfer.model
        if answer.status_code == MISSING:
            return DownloadFailed(
                f"{model.repo} at {model.commit[:10]} no longer has {self.file.path}",
                hint="update to the newest commit with `dflash-deploy pull --update`",
            )
        return refusal(answer.status_code, answer.headers, answer.url, self._transfer.source, model.repo)

    def _same_file(self, answer: httpx.Response) -> None:
        """Restart the file from byte 0 if its ETag has changed, so that bytes of two versions are never mixed."""
        etag = answer.headers.get("etag", "")
        etag = etag if etag.isascii() and len(etag) <= LONGEST_ETAG else ""
        if self._etag and etag != self._etag:
            self._resets += 1
            self.begin_again()
            if self._resets > RESETS:
                raise DownloadFailed(
                    f"{self.name}: the server returns another ETag for every request",
                    hint="try again later, or set another mirror in HF_ENDPOINT",
                )
            raise TryAgain("the file changed during the download")
        if not self._recorded or etag != self._etag:
            self._etag, self._recorded = etag, True
            document = {"size": self.file.size, "identity": _identity(self.file), "etag": etag}
            write_atomically(self._record, json.dumps(document), mode=PUBLIC)

    def _keep(self, chunk: bytes) -> None:
        self._transfer.options.count(len(chunk))
        while chunk:
            # a disk that fills up takes a part of it first
            written = os.pwrite(self.descriptor, chunk, self._done)
            self._done, chunk = self._done + written, chunk[written:]
