"""An answer as it arrives: wrapped at words on a terminal, thinking dimmed, tokens of one step shaded; its figures."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text

from dflash_deploy.cli.report import console
from dflash_deploy.cli.shown import visible

if TYPE_CHECKING:
    from dflash_deploy.client.talk import Figures, TalkChunk
    from dflash_deploy.operations.ask import BaselineSpeed
    from dflash_deploy.redact import Redact

SHADES = ("on grey19", "on grey30")  # backgrounds of the steps that yielded several tokens, in turn
FENCE = "```"


class Writer:
    """Writes an answer on standard output. In a pipe only the answer is written, unchanged but for control characters.

    On a terminal it is wrapped at words, except within a fence of code, so that the code can be copied.
    """

    def __init__(self, redact: Redact, *, shaded: bool = False) -> None:
        self.answer = ""
        self._redact = redact
        self._shaded = shaded
        self._console = console()
        self._plain = not self._console.is_terminal
        self._column = 0
        self._word: list[tuple[str, str]] = []
        self._code = False
        self._thinking = False

    def write_all(self, chunks: Iterable[TalkChunk]) -> None:
        """Write the chunks as they come; `answer` has them without the thinking, also if they break off."""
        try:
            for chunk in chunks:
                if not chunk.thinking:
                    self.answer += chunk.text
                self._write(chunk)
        finally:
            self._end()

    def _write(self, chunk: TalkChunk) -> None:
        text = visible(chunk.text)
        if self._plain:
            if not chunk.thinking:
                sys.stdout.write(self._redact(text))
                sys.stdout.flush()
            return
        if self._thinking and not chunk.thinking:
            self._break("\n\n")
        self._thinking = chunk.thinking
        style = "dim" if chunk.thinking else SHADES[chunk.step % 2] if self._shaded else ""
        for line in text.splitlines(keepends=True):
            self._add(line, style)

    def _add(self, line: str, style: str) -> None:
        """Add a part of a line. What follows its last space may continue in the next chunk: it waits as a word."""
        while line:
            space = next((at for at, char in enumerate(line) if char.isspace()), None)
            if space is None:
                self._word.append((line, style))
                return
            self._word.append((line[:space], style))
            self._put_word()
            self._put_space(line[space], style)
            line = line[space + 1 :]

    def _put_word(self) -> None:
        word, self._word = self._word, []
        text = "".join(part for part, _ in word)
        if not text:
            return
        if text.startswith(FENCE) and self._column == 0:
            self._code = not self._code
        length = Text(text).cell_len
        if not self._code and self._column and self._column + length > self._console.width:
            self._break("\n")
        for part, style in word:
            self._console.print(Text(self._redact(part), style), end="", soft_wrap=True)
        self._column += length

    def _put_space(self, char: str, style: str) -> None:
        if char == "\n":
            self._break("\n")
        elif self._code or self._column < self._console.width:
            self._console.print(Text(char, style), end="", soft_wrap=True)
            self._column += 1

    def _break(self, ends: str) -> None:
        self._put_word()
        self._console.print(ends, end="", soft_wrap=True)
        self._column = 0

    def _end(self) -> None:
        self._put_word()
        if self._column or self._plain:
            sys.stdout.write("\n")
        sys.stdout.flush()


def figures_line(figures: Figures, plain: BaselineSpeed | None) -> str:
    """What an answer took, in one line; beside it the measured speed without drafts."""
    parts = [f"{figures.tokens} tokens" if figures.tokens is not None else f"{figures.seconds:.1f} s"]
    if figures.tokens_per_second is not None:
        parts.append(f"{figures.tokens_per_second:.0f} tokens/s")
    if figures.first_token_seconds is not None:
        parts.append(f"first token after {figures.first_token_seconds:.2f} s")
    if figures.acceptance_length is not None:
        parts.append(f"acceptance length {figures.acceptance_length:.2f}")
    if plain is not None:
        parts.append(f"without drafts {plain.tokens_per_second:.0f} tokens/s (bench of {plain.at[:10]})")
    if figures.finish_reason == "length":
        parts.append("cut at the limit of tokens")
    return ", ".join(parts)
