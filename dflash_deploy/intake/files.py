"""Opens and reads regular files, and reads logs and lines of any size in bounded memory.

Opening a file never waits for a FIFO and never opens a device, and a whole file is read only up to a limit. A log in
gzip, as logrotate writes it, is unpacked while it is read. The error for another format names it.
"""

from __future__ import annotations

import codecs
import errno
import os
import select
import stat
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from dflash_deploy.errors import FileDenied, FileInvalid, FileMissing, FileRefused

MIB = 2**20

PATIENCE = 120  # seconds until the first bytes of a pipe: the command that writes it may ask for a password
LONGEST_NAME = 200  # characters of a path that an error shows

_KINDS: Mapping[int, str] = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}

_HINTS: Mapping[int, str] = {
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EMFILE: "raise the limit of open files with `ulimit -n`",
    errno.ENFILE: "close other programs: the system has too many open files",
}


def open_file(path: Path, *, links: bool = True) -> BufferedReader:
    """Return a regular file, opened for reading. `links`: follow `path` if it is a symbolic link.

    Raises FileMissing if it does not exist, FileInvalid if it is of another kind, FileDenied or
    FileRefused if it cannot be opened.
    """
    return os.fdopen(opened(path, frozenset({stat.S_IFREG}), links=links), "rb")


def read_bytes(path: Path, *, limit: int = MIB, links: bool = True) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises FileInvalid if it is larger, and the errors of `open_file`.
    """
    with open_file(path, links=links) as file, reading(path):
        content = file.read(limit + 1)
        if len(content) > limit:
            raise _too_large(path, max(os.fstat(file.fileno()).st_size, len(content)), limit)
    return content


def read_text(path: Path, *, limit: int = MIB, links: bool = True, lossy: bool = False) -> str:
    """Return the text of a file. `lossy`: replace bytes that are not UTF-8 instead of refusing the file.

    Raises FileInvalid if the content is not UTF-8, and the errors of `read_bytes`.
    """
    return _decoded(path, read_bytes(path, limit=limit, links=links), lossy=lossy)


def read_beginning(path: Path, most: int) -> str:
    """Return the text in the first `most` bytes of a file, with bytes that are not UTF-8 replaced.

    Raises the errors of `open_file`.
    """
    with open_file(path) as file, reading(path):
        return file.read(most).decode("utf-8", "replace")


def read_argument(path: Path, *, limit: int = MIB) -> str:
    """Return the text of a file that the user names: a regular file, or a pipe, as a shell makes for `<(command)`.

    `-` is standard input. Raises FileInvalid if a pipe gives nothing for PATIENCE seconds, and the errors of
    `read_text`.
    """
    descriptor = os.dup(0) if path == STDIN else opened(path, frozenset({stat.S_IFREG, stat.S_IFIFO}))
    try:
        return _decoded(path, _drained(path, descriptor, limit), lossy=False)
    finally:
        os.close(descriptor)


def opened(path: Path, kinds: Collection[int], *, links: bool = True) -> int:
    """Return a descriptor for reading that never waits. The kind of the file is one of `kinds`."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with _locating(path):
        # opening some devices has effects, so the kind is checked before; the file may change in between, so after too
        _check_kind(path, path.stat(follow_symlinks=links), kinds)
        descriptor = os.open(path, flags | (0 if links else os.O_NOFOLLOW))
    try:
        _check_kind(path, os.fstat(descriptor), kinds)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _drained(path: Path, descriptor: int, limit: int) -> bytes:
    """Return what a descriptor gives until its end."""
    content, waiting = bytearray(), select.poll()
    waiting.register(descriptor, select.POLLIN)
    while True:
        if not waiting.poll(PATIENCE * 1000):
            raise FileInvalid(f"{shown(path)} is a pipe without data", hint="check the command that writes it")
        with reading(path):
            block = os.read(descriptor, 1 << 16)
        content += block
        if len(content) > limit:
            raise _too_large(path, max(os.fstat(descriptor).st_size, len(content)), limit)
        if not block:
            return bytes(content)


def _decoded(path: Path, content: bytes, *, lossy: bool) -> str:
    try:
        return content.decode("utf-8", "replace" if lossy else "strict")
    except UnicodeDecodeError as problem:
        raise FileInvalid(f"{shown(path)} is not UTF-8 text (byte {problem.start})", hint="save it as UTF-8") from None


def _too_large(path: Path, size: int, limit: int) -> FileInvalid:
    said = f"{shown(path)} is too large: {size} bytes (limit: {limit})"
    return FileInvalid(said, hint="check that it is the right file")


