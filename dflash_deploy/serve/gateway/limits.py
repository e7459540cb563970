"""Limits of keys: requests in flight and tokens per minute.

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
import math
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from dflash_deploy.serve.gateway.keys import Accepted
from dflash_deploy.serve.settings import Settings

T = TypeVar("T")

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
        return self._shared(name, self._places, lambda directory: _Places(directory / f"{name}.in_flight"))

    def _minutes(self, name: str) -> _Minutes | None:
        return self._shared(name, self._spent, lambda directory: _Minutes(directory, name))

    def _shared(self, name: str, known: dict[str, T], opened: Callable[[Path], T]) -> T | None:
        """What a key shares with other gateways, opened once; `None` without a directory that can be used."""
        if self._directory is not None and name not in known:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                known[name] = opened(self._directory)
            except OSError as problem:
                self._alone(problem)
        return known.get(name)

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
