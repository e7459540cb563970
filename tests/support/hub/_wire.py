"""Bytes on the socket: as fast as it goes, or as badly as the faults say."""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from tests.support.hub._content import Content, OnDisk
from tests.support.hub._delivery import Delivery
from tests.support.hub.faults import Cut, Drip, Fault, Halt, Reset, Stall

_AT_ONCE = 1 << 20
_TICK = 0.02


class Wire:
    """One body on its way. `count` is told of each stretch that the socket took."""

    def __init__(
        self,
        sock: socket.socket,
        delivery: Delivery,
        wait: Callable[[float], None],
        until_healed: Callable[[], None],
        count: Callable[[int], None],
    ) -> None:
        self._sock = sock
        self._delivery = delivery
        self._wait = wait
        self._until_healed = until_healed
        self._count = count
        self._rate: float | None = None

    def send(self, faults: Sequence[Fault]) -> bool:
        """Send the body; False where the connection is at its end after it."""
        drips = [fault.rate for fault in faults if isinstance(fault, Drip)]
        self._rate = min(drips, default=None)
        at = start = self._delivery.start
        marks = [fault for fault in faults if isinstance(fault, (Cut, Reset, Stall, Halt))]
        for mark in sorted(marks, key=lambda mark: mark.after):
            upto = min(start + mark.after, self._delivery.stop)
            self._stretch(at, upto)
            at = upto
            match mark:
                case Cut():
                    return False
                case Reset():
                    self._reset()
                    return False
                case Stall():
                    self._wait(mark.seconds)
                case Halt():
                    self._until_healed()
        self._stretch(at, self._delivery.stop)
        if self._delivery.chunked:
            self._push(memoryview(b"0\r\n\r\n"), counted=False)
        return True

    def _stretch(self, start: int, stop: int) -> None:
        content = self._delivery.content
        if self._rate is not None:
            self._drip(content, start, stop, self._rate)
        elif isinstance(content, OnDisk) and not self._delivery.chunked:
            self._sendfile(content, start, stop)
        else:
            for piece in content.pieces(start, stop):
                self._piece(piece)

    def _drip(self, content: Content, start: int, stop: int, rate: float) -> None:
        begun, sent = time.monotonic(), 0
        for piece in _thin(content.pieces(start, stop), max(1, int(rate * _TICK))):
            self._piece(piece)
            sent += len(piece)
            ahead = sent / rate - (time.monotonic() - begun)
            if ahead > 0:
                self._wait(ahead)

    def _sendfile(self, content: OnDisk, start: int, stop: int) -> None:
        with content.path.open("rb") as file:
            while start < stop:
                most = min(_AT_ONCE, stop - start)
                self._count(most)
                taken = os.sendfile(self._sock.fileno(), file.fileno(), start, most)
                self._count(taken - most)
                if not taken:
                    raise ConnectionError(f"{content.path} became shorter")
                start += taken

    def _piece(self, piece: memoryview) -> None:
        if not self._delivery.chunked:
            self._push(piece)
        elif len(piece):
            self._push(memoryview(f"{len(piece):x}\r\n".encode()), counted=False)
            self._push(piece)
            self._push(memoryview(b"\r\n"), counted=False)

    def _push(self, data: memoryview, *, counted: bool = True) -> None:
        # counted before and put right after: a client that has all its bytes must find them in the ledger
        while len(data):
            if counted:
                self._count(len(data))
            taken = self._sock.send(data)
            if counted:
                self._count(taken - len(data))
            data = data[taken:]

    def _reset(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # a shutdown, which the server does when a handler returns, would say goodbye first
        os.close(self._sock.detach())


def _thin(pieces: Iterator[memoryview], most: int) -> Iterator[memoryview]:
    for piece in pieces:
        for at in range(0, len(piece), most):
            yield piece[at : at + most]
