"""SPDY/3.1 as kubectl speaks it for port-forwards: frames, and headers compressed with the protocol's dictionary."""

import socket
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 1
VERSION = 0x8003

_NAMES = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
authorization cache-control connection content-base content-encoding content-language content-length content-location
content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match
if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range
referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get
status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _text(word: str) -> bytes:
    return struct.pack("!I", len(word)) + word.encode()


DICTIONARY = b"".join(_text(name.replace("_", " ")) for name in _NAMES.split()) + _REST.encode()
"""The dictionary of SPDY/3; both sides state its checksum."""


@dataclass(frozen=True)
class Frame:
    """A frame: `kind` is 0 for data. `stream` is 0 where a frame has none."""

    kind: int
    stream: int
    flags: int
    body: bytes


class Session:
    """One connection, as the server of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")
        self._connection = connection
        self._unpacked = zlib.decompressobj(zdict=DICTIONARY)
        self._packed = zlib.compressobj(zdict=DICTIONARY)

    def frames(self) -> Iterator[Frame]:
        """Frames, until the other side ends."""
        while len(head := self._file.read(8)) == 8:
            first, second = struct.unpack("!II", head)
            body = self._file.read(second & 0xFFFFFF)
            flags = second >> 24
            if first >> 16 != VERSION:
                yield Frame(0, first & 0x7FFFFFFF, flags, body)
                continue
            stream = struct.unpack("!I", body[:4])[0] & 0x7FFFFFFF if len(body) >= 4 else 0
            yield Frame(first & 0xFFFF, stream, flags, body)

    def headers(self, opened: Frame) -> dict[str, str]:
        """The headers of a SYN_STREAM."""
        text = self._unpacked.decompress(opened.body[10:])
        (count,), at = struct.unpack("!I", text[:4]), 4
        words = []
        for _ in range(2 * count):
            (size,) = struct.unpack("!I", text[at : at + 4])
            words.append(text[at + 4 : at + 4 + size].decode())
            at += 4 + size
        return dict(zip(words[::2], words[1::2], strict=True))

    def accept(self, stream: int) -> None:
        """Answer a SYN_STREAM."""
        packed = self._packed.compress(struct.pack("!I", 0)) + self._packed.flush(zlib.Z_SYNC_FLUSH)
        self._control(SYN_REPLY, struct.pack("!I", stream) + packed)

    def answer_ping(self, ping: Frame) -> None:
        """Send a ping back."""
        self._control(PING, ping.body)

    def send(self, stream: int, data: bytes, *, last: bool = False) -> None:
        """Send data."""
        self._connection.sendall(struct.pack("!II", stream, (FIN if last else 0) << 24 | len(data)) + data)

    def _control(self, kind: int, body: bytes) -> None:
        self._connection.sendall(struct.pack("!II", VERSION << 16 | kind, len(body)) + body)