def is_file(path: Path) -> bool:
    """Return whether a regular file exists at `path`; links are followed.

    Raises FileInvalid if something else is there, FileRefused if this user may not look.
    """
    try:
        with _locating(path):
            _check_kind(path, path.stat())
    except FileMissing:
        return False
    return True


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the system while reading `path` into FileMissing, FileDenied, FileInvalid and FileRefused."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise FileMissing(f"{shown(path)} does not exist", hint="check the path") from None
    except PermissionError as problem:
        hint = "run the command as the owner, or check the permissions with `ls -l`"
        raise FileDenied(f"{shown(path)} cannot be read: {problem.strerror}", hint=hint) from None
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            said = f"{shown(path)} is a symbolic link to itself, not a file"
            raise FileInvalid(said, hint="replace it with a regular file") from None
        hint = _HINTS.get(problem.errno or 0, "check the disk or the network share (`dmesg | tail`)")
        raise FileRefused(f"{shown(path)} cannot be read: {problem.strerror or problem}", hint=hint) from None


@contextmanager
def _locating(path: Path) -> Iterator[None]:
    """Do as `reading`, and turn the error for a path that no file can have into FileRefused."""
    try:
        with reading(path):
            yield
    except ValueError as problem:
        # a NUL byte, or characters that the file system's encoding lacks
        raise FileRefused(f"{shown(path)} is not a valid path: {problem}", hint="check the path") from None


def shown(path: Path) -> str:
    """Return a path for a message, with the beginning cut off if it is long."""
    name = str(path)
    return name if len(name) <= LONGEST_NAME else f"…{name[-LONGEST_NAME:]}"


def _check_kind(path: Path, status: os.stat_result, kinds: Collection[int] = (stat.S_IFREG,)) -> None:
    if stat.S_IFMT(status.st_mode) not in kinds:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise FileInvalid(f"{shown(path)} is {kind}, not a file", hint="name a regular file, or put one in its place")


MOST = 1 << 20  # bytes that are unpacked at once: a small file may unpack to any size
_GZIP = b"\x1f\x8b\x08"

# How files of other formats begin (the magic numbers in their specifications), and what unpacks them.
_OTHERS: Mapping[bytes, tuple[str, str]] = {
    b"PK\x03\x04": ("a zip archive", "unzip -p"),
    b"\xfd7zXZ\x00": ("compressed with xz", "xz -dc"),
    b"BZh": ("compressed with bzip2", "bzip2 -dc"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "zstd -dc"),
}


def unpacked(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of a log from its blocks, in bounded memory. The end of a gzip file may be missing.

    Raises FileInvalid if it is compressed in another format, or damaged.
    """
    first = next(blocks, b"")
    for magic, (what, program) in _OTHERS.items():
        if first.startswith(magic):
            hint = f"unpack it: `{program} FILE | dflash-deploy explain -`"
            raise FileInvalid(f"{shown(path)} is {what}, which cannot be read as text", hint=hint)
    if not first.startswith(_GZIP):
        yield first
        yield from blocks
        return
    try:
        yield from _inflated(first, blocks)
    except zlib.error:
        raise FileInvalid(f"{shown(path)} is a damaged gzip file", hint="copy it again") from None


def _inflated(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Unpack gzip, which may have several members, one after the other. Zeros may follow the last one."""
    member, packed = _member(), first
    while packed or (packed := next(blocks, b"")):
        yield member.decompress(packed, MOST)
        packed = member.unconsumed_tail
        if member.eof:
            packed, member = member.unused_data.lstrip(b"\0"), _member()


def _member() -> zlib._Decompress:
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


BLOCK = 1 << 20

LONGEST = 1 << 16  # characters of a line that are kept; a binary file may have no line break at all
STDIN = Path("-")


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a regular file, of a pipe, or of standard input if `path` is `-`.

    Gzip is unpacked. Bytes that are not UTF-8 are replaced; a carriage return ends a line too, as progress bars write
    it. Raises the errors of `open_file` and `unpacked`, and FileInvalid if a named pipe gives nothing for PATIENCE
    seconds.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for block in unpacked(path, _blocks(path)):
        *whole, rest = (rest + decoder.decode(block)).replace("\r", "\n").split("\n")
        yield from (line[:LONGEST] for line in whole)
        rest = rest[:LONGEST]
    if rest:
        yield rest


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield what a descriptor gives until its end. Standard input may wait as long as it likes."""
    named = path != STDIN
    descriptor = opened(path, frozenset({stat.S_IFREG, stat.S_IFIFO})) if named else os.dup(0)
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    try:
        while True:
            if not waiting.poll(PATIENCE * 1000 if named else None):
                raise FileInvalid(f"{shown(path)} is a pipe without data", hint="check the command that writes it")
            with reading(path):
                block = os.read(descriptor, BLOCK)
            if not block:
                return
            yield block
    finally:
        os.close(descriptor)
