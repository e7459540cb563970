"""Lines of a file or pipe of any size, in bounded memory."""

from __future__ import annotations

import codecs
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path

from dflash_deploy.errors import FileInvalid
from dflash_deploy.intake.files import PATIENCE, opened, reading, shown
from dflash_deploy.intake.unpacking import unpacked

BLOCK = 1 << 20

LONGEST = 1 << 16
"""Characters of a line that are kept; a binary file may have no line break at all."""

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
